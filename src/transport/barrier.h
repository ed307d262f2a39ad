/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination's half of the round barrier: who has arrived, which round each channel has reaped the end
 * of, and waiting for all of them. The same for every transport; how a round's end reaches a channel, and why
 * all that was sent before it has landed by then, is each transport's own to say.
 *
 * The lock is a leaf: nothing else is taken under it, and it is not held while a GCancellable is connected
 * or disconnected, which waits for somebody who may want it.
 */
#pragma once

#include "transport/failure.h"
#include "transport/transport.h"

#include <errno.h>

/* The code of the failure of a source that left and owed nothing: what it had sent before is complete. */
#define RM_BARRIER_LEFT (-ENODATA)

typedef struct {
    RmFailure *failure; /* immutable, borrowed, as are the next two */
    unsigned n_channels;
    unsigned timeout_ms; /* for all channels to arrive */

    GMutex lock; /* all below */
    GCond changed;
    unsigned n_arrived;
    gboolean stopped;
    uint32_t reached[RM_CHANNELS_MAX]; /* the last round that ended on each channel */
    uint32_t marked[RM_CHANNELS_MAX];  /* the last mark within a round, of transports that have these */
} RmBarrier;

void rm_barrier_init(RmBarrier *barrier, RmFailure *failure);
void rm_barrier_clear(RmBarrier *barrier);
void rm_barrier_start(RmBarrier *barrier, unsigned n_channels, unsigned timeout_ms);

void rm_barrier_arrived(RmBarrier *barrier);
/* All bytes of `round` on `channel` are in guest memory; the lock hands them over to the waiter. */
void rm_barrier_reached(RmBarrier *barrier, unsigned channel, uint32_t round);
/* The same for the mark of that number. */
void rm_barrier_marked(RmBarrier *barrier, unsigned channel, uint32_t mark);
/* Ends all waiting, now and later, unless the round awaited has been reached. Also after a failure was set.
 */
void rm_barrier_stop(RmBarrier *barrier);

/* RmRxOps.wait_round(). Sets the failure itself if the channels do not arrive in time. */
gboolean rm_barrier_wait(RmBarrier *barrier, uint32_t round, GCancellable *cancellable, GError **error);
/* Waits until `channel` has reached `mark`. */
gboolean rm_barrier_wait_mark(RmBarrier *barrier, unsigned channel, uint32_t mark, GError **error);
