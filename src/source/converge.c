/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pre-copy: rounds until the guest can be stopped for no longer than wished, or a limit is reached. */
#include "common/reason.h"
#include "source/session.h"

/* What a switchover costs apart from its writes (scan, state saved and loaded, round trips): 20–50 ms for
 * small guests, docs/benchmarks.md. Only the estimate depends on it. */
#define OVERHEAD_MS 40.0
/* Rounds of a nearly idle guest take well under this; without a pause they would fence its disks in a loop.
 */
#define MIN_ROUND_US 10000

RmNext rm_converge_decide(const RmConvergence *state, double *ret_expected_ms)
{
    double bytes = (double)(state->dirty_bytes + state->suspect_bytes);
    double write_ms = bytes == 0 ? 0 : state->rate > 0 ? bytes * 1000 / state->rate : G_MAXDOUBLE / 2;
    double limit = (double)state->downtime_limit_ms;
    *ret_expected_ms = write_ms + state->overhead_ms;
    /* A limit near or under the overhead still allows a tenth of it for writes: it can't be met, but it can
     * be approached. */
    if (write_ms <= MAX(limit - state->overhead_ms, limit / 10))
        return RM_NEXT_SWITCHOVER;
    if ((state->max_rounds > 0 && state->rounds >= state->max_rounds) ||
        (state->timeout_ms > 0 && state->elapsed_ms >= state->timeout_ms))
        return state->on_timeout_suspend ? RM_NEXT_SUSPEND : RM_NEXT_GIVE_UP;
    return RM_NEXT_ROUND;
}

static uint64_t elapsed_ms(const RmSession *session)
{
    return (uint64_t)(g_get_monotonic_time() - session->precopy_begin_us) / 1000;
}

gboolean rm_converge_check_time(RmSession *session, GError **error)
{
    const RmSendOptions *options = session->options;
    if (session->state != RM_STATE_PRECOPY || options->timeout_ms == 0 || options->on_timeout_suspend ||
        elapsed_ms(session) < options->timeout_ms)
        return TRUE;
    return rm_fail(
        error, RM_REASON_NOT_CONVERGED,
        "round %u was still being sent when --timeout %.1f s had passed; allow more time or bandwidth, or "
        "move it stopped with --on-timeout suspend",
        session->round, (double)options->timeout_ms / 1000);
}

static gboolean decide(RmSession *session, RmNext *ret_next, GError **error)
{
    const RmSendOptions *options = session->options;
    double expected_ms;
    RmConvergence state = {
        .rate = session->rate,
        .overhead_ms = OVERHEAD_MS,
        .rounds = session->round,
        .elapsed_ms = elapsed_ms(session),
        .downtime_limit_ms = options->downtime_limit_ms,
        .max_rounds = options->max_rounds,
        .timeout_ms = options->timeout_ms,
        .on_timeout_suspend = options->on_timeout_suspend,
    };
    if (!rm_round_pending(session, &state.dirty_bytes, &state.suspect_bytes, error))
        return FALSE;
    *ret_next = rm_converge_decide(&state, &expected_ms);
    session->metrics.expected_downtime_us = expected_ms < 1e12 ? (int64_t)(expected_ms * 1000) : -1;
    g_debug("round %u: %" G_GUINT64_FORMAT " bytes dirty, %" G_GUINT64_FORMAT
            " suspect, expected downtime %.0f ms",
            session->round, state.dirty_bytes, state.suspect_bytes, expected_ms);
    if (*ret_next != RM_NEXT_GIVE_UP)
        return TRUE;
    return rm_fail(
        error, RM_REASON_NOT_CONVERGED,
        "the guest writes faster than RAM is sent: after %u rounds and %.1f s a pause of %.0f ms would be "
        "needed; allow more with --downtime-limit, or move it stopped with --on-timeout suspend",
        session->round, (double)state.elapsed_ms / 1000, MIN(expected_ms, 1e9));
}

gboolean rm_converge_precopy(RmSession *session, GError **error)
{
    session->precopy_begin_us = g_get_monotonic_time();
    RmRoundKind kind = RM_ROUND_FIRST;
    for (;;) {
        RmRoundStats stats;
        RmNext next = RM_NEXT_SWITCHOVER;
        int64_t round_begin = g_get_monotonic_time();
        if (!rm_session_check(session, error) || !session->guest->ops->poll(session->guest, error) ||
            !rm_round_run(session, kind, &stats, error) || !decide(session, &next, error))
            return FALSE;
        session->moved_stopped = next == RM_NEXT_SUSPEND;
        if (next == RM_NEXT_SWITCHOVER || next == RM_NEXT_SUSPEND)
            return TRUE;
        int64_t took = g_get_monotonic_time() - round_begin;
        if (took < MIN_ROUND_US)
            g_usleep(MIN_ROUND_US - took);
        kind = RM_ROUND_PRECOPY;
    }
}
