/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The sender: from dirty pages to posted writes, one thread a channel.
 *
 * The session pushes chunks with the bitmap of the pages to look at; the channel's thread tests them for
 * zero, coalesces the rest into runs, asks the far end to make them writable (a batch of chunks in one
 * message, one batch ahead of the one being written), prepares them here meanwhile, and posts them. It never
 * waits for a chunk: only flush(), at the end of a round, waits; and a window that is full.
 *
 * What the destination holds is known here, page by page: `sent` is set while a page's bytes there may be
 * other than zero. A page that is zero and not in `sent` costs nothing; one that is zero and in `sent` is
 * reported as a zero range, which the session carries to the destination with the round's end. So a page is
 * never skipped on the strength of a guess.
 */
#pragma once

#include "common/bitmap.h"
#include "control/channel.h"
#include "control/message.h"
#include "tracker/punch-watch.h"
#include "transport/transport.h"

typedef struct RmSender RmSender;

typedef struct {
    RmTx *tx;           /* connected; borrowed */
    RmControl *control; /* borrowed */
    GPtrArray *blocks;  /* RmBlock*; borrowed */
    uint64_t chunk_size;
    unsigned channels;
    uint64_t max_bandwidth; /* bytes/s of payload over all channels; 0: none */
    GPtrArray *watches;     /* RmPunchWatch*, one a block, borrowed; NULL if the guest punches no holes */
    uint64_t window;        /* bytes that the destination has registered at a time; 0: no bound */
} RmSenderParams;

typedef struct {
    uint64_t sent_bytes;     /* payload posted */
    uint64_t zero_pages;     /* looked at and found zero */
    uint64_t registrations;  /* chunks, or parts of large ones, that the far end was asked for */
    int64_t registration_us; /* that channels stood still for it, summed */
} RmSenderCounts;

RmSender *rm_sender_new(const RmSenderParams *params);
void rm_sender_free(RmSender *sender); /* ends the threads; the transport must be aborted or drained */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmSender, rm_sender_free)

/* Announces a block beyond guest RAM (the device state), writable in `regions` (of RmRegion); without any,
 * where the destination has a window, it is asked for like guest RAM. Returns its index. */
uint32_t rm_sender_add_block(RmSender *sender, RmBlock *block, const GArray *regions);

/* Has every granule of guest RAM registered at the destination, and what is populated here (--pin all),
 * beside what is done next; the first round ends no earlier. Before the first push. A failure is the first
 * flush()'s.
 */
void rm_sender_pin_all(RmSender *sender);

/* Queues the pages of `pages` that lie in chunk `chunk`; the bitmap must stay as it is until flush() has
 * returned. */
void rm_sender_push(RmSender *sender, uint32_t block, uint64_t chunk, const RmBitmap *pages);

/* There is no more to push in this round: what was pushed is written now, not only once the round ends. */
void rm_sender_post(RmSender *sender);

/* Ends round `round` on every channel and waits until all of it is off our hands. `tick` is called every 100
 * ms of the wait; if it returns FALSE the transport is aborted and its error returned. */
gboolean rm_sender_flush(RmSender *sender, uint32_t round, gboolean (*tick)(gpointer data, GError **error),
                         gpointer data, GError **error);

/* After flush(): moves the zero ranges found in the round to `zeroes` (of RmZeroRange). */
void rm_sender_take_zeroes(RmSender *sender, GArray *zeroes);

/* Between rounds: pages of `block` that may be other than zero at the destination. Owned by the sender. */
RmBitmap *rm_sender_sent(RmSender *sender, uint32_t block);

/* Any thread, any time. */
RmSenderCounts rm_sender_counts(RmSender *sender);
