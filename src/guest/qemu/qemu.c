/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The QEMU provider: what the session asks of a guest, put to QMP.
 *
 * It owns one QMP connection for its life. What it has changed in QEMU (run state, migration vector) it
 * remembers here, so that resume() can take it back from any point; a new instance on a QEMU that an earlier
 * process left paused knows nothing of that, and resume() then goes by what QEMU says.
 */
#include "guest/guest.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/events.h"
#include "guest/qemu/facts.h"
#include "guest/qemu/fence.h"
#include "guest/qemu/preflight.h"
#include "guest/qemu/qmp.h"
#include "guest/qemu/ramblock.h"
#include "guest/qemu/state.h"
#include "guest/qemu/vector.h"
#include "guest/qemu/vmm.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OLDEST RM_QEMU_VERSION(6, 2) /* x-query-ramblock */
#define RETRY_MS 100

typedef struct {
    RmGuest base;
    RmQmp *qmp;
    pid_t pid;
    int pidfd;
    RmEvents events;
    RmVector found; /* the migration vector as it was before it was prepared */
    gboolean (*note)(gpointer data, json_object *found, GError **error); /* NULL: nobody wants it */
    gpointer note_data;
    RmPump *pump; /* our end of the state's pipe, from preparing to save() or load(); NULL: not prepared */
    gboolean fd_given;  /* the other end may lie with QEMU */
    gboolean saving;    /* the save's vector is set: what migrates now is ours, or goes by our settings */
    RmDevices *devices; /* as the preflight saw them; NULL before */
} RmQemu;

static RmQemu *qemu_of(RmGuest *guest)
{
    return (RmQemu *)((char *)guest - G_STRUCT_OFFSET(RmQemu, base));
}

static gboolean qemu_describe(RmGuest *guest, RmGuestInfo **ret_info, GError **error)
{
    RmQemu *self = qemu_of(guest);
    return rm_facts_describe(self->qmp, self->pid, ret_info, error);
}

static gboolean qemu_run_state(RmGuest *guest, RmGuestRun *ret_run, GError **error)
{
    RmQmp *qmp = qemu_of(guest)->qmp;
    g_autofree char *status = NULL;
    rm_qmp_shield(qmp, TRUE);
    gboolean ok = rm_state_query_run(qmp, &status, error);
    rm_qmp_shield(qmp, FALSE);
    if (!ok)
        return FALSE;
    *ret_run = rm_facts_run(status);
    return TRUE;
}

static gboolean qemu_blocks(RmGuest *guest, gboolean writable, GPtrArray **ret_blocks, GError **error)
{
    RmQemu *self = qemu_of(guest);
    return rm_ram_blocks(self->qmp, self->pid, writable, ret_blocks, error);
}

static gboolean qemu_preflight(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options,
                               GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_clear_pointer(&self->devices, rm_devices_free);
    return rm_preflight(self->qmp, self->pid, blocks, options, &self->devices, error);
}

static const char *qemu_puncher(RmGuest *guest)
{
    return rm_devices_puncher(qemu_of(guest)->devices);
}

static gboolean qemu_check_save(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    return rm_preflight_save(self->qmp, error);
}

static gboolean qemu_recheck(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options,
                             GError **error)
{
    RmQemu *self = qemu_of(guest);
    /* A destination that can't load the state, for the device that was added, ends the session meanwhile:
     * what is found here is the better word. */
    rm_qmp_shield(self->qmp, TRUE);
    gboolean ok = rm_preflight_recheck(self->qmp, self->pid, blocks, options, self->devices, error);
    rm_qmp_shield(self->qmp, FALSE);
    return ok;
}

static gboolean qemu_fence(RmGuest *guest, int64_t *ret_stall_us, GError **error)
{
    RmQemu *self = qemu_of(guest);
    return rm_fence(self->qmp, &self->events, ret_stall_us, error);
}

static gboolean qemu_poll(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    return rm_events_poll(&self->events, self->qmp, error);
}

/* What check_save() will ask is asked with the `stop` itself: QEMU answers one after the other, and the guest
 * stands still. */
