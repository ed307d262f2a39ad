/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session at the source, from top to bottom, and the one place where an error becomes an end state.
 *
 * Teardown order on a failure before `commit`: the guest first (it runs again before anything else is
 * tidied), then the data channels and the sender, then the tracker, then the destination is told. Nothing in
 * between can keep the guest.
 */
#include "source/session.h"

#include "common/fault.h"
#include "common/kernel.h"
#include "common/printable.h"
#include "common/reason.h"
#include "control/json.h"
#include "handover/earlier.h"
#include "source/guard.h"
#include "source/settle.h"

#define QMP_TIMEOUT_MS 30000
#define ROOT_CAUSE_WAIT_MS 1000
#define DETAIL_MAX 4096

RmSession *rm_session_new(const RmSendOptions *options, RmReporter *reporter, const char *id)
{
    RmSession *session = g_new0(RmSession, 1);
    session->options = options;
    session->reporter = reporter;
    session->id = g_strdup(id);
    session->cancel = g_cancellable_new();
    session->metrics = (RmMetrics){
        .start_us = g_get_monotonic_time(),
        .start_cpu_s = rm_cpu_seconds(),
        .downtime_us = -1,
        .stop_us = -1,
        .last_scan_us = -1,
        .last_write_us = -1,
        .save_us = -1,
        .load_us = -1,
        .resume_us = -1,
        .attach_us = -1,
        .expected_downtime_us = -1,
    };
    return session;
}

void rm_session_end_data(RmSession *session)
{
    if (session->tx != NULL) {
        session->metrics.wire_bytes = session->tx->ops->wire_bytes(session->tx);
        session->tx->ops->abort(session->tx);
    }
    rm_sender_free(g_steal_pointer(&session->sender));
    rm_tx_free(g_steal_pointer(&session->tx));
}

static void end_control(RmSession *session)
{
    if (session->control == NULL)
        return;
    g_cancellable_disconnect(rm_control_lost(session->control), session->lost_handler);
    rm_control_free(g_steal_pointer(&session->control));
}

void rm_session_free(RmSession *session)
{
    if (session == NULL)
        return;
    rm_session_end_data(session);
    rm_tracker_free(session->tracker);
    g_clear_pointer(&session->watches, g_ptr_array_unref);
    end_control(session);
    rm_tls_unref(session->tls);
    rm_rounds_free(session);
    rm_hello_free(session->hello);
    rm_accept_free(session->accept);
    g_clear_pointer(&session->blocks, g_ptr_array_unref);
    rm_guest_info_free(session->info);
    rm_guest_free(session->guest);
    rm_journal_close(session->journal); /* from here on nobody looks after the session */
    g_object_unref(session->cancel);
    g_free(session->id);
    g_free(session);
}

void rm_session_cancel(RmSession *session)
{
    g_atomic_int_set(&session->operator_cancelled, 1);
    g_cancellable_cancel(session->cancel);
}

static void enter(RmSession *session, RmState state)
{
    if (state == session->state)
        return;
    g_debug("%s -> %s", rm_state_name(session->state), rm_state_name(state));
    session->state = state;
    rm_reporter_state(session->reporter, state);
    rm_fault_state(rm_state_name(state));
}

gboolean rm_session_event(RmSession *session, RmEvent event, GError **error)
{
    const RmTransition *row = rm_table_step(RM_SIDE_SOURCE, session->state, event);
    g_assert(row != NULL);
    if (!rm_record(session, row, error))
        return FALSE;
    enter(session, row->to);
    return TRUE;
}

/* The last event. A record that fails is only warned of: whoever settles the session by the one before does
 * again what has been done, without harm. */
static void end_by(RmSession *session, RmEvent event)
{
    g_autoptr(GError) problem = NULL;
    if (rm_session_event(session, event, &problem))
        return;
    rm_reporter_warning(session->reporter, RM_REASON_JOURNAL, problem->message);
    enter(session, rm_table_step(RM_SIDE_SOURCE, session->state, event)->to);
}

