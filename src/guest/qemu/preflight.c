/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The preflight: a list of checks, each a question to QEMU or the kernel, in the order in which their answers
 * are of use: what the operator can mend without restarting the guest comes last.
 */
#include "guest/qemu/preflight.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/facts.h"
#include "guest/qemu/qom.h"
#include "guest/qemu/ramblock.h"
#include "guest/qemu/state.h"
#include "guest/qemu/writers.h"

#include <string.h>

typedef struct {
    RmQmp *qmp;
    pid_t pid;
    GPtrArray *blocks;
    const RmPreflightOptions *options;
} Context;

static const struct {
    const char *status;
    const char *words;
} bad_states[] = {
    {"debug", "is stopped by a debugger: let it continue first"},
    {"inmigrate", "is itself waiting for, or in the middle of, an incoming migration"},
    {"internal-error", "stopped on an internal error of KVM: it cannot continue anywhere"},
    {"io-error", "stopped on a disk error: repair the storage and let it continue (cont) first"},
    {"postmigrate",
     "has been saved by an earlier migration: let it continue (cont) first, unless it runs elsewhere"},
    {"prelaunch", "has not been started yet: start it, or start it at the destination"},
    {"finish-migrate", "is being migrated"},
    {"restore-vm", "is restoring a snapshot: wait for it"},
    {"save-vm", "is saving a snapshot: wait for it"},
    {"shutdown", "has shut down"},
    {"suspended", "is suspended (S3): wake it first (system_wakeup)"},
    {"watchdog", "was stopped by its watchdog: let it continue (cont) first"},
    {"guest-panicked", "has panicked"},
    {"colo", "is under COLO replication: end that first"},
};

static gboolean check_state(const Context *context, GError **error)
{
    g_autofree char *status = NULL;
    if (!rm_state_query_run(context->qmp, &status, error))
        return FALSE;
    RmGuestRun run = rm_facts_run(status);
    if (run == RM_GUEST_RUNNING || run == RM_GUEST_PAUSED)
        return TRUE;
    const char *words = "cannot be migrated in this state";
    for (size_t i = 0; i < G_N_ELEMENTS(bad_states); i++) {
        if (strcmp(bad_states[i].status, status) == 0)
            words = bad_states[i].words;
    }
    RmReason reason = strcmp(status, "finish-migrate") == 0 ? RM_REASON_GUEST_BUSY : RM_REASON_GUEST_STATE;
    return rm_fail(error, reason, "the guest %s (QEMU's state: \"%s\")", words, status);
}

static gboolean fail_busy(const char *status, GError **error)
{
    return rm_fail(error, RM_REASON_GUEST_BUSY,
                   "QEMU has a migration of its own under way (\"%s\"): wait for it, or migrate_cancel",
                   status);
}

static gboolean check_blockers(json_object *body, GError **error)
{
    json_object *reasons;
    if (!json_object_object_get_ex(body, "blocked-reasons", NULL))
        return TRUE;
    if (!rm_json_array(body, "blocked-reasons", &reasons, error))
        return FALSE;
    g_autoptr(GString) words = g_string_new(NULL);
    for (size_t i = 0; i < json_object_array_length(reasons); i++) {
        json_object *item = json_object_array_get_idx(reasons, i);
        const char *text = json_object_is_type(item, json_type_string) ? json_object_get_string(item) : "?";
        g_string_append_printf(words, "%s%s", words->len > 0 ? "; " : "", text);
    }
    return words->len == 0 ||
           rm_fail(error, RM_REASON_BLOCKED, "QEMU cannot migrate this guest: %s", words->str);
}

static gboolean check_migration(const Context *context, GError **error)
{
    gboolean active;
    g_autofree char *status = NULL;
    rm_autojson reply = NULL;
    json_object *body;
    if (!rm_state_query_migration(context->qmp, &active, &status, &reply, error) ||
        !rm_json_object(reply, "return", &body, error))
        return FALSE;
    return active ? fail_busy(status, error) : check_blockers(body, error);
}

/* With KVM, a hypervisor in the guest has pages of it written through addresses that KVM pinned: no page
 * table shows that. Under TCG there is no such writer. */