static gboolean qemu_stop(RmGuest *guest, GError **error)
{
    static const char *const questions[] = {"query-status", "query-jobs", "query-block-exports"};
    RmQemu *self = qemu_of(guest);
    g_autofree char *before = NULL, *after = NULL;
    if (!rm_state_query_run(self->qmp, &before, error))
        return FALSE;
    gboolean runs = strcmp(before, "running") == 0;
    if (runs)
        rm_qmp_ahead(self->qmp, "stop", NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(questions); i++)
        rm_qmp_ahead(self->qmp, questions[i], NULL);
    if (runs) {
        self->events.own_stops++;
        if (!rm_qmp_run(self->qmp, "stop", NULL, NULL, error))
            return FALSE;
    }
    if (!rm_state_query_run(self->qmp, &after, error))
        return FALSE;
    return strcmp(after, "paused") == 0 ||
           rm_fail(error, RM_REASON_GUEST_STATE,
                   "the guest is in state \"%s\", not \"paused\", after stopping it", after);
}

static void qemu_set_note(RmGuest *guest, gboolean (*note)(gpointer data, json_object *found, GError **error),
                          gpointer data)
{
    RmQemu *self = qemu_of(guest);
    self->note = note;
    self->note_data = data;
}

/* What was noted may or may not have been changed, and the migration begun, before that process died:
 * resume() treats both as done. */
static void qemu_recall(RmGuest *guest, json_object *found)
{
    RmQemu *self = qemu_of(guest);
    rm_vector_clear(&self->found);
    self->saving = self->fd_given = found != NULL;
    if (found != NULL)
        rm_vector_from_json(found, &self->found);
}

static gboolean note_found(RmQemu *self, GError **error)
{
    rm_autojson found = rm_vector_to_json(&self->found);
    return self->note == NULL || self->note(self->note_data, found, error);
}

/* Nothing is changed before it has been noted how it was. */
static gboolean prepare(RmQemu *self, gboolean incoming, GError **error)
{
    g_auto(RmVector) wanted = {0};
    if (!rm_vector_compare(self->qmp, incoming, &wanted, &self->found, error) || !note_found(self, error) ||
        !rm_vector_set(self->qmp, &wanted, error))
        return FALSE;
    self->saving = !incoming;
    self->fd_given = TRUE;
    self->pump = rm_state_pipe(self->qmp, incoming, error);
    return self->pump != NULL;
}

/* The guest may run meanwhile, which the vector does not touch: it is about migrations that begin after it.
 * Somebody's own that is under way refuses ours, and goes on. One that somebody begins now would leave the
 * RAM out (x-ignore-shared): since QEMU has one at a time it makes save() fail, and is ended with the
 * roll-back. */
static gboolean qemu_prepare_save(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_autoptr(GError) problem = NULL;
    if (self->pump != NULL)
        return TRUE;
    if (!rm_preflight_prepare(self->qmp, error))
        return FALSE;
    if (!prepare(self, FALSE, &problem)) {
        RmReason reason =
            rm_error_reason(problem) == RM_REASON_QMP_ERROR ? RM_REASON_STATE_SAVE : rm_error_reason(problem);
        return rm_fail(error, reason, "cannot prepare QEMU's migration: %s", problem->message);
    }
    rm_fault_pause("save-prepared");
    return TRUE;
}

static gboolean qemu_save(RmGuest *guest, GByteArray **ret_state, GError **error)
{
    RmQemu *self = qemu_of(guest);
    if (!qemu_prepare_save(guest, error))
        return FALSE;
    g_autoptr(RmPump) pump = g_steal_pointer(&self->pump);
    if (!rm_state_save(self->qmp, pump, ret_state, error))
        return FALSE;
    self->fd_given = FALSE;
    return TRUE;
}

/* What was prepared and not used goes, too. */
static void put_back(RmQemu *self, GError **error)
{
    g_clear_pointer(&self->pump, rm_pump_free);
    if (self->fd_given)
        rm_state_take_back(self->qmp);
    self->fd_given = FALSE;
    if (!rm_vector_restore(self->qmp, &self->found, error))
        g_prefix_error(error, "QEMU's migration capabilities could not be put back: ");
}

static void qemu_put_back(RmGuest *guest)
{
    RmQemu *self = qemu_of(guest);
    g_autoptr(GError) leftover = NULL;
    /* At the destination the guest may be ours by now, whoever has hung up. */
    rm_qmp_shield(self->qmp, TRUE);
    if (rm_qmp_reconnect(self->qmp, &leftover))
        put_back(self, &leftover);
    rm_qmp_shield(self->qmp, FALSE);
    if (leftover != NULL)
        g_warning("%s", leftover->message);
}

