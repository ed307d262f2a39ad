/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Switchover: stop, last rounds, state, load, commit.
 *
 * The order is the safety (design move 6): nothing of ours writes the destination's RAM once `load` has been
 * sent, since the load itself reads and writes it; and the destination lets the guest run only after
 * `commit`. Until `commit` is sent every failure resumes the guest here. Once it is sent, this side resumes
 * the guest only on the destination's word that it has aborted, which is irrevocable there; without a word
 * the guest stays paused and the session is doubtful. And it ends its own copy only after `running`, or the
 * destination's word that it is done: that it has committed says who owns the guest, not that it lives.
 *
 * What needn't be done while the guest stands still is done before the stop (arm()), or beside the
 * destination's load (look_again()).
 *
 * Each of these steps is in the journal before it is made (record.c); what is due after a crash in between,
 * settle.h says.
 */
#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/json.h"
#include "source/connect.h"
#include "source/session.h"

#include <string.h>

#define STATE_TIMEOUT_MS 30000 /* these three of a peer that is alive; here it only makes room */
#define LOAD_TIMEOUT_MS 120000 /* devices can be slow to load */
#define RUN_TIMEOUT_MS 120000  /* likewise: it tries for a while, and its disks may be slow to open */
#define SILENCE_MS                                                                                           \
    5000                   /* after that the destination is asked meanwhile: a commit that it never got      \
                              would keep the guest paused */
#define QUERY_FOR_MS 30000 /* how long it is asked once the connection is of no more use */
#define QUERY_EVERY_MS 500

/* The state as a block of its own, padded with zeroes to whole pages. */
static RmBlock *state_block(const GByteArray *state, GError **error)
{
    RmBlock *block = rm_block_new_anonymous("device-state", state->len);
    if (block == NULL)
        rm_fail(error, RM_REASON_INTERNAL, "no memory for %u bytes of device state", state->len);
    else
        memcpy(block->map, state->data, state->len);
    return block;
}

static gboolean send_state(RmSession *session, RmBlock *block, uint64_t length, GError **error)
{
    rm_autojson reply = NULL;
    json_object *message = rm_json_message(RM_MSG_STATE);
    rm_json_add_uint(message, "length", length);
    if (!rm_control_request(session->control, message, STATE_TIMEOUT_MS, session->cancel, &reply, error) ||
        !rm_message_expect(reply, RM_MSG_STATE_OK, error))
        return FALSE;
    g_autoptr(GArray) regions = rm_registered_decode(reply, block, session->accept->chunk_size, error);
    return regions != NULL && rm_round_send_block(session, block, regions, error);
}

static int64_t lap(int64_t *since)
{
    int64_t now = g_get_monotonic_time(), passed = now - *since;
    *since = now;
    return passed;
}

/* The wait for a stopped round's writes: what of them isn't hidden behind something else. */
static gboolean land(RmSession *session, RmRound *round, GError **error)
{
    int64_t begin = g_get_monotonic_time();
    if (!rm_round_end(session, round, error))
        return FALSE;
    session->metrics.last_scan_us += round->stats.scan_us;
    session->metrics.last_write_us += g_get_monotonic_time() - begin;
    return TRUE;
}

/* A reset in the middle of something is told by an event; the run state that it leaves only looks like a
 * failure of what was tried. Takes `problem`. */
static gboolean fail_unless_event(RmSession *session, GError *problem, GError **error)
{
    g_autoptr(GError) owned = problem;
    if (session->guest->ops->poll(session->guest, error))
        g_propagate_error(error, g_steal_pointer(&owned));
    return FALSE;
}

/* While the guest still runs: QEMU's migration settings, as the save needs them. A crash from here on leaves
 * a guest that runs (or is stopped) with these settings, and a journal that tells those found: `switchover`
 * is recorded before, and the note before the first change. Who rolls back by it puts them back. */
static gboolean arm(RmSession *session, GError **error)
{
    const RmGuestOps *ops = session->guest->ops;
    session->guest_touched = TRUE; /* before the attempt: what failed half-way is rolled back, too */
    ops->set_note(session->guest, rm_record_note, session);
    return ops->prepare_save(session->guest, error);
}

/* Stop, and while the sender's threads write what is left: save. The save may touch RAM, so another stopped
 * round follows it; its scan reports whatever the save wrote, since the first one has protected everything.
 */