gboolean rm_session_check(RmSession *session, GError **error)
{
    /* The operator's wish first: what breaks on the way to fulfilling it is not the reason. */
    if (g_atomic_int_get(&session->operator_cancelled))
        return rm_fail(error, RM_REASON_CANCELLED, "cancelled by the operator");
    if (g_atomic_int_get(&session->pause_exceeded))
        return rm_fail(
            error, RM_REASON_MAX_PAUSE,
            "the guest was not handed over within %.1f s of its pause and runs on here; allow more "
            "with --max-pause",
            (double)session->options->max_pause_ms / 1000);
    return session->control == NULL || rm_control_error(session->control, error);
}

/* ---- the steps before pre-copy ---- */

static gboolean open_guest(RmSession *session, GError **error)
{
    RmKernel kernel;
    if (!rm_kernel_probe(&kernel, error) || !rm_kernel_require_uffd_async(&kernel, error))
        return FALSE;
    session->guest = rm_guest_qemu_new(session->options->qmp, QMP_TIMEOUT_MS, session->cancel, error);
    if (session->guest == NULL || !session->guest->ops->describe(session->guest, &session->info, error))
        return FALSE;
    rm_reporter_set_guest(session->reporter, session->info->name);
    return rm_earlier_check(session->info->pid, error);
}

static gboolean preflight(RmSession *session, GError **error)
{
    const RmGuestOps *ops = session->guest->ops;
    RmGuestRun run;
    if (!ops->run_state(session->guest, &run, error))
        return FALSE;
    session->was_running = run == RM_GUEST_RUNNING;
    if (!ops->blocks(session->guest, FALSE, &session->blocks, error) ||
        !ops->preflight(session->guest, session->blocks, &session->options->preflight, error))
        return FALSE;
    return rm_negotiate(session, error);
}

/* A guest that may punch holes is read with care: see round.c. */
static gboolean watch_punches(RmSession *session, GError **error)
{
    const char *device = session->guest->ops->puncher(session->guest);
    if (device == NULL)
        return TRUE;
    g_message("%s can give RAM back to the host at any time: RAM is sent from copies, and what is given back "
              "is watched",
              device);
    session->watches = g_ptr_array_new_with_free_func((GDestroyNotify)rm_punch_watch_free);
    for (guint i = 0; i < session->blocks->len; i++) {
        RmPunchWatch *watch = rm_punch_watch_new(session->blocks->pdata[i], error);
        if (watch == NULL)
            return FALSE;
        g_ptr_array_add(session->watches, watch);
    }
    return TRUE;
}

static gboolean attach(RmSession *session, GError **error)
{
    if (!watch_punches(session, error) || !rm_negotiate_data(session, error))
        return FALSE;
    rm_rounds_init(session);
    if (session->options->pin_all)
        rm_sender_pin_all(session->sender);
    int64_t begin = g_get_monotonic_time();
    session->tracker = rm_tracker_uffd_async_new(session->info->pid, session->blocks);
    if (!session->tracker->ops->arm(session->tracker, error))
        return FALSE;
    session->metrics.attach_us = g_get_monotonic_time() - begin;
    g_debug("tracker %s armed in %.1f ms", session->tracker->ops->name,
            (double)session->metrics.attach_us / 1000);
    return TRUE;
}

static gboolean run_steps(RmSession *session, GError **error)
{
    rm_reporter_state(session->reporter, RM_STATE_CONNECTING);
    rm_fault_state(rm_state_name(RM_STATE_CONNECTING));
    if (!open_guest(session, error) || !rm_negotiate_connect(session, error) ||
        !rm_session_event(session, RM_EVENT_CONNECTED, error))
        return FALSE;
    if (!preflight(session, error))
        return FALSE;
    if (session->options->dry_run)
        return TRUE;
    return rm_session_event(session, RM_EVENT_ACCEPTED, error) && rm_guard_source_start(session, error) &&
           attach(session, error) && rm_session_event(session, RM_EVENT_ARMED, error) &&
           rm_converge_precopy(session, error) && rm_switchover_run(session, error);
}

