/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Matching a guest with a waiting QEMU. */
#include "destination/find.h"

#include "common/autoptr.h"
#include "common/privileges.h"
#include "common/reason.h"
#include "handover/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#define QMP_TIMEOUT_MS 30000
#define EXEC_WAIT_MS 30000
#define EXEC_LINE_MAX 4096
#define BUSY_WAIT_MS 3000 /* for a session that is about to end, or looks at all sockets as we do */
#define BUSY_POLL_MS 50

void rm_found_clear(RmDaemon *daemon, RmFound *found)
{
    g_clear_pointer(&found->info, rm_guest_info_free);
    g_clear_pointer(&found->guest, rm_guest_free);
    if (found->path != NULL)
        rm_daemon_release(daemon, found->path);
    g_clear_pointer(&found->path, g_free);
}

/* Two names agree unless both are known and differ; `score` counts agreement of known ones. */
static gboolean agree(const char *ours, const char *theirs, int weight, int *score)
{
    if (*ours == '\0' || *theirs == '\0')
        return TRUE;
    if (g_ascii_strcasecmp(ours, theirs) != 0)
        return FALSE;
    *score += weight;
    return TRUE;
}

/* Opens the QEMU at `path` if it waits for this guest. Returns the score, or NOT_THIS or BUSY with the reason
 * in `why`. One that was
 * `started` for this guest and waits for another is ended: nobody else knows of it. */
#define NOT_THIS (-1)
#define BUSY (-2)
static int try_path(RmDaemon *daemon, const char *path, const RmHello *hello, GCancellable *cancel,
                    gboolean started, RmFound *ret_found, char **why)
{
    RmFound found = {0};
    g_autoptr(GError) error = NULL;
    RmGuestRun run;
    int score = 0;
    if (!rm_daemon_claim(daemon, path)) {
        *why = g_strdup_printf("%s: in use by another session", path);
        return BUSY;
    }
    found.path = g_strdup(path);
    found.guest = rm_guest_qemu_new(path, QMP_TIMEOUT_MS, cancel, &error);
    if (found.guest == NULL || !found.guest->ops->run_state(found.guest, &run, &error) ||
        !found.guest->ops->describe(found.guest, &found.info, &error)) {
        *why = g_strdup_printf("%s: %s", path, error->message);
    } else if (run != RM_GUEST_WAITING) {
        *why =
            g_strdup_printf("%s: this QEMU does not wait for a guest; start it with -incoming defer", path);
    } else if (!agree(found.info->uuid, hello->guest_uuid, 2, &score) ||
               !agree(found.info->name, hello->guest_name, 1, &score)) {
        *why = g_strdup_printf("%s: waits for guest `%s` %s", path, found.info->name, found.info->uuid);
        if (started && !found.guest->ops->quit(found.guest, &error))
            g_warning("%s: %s", path, error->message);
    } else {
        *ret_found = found;
        return score;
    }
    rm_found_clear(daemon, &found);
    return NOT_THIS;
}

static void add_directory(const char *path, GPtrArray *candidates)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GDir) dir = g_dir_open(path, 0, &error);
    const char *name;
    if (dir == NULL)
        g_warning("--qmp-dir: %s", error->message);
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *candidate = g_build_filename(path, name, NULL);
        struct stat info;
        if (stat(candidate, &info) == 0 && S_ISSOCK(info.st_mode))
            g_ptr_array_add(candidates, g_steal_pointer(&candidate));
    }
}

static GPtrArray *list_candidates(const RmListenOptions *options)
{
    GPtrArray *candidates = g_ptr_array_new_with_free_func(g_free);
    for (char **path = options->qmp; path != NULL && *path != NULL; path++)
        g_ptr_array_add(candidates, g_strdup(*path));
    if (options->qmp_dir != NULL)
        add_directory(options->qmp_dir, candidates);
    return candidates;
}

/* ---- --exec ---- */

static void set_up_command(G_GNUC_UNUSED gpointer data)
{
    rm_privileges_restore_umask();
}

static void reap(GPid pid, int status, gpointer data)
{
    g_spawn_close_pid(pid);
}

/* The first line that the command prints, within the time; also of a session that has been cancelled
 * meanwhile, for whoever starts a QEMU has to know of it to end it. */
static char *read_path(int fd, GError **error)
{
    g_autoptr(GString) line = g_string_new(NULL);
    int64_t deadline = g_get_monotonic_time() + EXEC_WAIT_MS * 1000;
    while (line->len < EXEC_LINE_MAX) {
        struct pollfd event = {.fd = fd, .events = POLLIN};
        char c;
        if (g_get_monotonic_time() > deadline) {
            rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "--exec printed no QMP path within %d s",
                    EXEC_WAIT_MS / 1000);
            return NULL;
        }
        if (poll(&event, 1, 100) <= 0)
            continue;
        if (read(fd, &c, 1) != 1) {
            rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "--exec ended without printing a QMP path");
            return NULL;
        }
        if (c == '\n')
            return g_strdup(g_strstrip(line->str));
        g_string_append_c(line, c);
    }
    rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "--exec printed no line of a path's length");
    return NULL;
}

/* The QEMU is to outlive what is done to the daemon's service as a whole; best effort. One that its command
 * has put somewhere else stays there. */
static void give_scope(const RmHello *hello, pid_t pid)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("rdmamig-guest-%s.scope", hello->session);
    g_autofree char *description = g_strdup_printf("QEMU of migration %s", hello->session);
    if (rm_scope_is_ours(pid) && !rm_scope_enter(name, description, pid, &error))
        g_debug("no scope of its own for QEMU (pid %d): %s", (int)pid, error->message);
}