static gboolean stop_and_save(RmSession *session, GByteArray **ret_state, GError **error)
{
    RmMetrics *metrics = &session->metrics;
    const RmGuestOps *ops = session->guest->ops;
    g_auto(RmRound) last = {0}, after_save = {0};
    GError *problem = NULL;
    int64_t time = session->stop_us = g_get_monotonic_time();
    metrics->last_scan_us = metrics->last_write_us = 0;
    rm_pause_begin(session);
    if (!ops->stop(session->guest, &problem) || !ops->check_save(session->guest, &problem))
        return fail_unless_event(session, problem, error);
    metrics->stop_us = lap(&time);
    rm_fault_pause("switchover-stopped");
    if (!ops->poll(session->guest, error) || /* a reset explains what the save may fail with */
        !rm_round_begin(session, RM_ROUND_STOPPED, &last, error))
        return FALSE;
    lap(&time);
    if (!ops->save(session->guest, ret_state, &problem))
        return fail_unless_event(session, problem, error);
    metrics->save_us = lap(&time);
    metrics->state_bytes = (*ret_state)->len;
    if (metrics->state_bytes == 0 || metrics->state_bytes > RM_STATE_MAX)
        return rm_fail(error, RM_REASON_STATE_SAVE, "QEMU saved %" G_GUINT64_FORMAT " bytes of device state",
                       metrics->state_bytes);
    rm_fault_pause("switchover-saved");
    return land(session, &last, error) && rm_round_begin(session, RM_ROUND_STOPPED, &after_save, error) &&
           land(session, &after_save, error);
}

/* What the destination's load leaves time for: QEMU's settings as they were found, so that whoever keeps this
 * QEMU has it as it was, even if we die after `commit`; and the preflight's checks again.
 *
 * Why these may come after the save, and after the last round. Nothing but `commit` lets the guest run there,
 * and it is not sent before the checks have passed. A device, block or image that was added while the guest
 * ran is there still, for it is stopped. Whoever writes the guest's RAM unseen is looked for at one moment:
 * who ended before it is missed, be it at the stop or, as here, a fraction of a second later. What would be
 * harmed by the save itself, check_save() has looked at. A check that fails costs the destination's QEMU,
 * which is used up then, and nothing here: the guest is rolled back as before the save. */
static gboolean look_again(RmSession *session, GError **error)
{
    const RmGuestOps *ops = session->guest->ops;
    GError *problem = NULL;
    ops->put_back(session->guest);
    return ops->recheck(session->guest, session->blocks, &session->options->preflight, &problem) ||
           fail_unless_event(session, problem, error);
}

static gboolean load(RmSession *session, GError **error)
{
    rm_autojson reply = NULL;
    int64_t time = g_get_monotonic_time();
    /* A request that is answered at once does not notice a cancel, and a load uses the destination's QEMU up:
     * look. */
    if (!rm_session_check(session, error))
        return FALSE;
    uint64_t id = rm_control_begin(session->control, rm_json_message(RM_MSG_LOAD), error);
    /* If that fails, the answer is nobody's: the destination hears of it with the end of the session. */
    if (id == 0 || !look_again(session, error) ||
        !rm_control_finish(session->control, id, LOAD_TIMEOUT_MS, session->cancel, &reply, error) ||
        !rm_message_expect(reply, RM_MSG_PREPARED, error))
        return FALSE;
    session->metrics.load_us = lap(&time);
    return TRUE;
}

static gboolean prepare(RmSession *session, RmBlock **ret_block, GError **error)
{
    g_autoptr(GByteArray) state = NULL;
    if (!stop_and_save(session, &state, error))
        return FALSE;
    *ret_block = state_block(state, error);
    if (*ret_block == NULL || !send_state(session, *ret_block, state->len, error))
        return FALSE;
    if (session->options->verify && !rm_verify_clean(session, TRUE, error))
        return FALSE;
    return load(session, error);
}

static gboolean ask(RmSession *session, RmFate *ret_fate, gboolean *ret_done)
{
    g_autoptr(GError) problem = NULL;
    RmTarget target = rm_negotiate_target(session);
    if (rm_connect_query(&target, session->id, session->accept->token, ret_fate, ret_done, &problem))
        return TRUE;
    g_debug("query: %s", problem->message);
    *ret_fate = RM_FATE_UNKNOWN;
    *ret_done = FALSE;
    return FALSE;
}

static void warn_asking(RmSession *session, RmReason reason, const char *why)
{
    g_autofree char *text =
        g_strdup_printf("commit was not answered with running (%s): asking the destination", why);
    rm_reporter_warning(session->reporter, reason, text);
}

/* After `commit` without `running`: the destination's word decides, its silence decides nothing.
 *
 * Committed and done is as good as `running`. Committed alone says who owns the guest: if only the answer was
 * lost, the guest will run there, whatever becomes of the connection; if the answer was a failure, the
 * destination may have no guest left but the one that is paused here. */