/* ---- the end ---- */

/* The word that started it all: when a data channel breaks, the control channel often knows why, a moment
 * later. */
static void find_root_cause(RmSession *session, GError **error)
{
    g_autoptr(GError) cause = NULL;
    RmReason reason = rm_error_reason(*error);
    gboolean symptom =
        reason == RM_REASON_CANCELLED || reason == RM_REASON_TRANSPORT || reason == RM_REASON_PEER_LOST;
    if (!symptom || session->state >= RM_STATE_COMMITTED)
        return;
    for (int i = 0; i < ROOT_CAUSE_WAIT_MS / 10 && session->control != NULL; i++) {
        if (!rm_session_check(session, &cause)) {
            g_clear_error(error);
            g_propagate_error(error, g_steal_pointer(&cause));
            return;
        }
        g_usleep(10000);
    }
}

static void tell_peer(RmSession *session, const GError *problem)
{
    if (session->control == NULL)
        return;
    rm_control_expect_end(session->control);
    if (problem != NULL) {
        json_object *message = rm_json_message(RM_MSG_CANCEL);
        rm_json_add_string(message, "reason", rm_reason_name(rm_error_reason(problem)));
        rm_json_add_string(message, "detail", problem->message);
        rm_control_send(session->control, message, NULL);
    } else {
        rm_control_send(session->control, rm_json_message(RM_MSG_BYE), NULL);
    }
}

/* What a session comes to that fails. After `commit` the destination's word says it; before, the guest is
 * ours, whatever reason a peer may name. */
static RmEvent failure_event(const RmSession *session, RmReason reason)
{
    if (session->state == RM_STATE_COMMITTED)
        return session->verdict;
    return reason == RM_REASON_CANCELLED ? RM_EVENT_CANCELLED : RM_EVENT_FAILED;
}

const char *rm_session_guest_name(const RmSession *session)
{
    return session->info != NULL && *session->info->name != '\0' ? session->info->name
                                                                 : session->options->qmp;
}

static char *source_whereabouts(RmSession *session)
{
    if (session->guest == NULL)
        return g_strdup_printf("guest %s was not touched", rm_session_guest_name(session));
    return rm_settle_whereabouts(session->guest, rm_session_guest_name(session));
}

/* The guest is the destination's. Its old QEMU is ended, unless it was to be kept, or may yet be needed. */
static void end_source(RmSession *session, RmResult *result)
{
    g_autoptr(GError) problem = NULL;
    int pid = (int)session->info->pid;
    if (session->verdict == RM_EVENT_FATE_COMMITTED)
        result->detail =
            g_strdup_printf("the destination has taken the guest over, and did not say that it runs; the old "
                            "QEMU (pid %d) was left paused here",
                            pid);
    else if (!session->options->keep_source && !session->guest->ops->quit(session->guest, &problem))
        result->detail = g_strdup_printf("the guest moved, but its old QEMU (pid %d) did not end: %s", pid,
                                         problem->message);
    if (result->detail == NULL)
        return;
    result->reason = RM_REASON_CLEANUP;
    result->next = session->verdict == RM_EVENT_FATE_COMMITTED
                       ? g_strdup_printf("rdmamig resolve %s", session->id)
                       : g_strdup_printf("kill %d", pid);
    result->exit_status = 6;
}

static void end_well(RmSession *session, RmResult *result)
{
    gboolean runs = rm_record_runs(session);
    result->where = g_strdup_printf("guest %s %s on %s", rm_session_guest_name(session),
                                    runs ? "runs" : "is paused", session->options->host);
    result->transport = g_strdup(session->transport->name);
    tell_peer(session, NULL);
    rm_session_end_data(session);
    rm_tracker_free(g_steal_pointer(&session->tracker));
    /* Before the old VMM is ended: should we die in between, whoever settles the session ends it. */
    end_by(session, session->verdict);
    end_source(session, result);
}

