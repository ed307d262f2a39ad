/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Saving and loading device state.
 *
 * QEMU gets one end of a pipe by getfd and migrates to, or from, `fd:`; a thread of ours is at the other end
 * (pump.h). With x-ignore-shared on, the stream is the devices' state and the RAM blocks that are not shared.
 * exec: would need a shell inside QEMU's sandbox, and a unix socket a file name both can reach; a descriptor
 * needs neither.
 */
#include "guest/qemu/state.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

#define FD_NAME "rdmamig-state"
#define QUICK_POLLS 100 /* of 1 ms: the guest stands still meanwhile; then every 10 ms */
#define WAKE_MS 100     /* how long what should tell the end is trusted to, before QEMU is asked */

gboolean rm_state_query_run(RmQmp *qmp, char **ret_status, GError **error)
{
    rm_autojson reply = NULL;
    json_object *body;
    const char *status;
    if (!rm_qmp_run(qmp, "query-status", NULL, &reply, error) ||
        !rm_json_object(reply, "return", &body, error) || !rm_json_string(body, "status", &status, error))
        return FALSE;
    *ret_status = g_strdup(status);
    return TRUE;
}

static gboolean is_final(const char *status)
{
    static const char *const final[] = {"none", "completed", "failed", "cancelled"};
    for (size_t i = 0; i < G_N_ELEMENTS(final); i++) {
        if (strcmp(status, final[i]) == 0)
            return TRUE;
    }
    return FALSE;
}

/* query-migrate: status and, if it failed, QEMU's words; caller frees both. *ret_reply may be NULL. */
static gboolean query(RmQmp *qmp, char **ret_status, char **ret_words, json_object **ret_reply,
                      GError **error)
{
    rm_autojson reply = NULL;
    json_object *body;
    const char *status = "none", *words = "QEMU gives no reason; its log may";
    if (!rm_qmp_run(qmp, "query-migrate", NULL, &reply, error) ||
        !rm_json_object(reply, "return", &body, error) ||
        !rm_json_string_opt(body, "status", &status, error) ||
        !rm_json_string_opt(body, "error-desc", &words, error))
        return FALSE;
    *ret_status = g_strdup(status);
    *ret_words = g_strdup(words);
    if (ret_reply != NULL)
        *ret_reply = g_steal_pointer(&reply);
    return TRUE;
}

gboolean rm_state_query_migration(RmQmp *qmp, gboolean *ret_active, char **ret_status,
                                  json_object **ret_reply, GError **error)
{
    g_autofree char *words = NULL;
    if (!query(qmp, ret_status, &words, ret_reply, error))
        return FALSE;
    *ret_active = !is_final(*ret_status);
    return TRUE;
}

/* Whether an event has told that a migration of this QEMU is over, well or not. Its own word for "completed"
 * is not sent before the run state is final. */
static gboolean saw_end(RmQmp *qmp)
{
    json_object *event, *data;
    for (guint n = 0; (event = rm_qmp_peek_event(qmp, n)) != NULL; n++) {
        const char *name = "", *status = "none";
        if (rm_json_string(event, "event", &name, NULL) && strcmp(name, "MIGRATION") == 0 &&
            rm_json_object(event, "data", &data, NULL) && rm_json_string(data, "status", &status, NULL) &&
            is_final(status) && strcmp(status, "none") != 0)
            return TRUE;
    }
    return FALSE;
}

static gboolean await_event(RmQmp *qmp, unsigned ms, GError **error)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)ms * 1000;
    for (gint64 left; !saw_end(qmp) && (left = deadline - g_get_monotonic_time()) > 0;) {
        if (!rm_qmp_wait(qmp, (unsigned)((left + 999) / 1000), error))
            return FALSE;
    }
    return TRUE;
}

/* What is waited for before QEMU is asked the nth time. Something tells the end sooner than asking would,
 * and disturbs less: an outgoing stream's end of file, which comes when QEMU has cleaned up; an incoming
 * migration's event. A question is a question all the same if neither comes. */
static gboolean wait_a_while(RmQmp *qmp, RmPump *reader, gboolean incoming, unsigned n, GError **error)
{
    static const unsigned short_ms = 1, long_ms = 10;
    if (reader != NULL && !rm_pump_wait(reader, 0)) {
        rm_pump_wait(reader, WAKE_MS);
        return TRUE;
    }
    if (incoming && !saw_end(qmp))
        return await_event(qmp, WAKE_MS, error);
    /* the first question at once */
    return n == 0 || rm_qmp_wait(qmp, n < QUICK_POLLS ? short_ms : long_ms, error);
}

/* Waits until the migration is over. `reader`: of an outgoing one's stream, or NULL. *ret_status is
 * "completed", "failed", …; both for the caller to free. */
static gboolean wait_final(RmQmp *qmp, RmPump *reader, gboolean incoming, char **ret_status, char **ret_words,
                           GError **error)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)rm_qmp_timeout_ms(qmp) * 1000;
    for (unsigned n = 0;; n++) {
        g_autofree char *status = NULL, *words = NULL;
        if (!wait_a_while(qmp, reader, incoming, n, error) || !query(qmp, &status, &words, NULL, error))
            return FALSE;
        /* "none" right after the command: QEMU has not begun yet */
        if (is_final(status) && strcmp(status, "none") != 0) {
            *ret_status = g_steal_pointer(&status);
            *ret_words = g_steal_pointer(&words);
            return TRUE;
        }
        if (g_get_monotonic_time() > deadline)
            return rm_fail(error, RM_REASON_QMP_UNREACHABLE,
                           "QEMU's migration was still in state \"%s\" after %u ms", status,
                           rm_qmp_timeout_ms(qmp));
    }
}