/* Whether `cont` is due in QEMU's state `status`; FALSE if it must not be sent. */
typedef gboolean (*MayRun)(RmQemu *self, const char *status, gboolean *ret_due, GError **error);

static gboolean stopped_by_itself(const char *status, GError **error)
{
    return rm_fail(error, RM_REASON_RESUME,
                   "the guest stopped by itself (QEMU's state is \"%s\") and was left so", status);
}

/* At the source, in a roll-back: what we have stopped or saved. */
static gboolean may_resume(RmQemu *self, const char *status, gboolean *ret_due, GError **error)
{
    static const char *const ours[] = {"paused", "postmigrate", "finish-migrate", "prelaunch"};
    *ret_due = FALSE;
    if (strcmp(status, "running") == 0)
        return TRUE;
    if (strcmp(status, "paused") == 0 && self->events.paused_by_other)
        return TRUE; /* whoever paused it wants it paused */
    for (size_t i = 0; i < G_N_ELEMENTS(ours); i++)
        *ret_due |= strcmp(status, ours[i]) == 0;
    return *ret_due || stopped_by_itself(status, error);
}

/* At the destination, where this may come late, and again: only what is as a load leaves it. A guest that has
 * been saved since, by whoever moved it on, runs elsewhere, and letting it run here makes two. One that still
 * waits to be loaded would start by itself as soon as it is, whatever becomes of its session. In any other
 * state it has run, and stopped for a reason of its own. */
static gboolean may_activate(G_GNUC_UNUSED RmQemu *self, const char *status, gboolean *ret_due,
                             GError **error)
{
    static const char *const moved_on[] = {"postmigrate", "finish-migrate", "colo"};
    *ret_due = strcmp(status, "paused") == 0;
    if (*ret_due || strcmp(status, "running") == 0)
        return TRUE;
    for (size_t i = 0; i < G_N_ELEMENTS(moved_on); i++) {
        if (strcmp(status, moved_on[i]) == 0)
            return rm_fail(error, RM_REASON_RESUME, "it has been moved on since (QEMU's state is \"%s\")",
                           status);
    }
    if (rm_facts_run(status) == RM_GUEST_WAITING)
        return rm_fail(error, RM_REASON_RESUME, "nothing has been loaded (QEMU's state is \"%s\")", status);
    return stopped_by_itself(status, error);
}

/* `cont` fails as long as somebody that is still ending holds the disks' locks: try again within the time,
 * and look again before each try. */
static gboolean let_run(RmQemu *self, MayRun may_run, GError **error)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)rm_qmp_timeout_ms(self->qmp) * 1000;
    for (;;) {
        g_autoptr(GError) problem = NULL;
        g_autofree char *before = NULL, *after = NULL;
        gboolean due = FALSE;
        if (!rm_state_query_run(self->qmp, &before, error) || !may_run(self, before, &due, error))
            return FALSE;
        if (!due)
            return TRUE;
        self->events.own_resumes++;
        if (rm_qmp_run(self->qmp, "cont", NULL, NULL, &problem)) {
            if (!rm_state_query_run(self->qmp, &after, error))
                return FALSE;
            if (strcmp(after, "running") == 0)
                return TRUE;
            return rm_fail(error, RM_REASON_RESUME, "the guest is in state \"%s\" after cont", after);
        }
        self->events.own_resumes--;
        if (rm_error_reason(problem) != RM_REASON_QMP_ERROR || g_get_monotonic_time() > deadline) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        g_usleep(RETRY_MS * 1000);
    }
}

/* A paused guest whose state was saved stays in postmigrate: QEMU knows no way from there to "paused" but
 * through running it. `cont` continues it as from a pause. Its disks come back now where QEMU can do that
 * (10.0), else with that `cont`. */
static gboolean keep_paused(RmQemu *self, GError **error)
{
    g_autofree char *status = NULL;
    gboolean can = FALSE;
    if (!rm_state_query_run(self->qmp, &status, error))
        return FALSE;
    if (strcmp(status, "postmigrate") != 0)
        return TRUE;
    if (!rm_qmp_has(self->qmp, "blockdev-set-active", &can, error))
        return FALSE;
    if (!can)
        return TRUE;
    json_object *arguments = json_object_new_object();
    rm_json_add_bool(arguments, "active", TRUE);
    return rm_qmp_run(self->qmp, "blockdev-set-active", arguments, NULL, error);
}