/* The guest runs again before anything else is tidied or found out. */
static void end_badly(RmSession *session, RmResult *result, GError **error)
{
    static const int exits[] = {
        [RM_STATE_REFUSED] = 3, [RM_STATE_FAILED] = 1, [RM_STATE_CANCELLED] = 4, [RM_STATE_DOUBTFUL] = 5};
    g_autoptr(GError) resume_problem = NULL;
    gboolean as_before = TRUE;
    const RmTransition *row =
        rm_table_step(RM_SIDE_SOURCE, session->state, failure_event(session, rm_error_reason(*error)));
    if ((row->duties & RM_DUTY(RESUME)) != 0 && !rm_switchover_roll_back(session, &resume_problem)) {
        as_before = rm_error_reason(resume_problem) == RM_REASON_CLEANUP;
        rm_reporter_warning(session->reporter, RM_REASON_RESUME, resume_problem->message);
    }
    find_root_cause(session, error);
    const GError *problem = *error;
    RmEvent event = failure_event(session, rm_error_reason(problem));
    tell_peer(session, problem);
    rm_session_end_data(session);
    rm_tracker_free(g_steal_pointer(&session->tracker));
    if (as_before)
        end_by(session, event);
    else /* not recorded: it is still to be rolled back, by `resolve` */
        enter(session, rm_table_step(RM_SIDE_SOURCE, session->state, event)->to);
    RmState state = session->state;
    result->reason = rm_error_reason(problem);
    result->detail = rm_printable(problem->message, DETAIL_MAX); /* parts of it are other people's words */
    result->exit_status = exits[state];
    result->where = source_whereabouts(session);
    if (state == RM_STATE_DOUBTFUL) {
        g_free(result->where);
        result->where =
            g_strdup_printf("guest %s is paused on %s, and may run on %s", rm_session_guest_name(session),
                            g_get_host_name(), session->options->host);
        result->next = g_strdup_printf("rdmamig resolve %s", session->id);
    } else if (!as_before) {
        result->next = g_strdup_printf("rdmamig resolve %s", session->id);
    }
}

static void end_dry_run(RmSession *session, RmResult *result)
{
    result->dry_run = TRUE;
    result->transport = g_strdup(session->transport->name);
    result->where = source_whereabouts(session);
    tell_peer(session, NULL);
    end_by(session, RM_EVENT_CHECKED);
}

/* While the guest is looked at. Nothing but what negotiation asks, and waits, for as well: a device that
 * hangs must not keep a session that has no use for it from its end. */
static gpointer probe_transports(gpointer data)
{
    const RmSession *session = data;
    rm_transports_probe(session->options->transport);
    return NULL;
}

void rm_session_run(RmSession *session, RmResult *ret_result)
{
    RmResult result = {0};
    GError *problem = NULL;
    GThread *probe = g_thread_new("probe", probe_transports, session);
    gboolean ok = run_steps(session, &problem);
    g_thread_join(probe);
    if (!ok) {
        end_badly(session, &result, &problem);
    } else if (session->options->dry_run) {
        end_dry_run(session, &result);
    } else {
        end_well(session, &result);
    }
    rm_guardian_end(g_steal_pointer(&session->guardian)); /* after the last deed: until then it would do it */
    g_clear_error(&problem);
    char *where = rm_printable(result.where, DETAIL_MAX); /* a guest's name is its owner's choice */
    g_free(result.where);
    result.where = where;
    /* Taken over, without word that it runs: moved, for all that can be said here. The journal keeps
     * `committed`, by which the old VMM is kept. */
    result.state = session->state == RM_STATE_COMMITTED ? RM_STATE_DONE : session->state;
    result.owner = result.dry_run ? RM_OWNER_SOURCE : rm_state_owner(session->state);
    if (session->metrics.total_us == 0)
        session->metrics.total_us = g_get_monotonic_time() - session->metrics.start_us;
    session->metrics.cpu_s = rm_cpu_seconds() - session->metrics.start_cpu_s;
    *ret_result = result;
}
