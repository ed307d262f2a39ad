/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a round as it travels, or a mark within one: a SEND of this, behind all writes so far on its
 * queue pair. All integers are little-endian. Marks within rounds are for releases: a registration ends only
 * behind one.
 *
 * A payload rather than immediate data, because iWARP has none on a SEND.
 *
 * When its receive completes, every write before it is in the destination's memory:
 * - InfiniBand and RoCE: a responder executes requests in the order of their packet sequence numbers, and a
 * SEND's receive may complete only when the writes before it are visible (IBTA vol. 1, 10.8 and 9.5). A
 * packet that comes twice (a retransmission, or one that lingered in the network) is acknowledged and not
 * executed again, so an old version cannot land after the mark either.
 * - iWARP: a write completes at its sender when TCP has taken it; nothing is said about the receiver. But
 * delivery of a SEND follows the placement of all writes before it (RFC 5040, 5.5). This is why the source's
 * own completions are not the barrier, and this receive is.
 * - From the card to memory: posted PCIe writes do not pass each other, unless a region asks for relaxed
 * ordering: ours never do. The card writes data before the completion; that the data may still be in the
 * CPU's cache (DDIO) matters not, caches are coherent with DMA. ibv_poll_cq() has the read barrier that keeps
 * the CPU from looking at the data before it has looked at the completion; the barrier's lock hands it on to
 * the session's thread.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#define RM_VERBS_MARK_ROUND 0x45524d52u  /* "RMRE": the end of a round */
#define RM_VERBS_MARK_WITHIN 0x4b4d4d52u /* "RMMK": within one */

typedef struct {
    uint32_t magic;
    uint32_t number;  /* of the round, or of the mark: each from 1, without gaps */
    uint64_t payload; /* bytes written on this channel in all rounds so far */
} RmVerbsMark;
G_STATIC_ASSERT(sizeof(RmVerbsMark) == 16);