static gboolean roll_back(RmQemu *self, gboolean run, GError **error)
{
    g_autoptr(GError) ignored = NULL;
    if (!rm_qmp_reconnect(self->qmp, error))
        return FALSE;
    rm_events_poll(&self->events, self->qmp,
                   &ignored); /* who paused it last; what else happened shows in its state */
    /* Only ours: an operator's own migration, which made the preflight refuse, goes on. */
    if (self->saving && !rm_state_cancel(self->qmp, error))
        return FALSE;
    self->saving = self->fd_given = FALSE;
    return run ? let_run(self, may_resume, error) : keep_paused(self, error);
}

static gboolean qemu_resume(RmGuest *guest, gboolean run, GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_autoptr(GError) problem = NULL, leftover = NULL;
    g_clear_pointer(&self->pump, rm_pump_free); /* its stream has no reader now */
    rm_qmp_shield(self->qmp, TRUE);
    gboolean ok = roll_back(self, run, &problem);
    put_back(self, &leftover);
    rm_qmp_shield(self->qmp, FALSE);
    if (!ok) {
        RmReason reason =
            rm_error_reason(problem) == RM_REASON_GUEST_GONE ? RM_REASON_GUEST_GONE : RM_REASON_RESUME;
        return rm_fail(error, reason, "cannot roll the guest back: %s", problem->message);
    }
    if (leftover != NULL)
        return rm_fail(error, RM_REASON_CLEANUP, "the guest is as it was, but %s", leftover->message);
    return TRUE;
}

static gboolean qemu_prepare_load(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_autofree char *status = NULL;
    g_autoptr(GError) problem = NULL;
    if (self->pump != NULL)
        return TRUE;
    if (!rm_state_query_run(self->qmp, &status, error))
        return FALSE;
    if (rm_facts_run(status) != RM_GUEST_WAITING)
        return rm_fail(
            error, RM_REASON_GUEST_STATE,
            "the destination's QEMU is in state \"%s\": it must wait for a migration (-incoming defer)",
            status);
    return prepare(self, TRUE, &problem) ||
           rm_fail(error, RM_REASON_STATE_LOAD, "cannot prepare the destination's QEMU: %s",
                   problem->message);
}

static gboolean qemu_load(RmGuest *guest, const uint8_t *state, gsize length, GError **error)
{
    RmQemu *self = qemu_of(guest);
    if (!qemu_prepare_load(guest, error))
        return FALSE;
    g_autoptr(RmPump) pump = g_steal_pointer(&self->pump);
    if (!rm_state_load(self->qmp, pump, state, length, error))
        return FALSE;
    self->fd_given = FALSE;
    return TRUE;
}

/* Best effort: QEMU announced by itself on cont; this covers switches that lost the first. */
static void announce(RmQemu *self)
{
    static const struct {
        const char *name;
        uint64_t value;
    } schedule[] = {{"initial", 50}, {"max", 550}, {"rounds", 5}, {"step", 100}}; /* ms, QEMU's defaults */
    g_autoptr(GError) problem = NULL;
    json_object *arguments = json_object_new_object();
    for (size_t i = 0; i < G_N_ELEMENTS(schedule); i++)
        rm_json_add_uint(arguments, schedule[i].name, schedule[i].value);
    if (!rm_qmp_run(self->qmp, "announce-self", arguments, NULL, &problem))
        g_debug("announce-self: %s", problem->message);
}

static gboolean qemu_activate(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_autoptr(GError) problem = NULL;
    /* The destination owns the guest: a cancellation comes too late for it. */
    rm_qmp_shield(self->qmp, TRUE);
    gboolean ok = rm_qmp_reconnect(self->qmp, &problem) && let_run(self, may_activate, &problem);
    if (ok)
        announce(self);
    rm_qmp_shield(self->qmp, FALSE);
    if (ok)
        return TRUE;
    RmReason reason =
        rm_error_reason(problem) == RM_REASON_GUEST_GONE ? RM_REASON_GUEST_GONE : RM_REASON_RESUME;
    return rm_fail(error, reason, "the guest does not run at the destination: %s", problem->message);
}