/* The session was cancelled while its QEMU was being started. Nothing but one that waits for a guest. */
static void end_unwanted(const char *path)
{
    g_autoptr(GError) error = NULL;
    RmGuestRun run;
    g_autoptr(RmGuest) guest = rm_guest_qemu_new(path, QMP_TIMEOUT_MS, NULL, &error);
    if (guest != NULL && guest->ops->run_state(guest, &run, &error) && run != RM_GUEST_WAITING)
        return;
    if (error != NULL || !guest->ops->quit(guest, &error))
        g_warning("%s: a QEMU that --exec started for nothing may be left: %s", path, error->message);
}

static gboolean start(RmDaemon *daemon, const RmHello *hello, GCancellable *cancel, RmFound *ret_found,
                      GError **error)
{
    char *argv[] = {"/bin/sh", "-c", daemon->options->exec, NULL};
    g_auto(GStrv) environment = g_get_environ();
    g_autoptr(GError) problem = NULL;
    rm_autofd output = -1;
    GPid pid;
    environment = g_environ_setenv(environment, "RDMAMIG_SESSION", hello->session, TRUE);
    environment = g_environ_setenv(environment, "RDMAMIG_GUEST", hello->guest_name, TRUE);
    environment = g_environ_setenv(environment, "RDMAMIG_UUID", hello->guest_uuid, TRUE);
    if (!g_spawn_async_with_pipes(NULL, argv, environment, G_SPAWN_DO_NOT_REAP_CHILD, set_up_command, NULL,
                                  &pid, NULL, &output, NULL, &problem))
        return rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "--exec: %s", problem->message);
    g_child_watch_add(pid, reap, NULL);
    g_autofree char *path = read_path(output, error);
    g_autofree char *why = NULL;
    if (path == NULL)
        return FALSE;
    /* It prints the path when it has started QEMU; the socket may need a moment. */
    for (int i = 0; i < 50 && !g_file_test(path, G_FILE_TEST_EXISTS); i++)
        g_usleep(100000);
    gboolean usable = try_path(daemon, path, hello, cancel, TRUE, ret_found, &why) >= 0;
    if (!usable && g_cancellable_is_cancelled(cancel))
        end_unwanted(path);
    if (!usable)
        return rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "the QEMU that --exec started is not usable: %s",
                       why);
    ret_found->started = TRUE;
    give_scope(hello, ret_found->info->pid);
    return TRUE;
}

/* ---- the search ---- */

/* One look at all sockets. FALSE with `error` only if several fit equally well; *ret_found is empty if none
 * does, *ret_busy says whether one could not be looked at. */
static gboolean look(RmDaemon *daemon, const RmHello *hello, GCancellable *cancel, RmFound *ret_found,
                     gboolean *ret_busy, GString *reasons, GError **error)
{
    g_autoptr(GPtrArray) candidates = list_candidates(daemon->options);
    RmFound best = {0};
    int best_score = -1;
    gboolean ambiguous = FALSE;
    g_string_truncate(reasons, 0);
    *ret_busy = FALSE;
    for (guint i = 0; i < candidates->len; i++) {
        g_autofree char *why = NULL;
        RmFound found = {0};
        int score = try_path(daemon, candidates->pdata[i], hello, cancel, FALSE, &found, &why);
        if (score < 0) {
            *ret_busy = *ret_busy || score == BUSY;
            g_string_append_printf(reasons, "%s%s", reasons->len > 0 ? "; " : "", why);
        } else if (score > best_score) {
            rm_found_clear(daemon, &best);
            best = found;
            best_score = score;
            ambiguous = FALSE;
        } else {
            ambiguous = ambiguous || score == best_score;
            rm_found_clear(daemon, &found);
        }
    }
    if (ambiguous) {
        rm_found_clear(daemon, &best);
        return rm_fail(error, RM_REASON_GUEST_NOT_FOUND,
                       "several QEMUs could take guest `%s`; give each -name or -uuid, as at the source",
                       hello->guest_name);
    }
    *ret_found = best;
    return TRUE;
}

/* A socket in use may be free in a moment: an attempt that failed may be repeated at once, while its session
 * still ends here; and another session's look claims each socket for a moment. */
gboolean rm_find_guest(RmDaemon *daemon, const RmHello *hello, GCancellable *cancel, RmFound *ret_found,
                       GError **error)
{
    g_autoptr(GString) reasons = g_string_new(NULL);
    int64_t deadline = g_get_monotonic_time() + BUSY_WAIT_MS * 1000;
    for (;;) {
        RmFound found = {0};
        gboolean busy;
        if (!look(daemon, hello, cancel, &found, &busy, reasons, error))
            return FALSE;
        if (found.guest != NULL) {
            *ret_found = found;
            return TRUE;
        }
        if (!busy || g_get_monotonic_time() > deadline || g_cancellable_is_cancelled(cancel))
            break;
        g_usleep(BUSY_POLL_MS * 1000);
    }
    if (daemon->options->exec != NULL)
        return start(daemon, hello, cancel, ret_found, error);
    if (reasons->len == 0)
        g_string_append(reasons, "no QMP socket was found");
    return rm_fail(error, RM_REASON_GUEST_NOT_FOUND, "no QEMU here waits for guest `%s`: %s",
                   hello->guest_name, reasons->str);
}