static gboolean check_nested(const Context *context, GError **error)
{
    static const char *const flags[] = {"vmx", "svm"};
    gboolean kvm;
    g_autofree char *path = NULL;
    g_autoptr(GHashTable) properties = NULL;
    if (context->options->allow_nested)
        return TRUE;
    if (!rm_facts_kvm(context->qmp, &kvm, error))
        return FALSE;
    if (!kvm)
        return TRUE;
    if (!rm_facts_vcpu_path(context->qmp, &path, error) ||
        !rm_qom_list(context->qmp, path, &properties, error))
        return FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(flags); i++) {
        rm_autojson reply = NULL;
        gboolean on = FALSE;
        if (!g_hash_table_contains(properties, flags[i])) /* another architecture */
            continue;
        if (!rm_qom_get(context->qmp, path, flags[i], &reply, error) ||
            !rm_json_bool(reply, "return", &on, error))
            return FALSE;
        if (on)
            return rm_fail(error, RM_REASON_NESTED,
                           "the guest's CPU has %s, so it may run guests of its own, whose writes nothing "
                           "reports: start it "
                           "with -cpu MODEL,%s=off, or pass --allow-nested if it runs none",
                           flags[i], flags[i]);
    }
    return TRUE;
}

static gboolean check_jobs(const Context *context, GError **error)
{
    rm_autojson reply = NULL;
    json_object *jobs;
    if (!rm_qmp_run(context->qmp, "query-jobs", NULL, &reply, error) ||
        !rm_json_array(reply, "return", &jobs, error))
        return FALSE;
    for (size_t i = 0; i < json_object_array_length(jobs); i++) {
        json_object *job = json_object_array_get_idx(jobs, i);
        const char *id, *type, *status;
        if (!rm_json_string(job, "id", &id, error) || !rm_json_string(job, "type", &type, error) ||
            !rm_json_string(job, "status", &status, error))
            return FALSE;
        if (strcmp(status, "concluded") != 0 && strcmp(status, "null") != 0)
            return rm_fail(
                error, RM_REASON_BLOCK_JOB,
                "job %s (%s, %s) is under way and would end with the source: wait for it, or cancel it", id,
                type, status);
    }
    return TRUE;
}

/* QEMU does not say which exports are writable; a read-only one, too, would lose its clients. */
static gboolean check_exports(const Context *context, GError **error)
{
    rm_autojson reply = NULL;
    json_object *exports;
    if (!rm_qmp_run(context->qmp, "query-block-exports", NULL, &reply, error) ||
        !rm_json_array(reply, "return", &exports, error))
        return FALSE;
    for (size_t i = 0; i < json_object_array_length(exports); i++) {
        json_object *export = json_object_array_get_idx(exports, i);
        const char *id, *type, *node;
        if (!rm_json_string(export, "id", &id, error) || !rm_json_string(export, "type", &type, error) ||
            !rm_json_string(export, "node-name", &node, error))
            return FALSE;
        return rm_fail(error, RM_REASON_BLOCK_JOB,
                       "block node %s is exported by %s (%s) and would end with the source: remove it "
                       "(block-export-del)",
                       node, type, id);
    }
    return TRUE;
}

static gboolean check_writers(const Context *context, GError **error)
{
    return context->options->allow_untracked_writers ||
           rm_writers_check(context->pid, context->blocks, error);
}

static gboolean check_blocks(const Context *context, GError **error)
{
    return rm_ram_recheck(context->qmp, context->pid, context->blocks, error);
}

static gboolean check_saved(const Context *context, GError **error)
{
    g_autofree char *status = NULL;
    if (!rm_state_query_run(context->qmp, &status, error))
        return FALSE;
    /* A leftover background-snapshot, had we missed it, would have let the guest go on here: two guests. */
    return rm_facts_run(status) == RM_GUEST_SAVED ||
           rm_fail(error, RM_REASON_GUEST_STATE,
                   "QEMU is in state \"%s\" after the guest was saved, not \"postmigrate\"", status);
}

/* When a check is made. The devices' is apart (they are remembered), and so is that of the writers when the
 * guest is saved. */
enum {
    FIRST = 1,   /* before a byte moves */
    STOPPED = 2, /* with the stop: what the save would do harm to */
    SAVED = 4,   /* what may have changed, before `commit` */
};

/* Why the rest is looked at again only once the state is saved: nothing is committed before it has been, and
 * whatever is found then rolls the guest back as before the save. The save itself refuses a guest whose
 * migration is blocked, or already under way. A job, though, goes on writing to images that the save
 * inactivates, and an export serves from them: QEMU may end itself over that. */