static gboolean give_fd(RmQmp *qmp, int fd, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "fdname", FD_NAME);
    return rm_qmp_run_with_fd(qmp, fd, "getfd", arguments, error);
}

RmPump *rm_state_pipe(RmQmp *qmp, gboolean incoming, GError **error)
{
    rm_autofd theirs = -1;
    g_autoptr(RmPump) pump = incoming ? rm_pump_writer(&theirs, error) : rm_pump_reader(&theirs, error);
    if (pump == NULL || !give_fd(qmp, theirs, error))
        return NULL;
    /* ours of `theirs` goes, so that the stream ends when QEMU closes its copy */
    return g_steal_pointer(&pump);
}

/* Keeps cancelled and guest-gone; everything else becomes `reason`. Always FALSE. */
static gboolean fail_as(RmReason reason, const char *prefix, GError *problem, GError **error)
{
    RmReason own = rm_error_reason(problem);
    if (own == RM_REASON_CANCELLED || own == RM_REASON_GUEST_GONE)
        reason = own;
    rm_fail(error, reason, "%s: %s", prefix, problem->message);
    g_error_free(problem);
    return FALSE;
}

static gboolean run_save(RmQmp *qmp, RmPump *pump, GByteArray **ret_state, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "uri", "fd:" FD_NAME);
    g_autofree char *status = NULL, *words = NULL;
    if (!rm_qmp_run(qmp, "migrate", arguments, NULL, error) ||
        !wait_final(qmp, pump, FALSE, &status, &words, error))
        return FALSE;
    if (strcmp(status, "completed") != 0)
        return rm_fail(error, RM_REASON_STATE_SAVE, "migration %s: %s", status, words);
    if (!rm_pump_finish(pump, rm_qmp_timeout_ms(qmp), error))
        return FALSE;
    *ret_state = rm_pump_steal(pump);
    return TRUE;
}

gboolean rm_state_save(RmQmp *qmp, RmPump *pump, GByteArray **ret_state, GError **error)
{
    GError *problem = NULL;
    return run_save(qmp, pump, ret_state, &problem) ||
           fail_as(RM_REASON_STATE_SAVE, "cannot save the device state", problem, error);
}

/* Takes back a descriptor that QEMU was given and did not come to use; an error says that there is none. A
 * getfd without one takes what came with the first bytes of an earlier getfd whose sender died before the
 * last: it lies in QEMU for whoever asks next. */
void rm_state_take_back(RmQmp *qmp)
{
    static const char *const commands[] = {"getfd", "closefd"};
    for (size_t i = 0; i < G_N_ELEMENTS(commands); i++) {
        json_object *arguments = json_object_new_object();
        rm_json_add_string(arguments, "fdname", FD_NAME);
        rm_qmp_run(qmp, commands[i], arguments, NULL, NULL);
    }
}

gboolean rm_state_cancel(RmQmp *qmp, GError **error)
{
    gboolean active;
    g_autofree char *status = NULL, *end = NULL, *words = NULL;
    if (!rm_state_query_migration(qmp, &active, &status, NULL, error))
        return FALSE;
    g_debug("roll-back: QEMU's migration is in state %s", status);
    if (active && (!rm_qmp_run(qmp, "migrate_cancel", NULL, NULL, error) ||
                   !wait_final(qmp, NULL, FALSE, &end, &words, error)))
        return FALSE;
    rm_state_take_back(qmp);
    return TRUE;
}

/* From 9.1 on QEMU can be told to survive a failed load, so that it can still say what was wrong. */
static json_object *incoming_arguments(RmQmp *qmp)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "uri", "fd:" FD_NAME);
    if (rm_qmp_version(qmp) >= RM_QEMU_VERSION(9, 1))
        rm_json_add_bool(arguments, "exit-on-error", FALSE);
    return arguments;
}

/* After the load: paused, and nothing else. One that runs holds the guest a second time, so it is stopped at
 * once. */
static gboolean check_paused(RmQmp *qmp, GError **error)
{
    g_autofree char *run = NULL;
    if (!rm_state_query_run(qmp, &run, error))
        return FALSE;
    if (strcmp(run, "paused") == 0)
        return TRUE;
    if (strcmp(run, "running") == 0)
        rm_qmp_run(qmp, "stop", NULL, NULL, NULL);
    return rm_fail(error, RM_REASON_STATE_LOAD, "QEMU is in state \"%s\" after loading, not \"paused\"", run);
}

static gboolean run_load(RmQmp *qmp, RmPump *pump, const uint8_t *state, gsize length, GError **error)
{
    g_autofree char *status = NULL, *words = NULL;
    if (!rm_pump_write(pump, state, length, error) ||
        !rm_qmp_run(qmp, "migrate-incoming", incoming_arguments(qmp), NULL, error) ||
        !wait_final(qmp, NULL, TRUE, &status, &words, error))
        return FALSE;
    if (strcmp(status, "completed") != 0)
        return rm_fail(error, RM_REASON_STATE_LOAD, "migration %s: %s", status, words);
    return rm_pump_finish(pump, rm_qmp_timeout_ms(qmp), error) && check_paused(qmp, error);
}

gboolean rm_state_load(RmQmp *qmp, RmPump *pump, const uint8_t *state, gsize length, GError **error)
{
    GError *problem = NULL;
    if (run_load(qmp, pump, state, length, &problem))
        return TRUE;
    /* Before 9.1 a QEMU whose load failed exits; only its own log knows why. */
    if (rm_error_reason(problem) == RM_REASON_GUEST_GONE) {
        g_error_free(problem);
        return rm_fail(
            error, RM_REASON_STATE_LOAD,
            "the destination's QEMU ended while it loaded the device state; see its stderr or log");
    }
    return fail_as(RM_REASON_STATE_LOAD, "the destination's QEMU did not load the device state", problem,
                   error);
}
