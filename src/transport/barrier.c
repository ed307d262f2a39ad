/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Waiting for every channel's end of a round. */
#include "transport/barrier.h"

void rm_barrier_init(RmBarrier *barrier, RmFailure *failure)
{
    barrier->failure = failure;
    g_mutex_init(&barrier->lock);
    g_cond_init(&barrier->changed);
}

void rm_barrier_clear(RmBarrier *barrier)
{
    g_cond_clear(&barrier->changed);
    g_mutex_clear(&barrier->lock);
}

void rm_barrier_start(RmBarrier *barrier, unsigned n_channels, unsigned timeout_ms)
{
    g_assert(n_channels >= 1 && n_channels <= RM_CHANNELS_MAX);
    barrier->n_channels = n_channels;
    barrier->timeout_ms = timeout_ms;
}

void rm_barrier_arrived(RmBarrier *barrier)
{
    g_mutex_lock(&barrier->lock);
    barrier->n_arrived++;
    g_cond_broadcast(&barrier->changed);
    g_mutex_unlock(&barrier->lock);
}

void rm_barrier_reached(RmBarrier *barrier, unsigned channel, uint32_t round)
{
    g_mutex_lock(&barrier->lock);
    barrier->reached[channel] = round;
    g_cond_broadcast(&barrier->changed);
    g_mutex_unlock(&barrier->lock);
}

void rm_barrier_marked(RmBarrier *barrier, unsigned channel, uint32_t mark)
{
    g_mutex_lock(&barrier->lock);
    barrier->marked[channel] = mark;
    g_cond_broadcast(&barrier->changed);
    g_mutex_unlock(&barrier->lock);
}

void rm_barrier_stop(RmBarrier *barrier)
{
    g_mutex_lock(&barrier->lock);
    barrier->stopped = TRUE;
    g_cond_broadcast(&barrier->changed);
    g_mutex_unlock(&barrier->lock);
}

static gboolean round_reached(const RmBarrier *barrier, uint32_t round)
{
    for (unsigned i = 0; i < barrier->n_channels; i++)
        if (barrier->reached[i] < round)
            return FALSE;
    return barrier->n_channels > 0;
}

static void wake(GCancellable *cancellable, RmBarrier *barrier)
{
    g_mutex_lock(&barrier->lock);
    g_cond_broadcast(&barrier->changed);
    g_mutex_unlock(&barrier->lock);
}

typedef enum { WAIT_REACHED, WAIT_FAILED, WAIT_CANCELLED, WAIT_ABSENT } WaitEnd;

/* Under the lock. A source that leaves once its last round has landed has done nothing wrong; any other
 * failure makes what landed worthless. */
static WaitEnd wait_locked(RmBarrier *barrier, uint32_t round, GCancellable *cancellable)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)barrier->timeout_ms * 1000;
    for (;;) {
        int code = rm_failure_code(barrier->failure);
        if (round_reached(barrier, round) && (code == 0 || code == RM_BARRIER_LEFT))
            return WAIT_REACHED;
        if (code != 0 || barrier->stopped)
            return WAIT_FAILED;
        if (g_cancellable_is_cancelled(cancellable))
            return WAIT_CANCELLED;
        if (barrier->n_arrived == barrier->n_channels)
            g_cond_wait(&barrier->changed, &barrier->lock);
        else if (!g_cond_wait_until(&barrier->changed, &barrier->lock, deadline) &&
                 barrier->n_arrived < barrier->n_channels)
            return WAIT_ABSENT;
    }
}

gboolean rm_barrier_wait(RmBarrier *barrier, uint32_t round, GCancellable *cancellable, GError **error)
{
    gulong handler = 0;
    if (cancellable != NULL)
        handler = g_cancellable_connect(cancellable, G_CALLBACK(wake), barrier, NULL);
    g_mutex_lock(&barrier->lock);
    WaitEnd end = wait_locked(barrier, round, cancellable);
    unsigned n_arrived = barrier->n_arrived;
    g_mutex_unlock(&barrier->lock);
    g_cancellable_disconnect(cancellable, handler);

    switch (end) {
    case WAIT_REACHED:
        return TRUE;
    case WAIT_CANCELLED:
        return rm_fail(error, RM_REASON_CANCELLED, "cancelled while round %u was being received", round);
    case WAIT_ABSENT:
        rm_failure_set(barrier->failure, -ETIMEDOUT, RM_REASON_PEER_TIMEOUT,
                       "only %u of %u data channels arrived within %u ms; check that a firewall lets data "
                       "connections through",
                       n_arrived, barrier->n_channels, barrier->timeout_ms);
        break;
    case WAIT_FAILED:
        break;
    }
    if (!rm_failure_get(barrier->failure, error))
        return FALSE;
    return rm_fail(error, RM_REASON_TRANSPORT, "the data channels have been stopped before round %u ended",
                   round);
}

gboolean rm_barrier_wait_mark(RmBarrier *barrier, unsigned channel, uint32_t mark, GError **error)
{
    g_assert(channel < barrier->n_channels);
    g_mutex_lock(&barrier->lock);
    while (barrier->marked[channel] < mark && !barrier->stopped && rm_failure_code(barrier->failure) == 0)
        g_cond_wait(&barrier->changed, &barrier->lock);
    gboolean reached = barrier->marked[channel] >= mark;
    g_mutex_unlock(&barrier->lock);
    return reached || (rm_failure_get(barrier->failure, error) &&
                       rm_fail(error, RM_REASON_TRANSPORT, "data channel %u was stopped before mark %u came",
                               channel, mark));
}