static gboolean qemu_quit(RmGuest *guest, GError **error)
{
    RmQemu *self = qemu_of(guest);
    g_autoptr(GError) problem = NULL;
    rm_qmp_shield(self->qmp, TRUE);
    gboolean asked =
        rm_vmm_wait_end(self->pidfd, 0) ||
        (rm_qmp_reconnect(self->qmp, &problem) && rm_qmp_run(self->qmp, "quit", NULL, NULL, &problem)) ||
        rm_error_reason(problem) == RM_REASON_GUEST_GONE;
    rm_qmp_shield(self->qmp, FALSE);
    if (rm_vmm_wait_end(self->pidfd, rm_qmp_timeout_ms(self->qmp)))
        return TRUE;
    return rm_fail(error, RM_REASON_CLEANUP, "QEMU (pid %d) did not end within %u ms%s%s: end it by hand",
                   (int)self->pid, rm_qmp_timeout_ms(self->qmp), asked ? "" : ": ",
                   asked ? "" : problem->message);
}

static int qemu_connection(RmGuest *guest)
{
    return rm_qmp_fd(qemu_of(guest)->qmp);
}

static void qemu_free(RmGuest *guest)
{
    RmQemu *self = qemu_of(guest);
    rm_qmp_free(self->qmp);
    rm_pump_free(self->pump);
    rm_fd_clear(&self->pidfd);
    rm_vector_clear(&self->found);
    g_clear_pointer(&self->devices, rm_devices_free);
    g_free(self);
}

static const RmGuestOps qemu_ops = {
    .name = "qemu",
    .describe = qemu_describe,
    .run_state = qemu_run_state,
    .blocks = qemu_blocks,
    .preflight = qemu_preflight,
    .puncher = qemu_puncher,
    .check_save = qemu_check_save,
    .recheck = qemu_recheck,
    .fence = qemu_fence,
    .poll = qemu_poll,
    .stop = qemu_stop,
    .prepare_save = qemu_prepare_save,
    .save = qemu_save,
    .put_back = qemu_put_back,
    .set_note = qemu_set_note,
    .recall = qemu_recall,
    .resume = qemu_resume,
    .prepare_load = qemu_prepare_load,
    .load = qemu_load,
    .activate = qemu_activate,
    .quit = qemu_quit,
    .connection = qemu_connection,
    .free = qemu_free,
};

/* Takes `qmp`. */
static RmGuest *guest_on(RmQmp *qmp, pid_t pid, GError **error)
{
    g_autoptr(RmQmp) owned = qmp;
    rm_autofd pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        rm_set_errno(error, errno == ESRCH ? RM_REASON_GUEST_GONE : RM_REASON_INTERNAL, errno,
                     "cannot watch QEMU (pid %d)", (int)pid);
        return NULL;
    }
    RmQemu *self = g_new0(RmQemu, 1);
    self->base.ops = &qemu_ops;
    self->qmp = g_steal_pointer(&owned);
    self->pid = pid;
    self->pidfd = rm_fd_steal(&pidfd);
    return &self->base;
}

RmGuest *rm_guest_qemu_new(const char *path, unsigned timeout_ms, GCancellable *cancellable, GError **error)
{
    g_autoptr(RmQmp) qmp = rm_qmp_new(path, timeout_ms, cancellable, error);
    pid_t thread, pid;
    if (qmp == NULL)
        return NULL;
    if (rm_qmp_version(qmp) < OLDEST) {
        rm_fail(error, RM_REASON_QEMU_VERSION, "QEMU %s is too old: rdmamig needs 6.2 or newer",
                rm_qmp_version_text(qmp));
        return NULL;
    }
    if (!rm_facts_vcpu_thread(qmp, &thread, error) || !rm_vmm_find(rm_qmp_peer(qmp), thread, &pid, error))
        return NULL;
    return guest_on(g_steal_pointer(&qmp), pid, error);
}

/* The process that died may have connected anew since `fd` was inherited; then that one is closed, and QEMU
 * is free for the next client. */
RmGuest *rm_guest_qemu_adopt(int fd, const char *path, pid_t pid, unsigned timeout_ms, GError **error)
{
    g_autoptr(GError) problem = NULL;
    RmQmp *qmp = rm_qmp_adopt(fd, path, timeout_ms, &problem);
    if (qmp != NULL)
        return guest_on(qmp, pid, error);
    g_debug("the connection that was inherited is of no use: %s", problem->message);
    g_autoptr(RmGuest) guest = rm_guest_qemu_new(path, timeout_ms, NULL, error);
    if (guest == NULL || qemu_of(guest)->pid == pid)
        return g_steal_pointer(&guest);
    rm_fail(error, RM_REASON_GUEST_GONE, "QEMU (pid %d) has ended: another one answers on %s", (int)pid,
            path);
    return NULL;
}