static gboolean ask_fate(RmSession *session, const GError *cause, GError **error)
{
    int64_t deadline = g_get_monotonic_time() + rm_fault_number("query-for", QUERY_FOR_MS) * 1000ll;
    gboolean silent = cause->code == RM_REASON_PEER_LOST || cause->code == RM_REASON_PEER_TIMEOUT;
    gboolean committed = FALSE, done = FALSE;
    RmFate fate;
    rm_session_event(session, RM_EVENT_LOST, NULL); /* it records nothing */
    session->verdict = RM_EVENT_FATE_UNKNOWN;
    warn_asking(session, rm_error_reason(cause), cause->message);
    while (g_get_monotonic_time() < deadline) {
        gboolean answered = ask(session, &fate, &done);
        session->verdict = done                      ? RM_EVENT_FATE_DONE
                           : fate == RM_FATE_ABORTED ? RM_EVENT_FATE_ABORTED
                                                     : RM_EVENT_FATE_UNKNOWN;
        if (done)
            return TRUE;
        if (fate == RM_FATE_ABORTED)
            return rm_fail(error, rm_error_reason(cause), "the destination aborted: %s", cause->message);
        committed = committed || fate == RM_FATE_COMMITTED;
        if ((committed && !silent) || (answered && fate == RM_FATE_UNKNOWN))
            break;
        g_usleep(QUERY_EVERY_MS * 1000);
    }
    if (!committed)
        return rm_fail(error, RM_REASON_DOUBTFUL, "commit was sent and its fate is unknown (%s)",
                       cause->message);
    session->verdict = silent ? RM_EVENT_FATE_COMMITTED : RM_EVENT_FATE_STUCK;
    return silent || rm_fail(error, RM_REASON_RESUME,
                             "the destination has the guest and could not run it: %s", cause->message);
}

/* TRUE if the destination said, here or asked by the way, that the guest is as it is to be. While it is
 * asked, the answer may still come. Aborted: for good, which ask_fate() will hear again. */
static gboolean hear_running(RmSession *session, uint64_t id, GError **error)
{
    int64_t deadline = g_get_monotonic_time() + RUN_TIMEOUT_MS * 1000;
    rm_autojson reply = NULL;
    gboolean warned = FALSE;
    while (!rm_control_wait(session->control, id, SILENCE_MS) && g_get_monotonic_time() < deadline) {
        RmFate fate;
        gboolean done;
        rm_session_event(session, RM_EVENT_LOST, NULL);
        if (!warned)
            warn_asking(session, RM_REASON_PEER_TIMEOUT, "not within 5 s");
        warned = TRUE;
        ask(session, &fate, &done);
        if (done) {
            session->verdict = RM_EVENT_FATE_DONE;
            return TRUE;
        }
        if (fate == RM_FATE_ABORTED)
            break;
    }
    return rm_control_finish(session->control, id, 1, NULL, &reply, error) &&
           rm_message_expect(reply, RM_MSG_RUNNING, error);
}

/* Recorded first, and on disk: whoever finds less than `committed` after a crash lets the guest run here. */
static gboolean commit(RmSession *session, GError **error)
{
    g_autoptr(GError) problem = NULL;
    if (!rm_session_event(session, RM_EVENT_COMMIT, error))
        return FALSE;
    session->verdict = RM_EVENT_RUNNING;
    json_object *message = rm_json_message(RM_MSG_COMMIT);
    rm_json_add_bool(message, "run", rm_record_runs(session));
    rm_pause_end(session);
    rm_fault_pause("switchover-commit");
    uint64_t id = rm_control_begin(session->control, message, &problem);
    if (id != 0 && hear_running(session, id, &problem))
        return TRUE;
    return ask_fate(session, problem, error);
}

/* The last moment before `commit`: a cancel still counts, and so does anybody else who has let the guest run
 * here since it was saved, for then there would be two. */
static gboolean check_still_ours(RmSession *session, GError **error)
{
    const RmGuestOps *ops = session->guest->ops;
    RmGuestRun run;
    if (!rm_session_check(session, error) || !ops->poll(session->guest, error) ||
        !ops->run_state(session->guest, &run, error))
        return FALSE;
    return run == RM_GUEST_SAVED ||
           rm_fail(error, RM_REASON_GUEST_STATE,
                   "somebody else changed the guest's run state while it was being handed over; try again");
}

gboolean rm_switchover_run(RmSession *session, GError **error)
{
    RmBlock *block = NULL;
    if (!rm_guardian_ready(session->guardian, error) ||
        !rm_session_event(session, RM_EVENT_CONVERGED, error) || !arm(session, error))
        return FALSE;
    gboolean ok = prepare(session, &block, error) && rm_session_event(session, RM_EVENT_PREPARED, error);
    if (ok) {
        rm_fault_pause("switchover-prepared");
        ok = check_still_ours(session, error);
    }
    if (ok) {
        int64_t committed = g_get_monotonic_time();
        ok = commit(session, error);
        session->metrics.resume_us = g_get_monotonic_time() - committed;
        session->metrics.downtime_us = g_get_monotonic_time() - session->stop_us;
        session->metrics.total_us = g_get_monotonic_time() - session->metrics.start_us;
    }
    /* The sender's threads read the state's block; they are joined before it goes. */
    if (block != NULL) {
        rm_session_end_data(session);
        rm_block_free(block);
    }
    return ok;
}

gboolean rm_switchover_roll_back(RmSession *session, GError **error)
{
    if (!session->guest_touched)
        return TRUE;
    session->guest_touched = FALSE;
    rm_pause_roll_back(session);
    gboolean ok = session->guest->ops->resume(session->guest, session->was_running, error);
    rm_pause_end(session);
    return ok;
}
