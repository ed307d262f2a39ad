/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The sending half of a channel at the source: writes in flight, bounded by credits.
 *
 * Work requests are numbered; a request's credit is its place in the send queue. They are handed to the
 * device in linked lists, of which only the last request asks for a completion: a send queue completes in
 * order, so that one gives all before it back. Because every list ends in one that asks, whoever waits for
 * credit always waits for something that will come.
 *
 * Copies go through a ring of registered memory. Its space is given back with the credit of the request that
 * used it, in the same order, so a head and a tail are all the bookkeeping there is.
 *
 * One thread at a time, the channel's sender; the RmVerbsShared is everybody's.
 */
#pragma once

#include "memory/block.h"
#include "transport/failure.h"
#include "transport/verbs/qp.h"

#define RM_VERBS_LIST_MAX 32u /* requests in one list */
/* The ring of a channel under a window: RM_PINNED_CHANNEL_MIN has room for it. */
#define RM_VERBS_SMALL_RING_BYTES (UINT64_C(1) << 20)

/* What the channels of one source share. */
typedef struct {
    RmFailure failure;
    int wake_fd;         /* eventfd: readable for ever once a failure has been set */
    unsigned timeout_ms; /* of a destination that takes nothing */
    uint64_t wire_bytes; /* atomic */
} RmVerbsShared;

/* Keeps the first failure, and wakes every channel's thread. Returns the first one's code. */
int rm_verbs_shared_fail(RmVerbsShared *shared, int code, RmReason reason, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

typedef struct {
    RmVerbsShared *shared;
    unsigned index;
    RmVerbsQp qp;
    unsigned mtu, overhead; /* for wire_bytes */

    uint64_t posted;     /* requests handed to the device, since the start */
    uint64_t done;       /* of these, completed */
    uint64_t payload;    /* bytes written, pending ones included */
    uint64_t *ring_ends; /* by number modulo depth: where the ring's tail is once it has completed */

    unsigned n_pending; /* the list being built */
    struct ibv_send_wr requests[RM_VERBS_LIST_MAX];
    struct ibv_sge pieces[RM_VERBS_LIST_MAX];

    uint32_t marks;        /* within rounds: sent so far */
    uint64_t mark_request; /* number of the latest one's request, and one */

    uint64_t ring_most; /* bytes that the ring may have; 0: as many as are useful */
    uint8_t *ring;      /* NULL until the first copy */
    uint64_t ring_bytes;
    struct ibv_mr *ring_mr;
    uint64_t ring_head, ring_tail; /* bytes since the start; both only rise */

    gint64 progress_us; /* when something completed last, or the wait began */
    unsigned spin_us;   /* how long polling is worth it, by experience */
} RmVerbsWriter;

/* `writer->qp` must be connected. */
void rm_verbs_writer_init(RmVerbsWriter *writer, RmVerbsShared *shared, unsigned index);
/* Frees the ring; the queue pair must be broken and is left to its owner. */
void rm_verbs_writer_clear(RmVerbsWriter *writer);

/* Each blocks while the window is full; 0 or a negative errno, with the failure set. */

/* Writes [local, local + length), registered as lkey, to [remote, …), sliced to what the device takes in one
 * request. */
int rm_verbs_writer_write(RmVerbsWriter *writer, const uint8_t *local, uint32_t lkey, uint64_t remote,
                          uint32_t rkey, uint64_t length);
/* Writes `length` bytes of `block` at `offset` to the same offset there, by way of the ring: the block is not
 * needed any more on return, and what is a hole in it stays one. */
int rm_verbs_writer_copy(RmVerbsWriter *writer, const RmBlock *block, uint64_t offset, uint32_t rkey,
                         uint64_t length);
/* Hands what is pending to the device. */
int rm_verbs_writer_flush(RmVerbsWriter *writer);
/* Takes back what has completed, without waiting. */
int rm_verbs_writer_reap(RmVerbsWriter *writer);
/* The number of requests so far, pending ones included: what is to be waited for to see off all of them. */
static inline uint64_t rm_verbs_writer_number(const RmVerbsWriter *writer)
{
    return writer->posted + writer->n_pending;
}
/* Hands what is pending to the device, and waits until the first `number` requests have completed here. */
int rm_verbs_writer_wait(RmVerbsWriter *writer, uint64_t number);
/* Sends a mark behind all writes so far, and does not wait. The destination has answered all earlier ones. */
int rm_verbs_writer_mark(RmVerbsWriter *writer, uint32_t *ret_mark);
/* Makes the ring now rather than with the first copy. */
int rm_verbs_writer_make_ring(RmVerbsWriter *writer);
/* Sends the mark of the round's end behind all writes, and waits until all of it has completed here. */
int rm_verbs_writer_end_round(RmVerbsWriter *writer, uint32_t round);