static const struct {
    const char *name;
    gboolean (*check)(const Context *context, GError **error);
    unsigned when;
} checks[] = {
    {"saved", check_saved, SAVED},
    {"run state", check_state, FIRST},
    {"migration", check_migration, FIRST},
    {"nesting", check_nested, FIRST},
    {"RAM blocks", check_blocks, SAVED},
    {"jobs", check_jobs, FIRST | STOPPED | SAVED},
    {"exports", check_exports, FIRST | STOPPED | SAVED},
    {"other writers", check_writers, FIRST},
};

/* What rm_devices_list() asks, and then the checks of FIRST and SAVED, in their order. */
static const struct {
    const char *command, *arguments;
    unsigned when;
} questions[] = {
    {"qom-list", "{\"path\":\"/machine/peripheral\"}", FIRST | SAVED},
    {"qom-list", "{\"path\":\"/machine/peripheral-anon\"}", FIRST | SAVED},
    {"human-monitor-command", "{\"command-line\":\"info network\"}", FIRST | SAVED},
    {"query-named-block-nodes", "{\"flat\":true}", FIRST | SAVED},
    {"query-status", NULL, FIRST | SAVED},
    {"query-migrate", NULL, FIRST},
    {"x-query-ramblock", NULL, SAVED},
    {"qom-list", "{\"path\":\"/objects\"}", SAVED},
    {"query-jobs", NULL, SAVED},
    {"query-block-exports", NULL, SAVED},
};

static void ask_ahead(RmQmp *qmp, unsigned when)
{
    for (size_t i = 0; i < G_N_ELEMENTS(questions); i++) {
        if ((questions[i].when & when) != 0)
            rm_qmp_ahead(qmp, questions[i].command, questions[i].arguments);
    }
}

static gboolean run_checks(const Context *context, unsigned when, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(checks); i++) {
        if ((checks[i].when & when) == 0)
            continue;
        if (!checks[i].check(context, error))
            return FALSE;
        g_debug("preflight: %s: passed", checks[i].name);
    }
    return TRUE;
}

gboolean rm_preflight(RmQmp *qmp, pid_t pid, GPtrArray *blocks, const RmPreflightOptions *options,
                      RmDevices **ret_devices, GError **error)
{
    Context context = {qmp, pid, blocks, options};
    g_autoptr(RmDevices) devices = NULL;
    ask_ahead(qmp, FIRST);
    /* Devices first: QEMU blocks migration with vfio and vhost-user as well, but less clearly. */
    if (!rm_devices_list(qmp, &devices, error) || !rm_devices_check(devices, options, error) ||
        !run_checks(&context, FIRST, error))
        return FALSE;
    *ret_devices = g_steal_pointer(&devices);
    return TRUE;
}

gboolean rm_preflight_prepare(RmQmp *qmp, GError **error)
{
    gboolean active;
    g_autofree char *status = NULL;
    return rm_state_query_migration(qmp, &active, &status, NULL, error) &&
           (!active || fail_busy(status, error));
}

gboolean rm_preflight_save(RmQmp *qmp, GError **error)
{
    Context context = {.qmp = qmp};
    return run_checks(&context, STOPPED, error);
}

/* The search for other writers is the kernel's work alone: it is made while QEMU is asked for the rest. */
typedef struct {
    const Context *context;
    GError *problem;
} Search;

static gpointer search_main(gpointer data)
{
    Search *search = data;
    check_writers(search->context, &search->problem);
    return NULL;
}

static gboolean ask_again(const Context *context, RmDevices *devices, GError **error)
{
    g_autoptr(RmDevices) now = NULL;
    return rm_devices_list(context->qmp, &now, error) && rm_devices_check(now, context->options, error) &&
           (devices == NULL || rm_devices_compare(devices, now, error)) && run_checks(context, SAVED, error);
}

gboolean rm_preflight_recheck(RmQmp *qmp, pid_t pid, GPtrArray *blocks, const RmPreflightOptions *options,
                              RmDevices *devices, GError **error)
{
    Context context = {qmp, pid, blocks, options};
    Search search = {.context = &context};
    GThread *thread = g_thread_try_new("writers", search_main, &search, NULL);
    ask_ahead(qmp, SAVED);
    gboolean ok = ask_again(&context, devices, error);
    if (thread != NULL)
        g_thread_join(thread);
    else
        search_main(&search);
    if (ok && search.problem != NULL) {
        g_propagate_error(error, g_steal_pointer(&search.problem));
        ok = FALSE;
    }
    g_clear_error(&search.problem);
    return ok;
}
