/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The reports' folder and files. */
#include "handover/reports.h"

#include "common/autoptr.h"
#include "config.h"
#include "control/json.h"
#include "control/notice.h"
#include "handover/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define KIND "reports"
#define SUFFIX ".json"
#define DEPTH_MAX 8
#define LOCK_WAIT_MS 2000 /* a writer that was stopped must not hold the next one for long */
#define LOCK_POLL_MS 5

/* ---- the object ---- */

json_object *rm_report_object(const RmReport *report)
{
    json_object *object = rm_notice_new(report->session, report->guest, "report");
    g_autofree char *start = rm_notice_time(report->start_us);
    g_autofree char *end = rm_notice_time(report->end_us);
    rm_json_add_string(object, "side", rm_side_name(report->side));
    rm_json_add_bool(object, "ended", TRUE);
    rm_json_add_string(object, "state", rm_state_name(report->state));
    rm_json_add_string(object, "reason", rm_reason_name(report->reason));
    rm_json_add_string(object, "owner", rm_owner_name(report->owner));
    rm_notice_add_text(object, "where", report->where);
    rm_notice_add_text(object, "detail", report->detail);
    rm_notice_add_text(object, "next", report->next);
    rm_json_add_string(object, "host", g_get_host_name());
    rm_notice_add_text(object, "peer", report->peer);
    rm_json_add_string(object, "start", start);
    rm_json_add_string(object, "end", end);
    rm_json_add_string(object, "by", report->by);
    rm_json_add_string(object, "version", RM_VERSION);
    rm_notice_add_text(object, "transport", report->transport);
    rm_json_add(object, "metrics", report->metrics);
    rm_json_add(object, "rounds", report->rounds);
    return object;
}

static gboolean is_of_side(json_object *report, const char *side)
{
    const char *its = NULL;
    return rm_json_string(report, "side", &its, NULL) && strcmp(its, side) == 0;
}

/* ---- reading ---- */

static void object_put(gpointer object)
{
    json_object_put(object);
}

static gboolean parse_lines(char *text, const char *path, GPtrArray *reports, GError **error)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        g_autoptr(GError) problem = NULL;
        if (**line == '\0')
            continue;
        json_object *report = rm_json_parse(*line, strlen(*line), DEPTH_MAX, &problem);
        if (report == NULL)
            return rm_fail(error, RM_REASON_JOURNAL, "%s cannot be understood: %s", path, problem->message);
        g_ptr_array_add(reports, report);
    }
    return TRUE;
}

static gboolean read_file(int fd, const char *path, GPtrArray *reports, GError **error)
{
    struct stat info;
    if (!rm_statedir_check_owner(fd, S_IFREG, path, error))
        return FALSE;
    if (fstat(fd, &info) < 0 || info.st_size > RM_REPORT_BYTES)
        return rm_fail(error, RM_REASON_JOURNAL, "%s is larger than any report: move it away", path);
    g_autofree char *text = g_malloc0((gsize)info.st_size + 1);
    if (pread(fd, text, (gsize)info.st_size, 0) < 0)
        return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot read %s", path);
    return parse_lines(text, path, reports, error);
}

static GPtrArray *read_in(int folder, const char *session, GError **error)
{
    g_autoptr(GPtrArray) reports = g_ptr_array_new_with_free_func(object_put);
    g_autofree char *name = g_strconcat(session, SUFFIX, NULL);
    g_autofree char *path = rm_statedir_path(KIND, name);
    rm_autofd fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno != ENOENT) {
        rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot open %s", path);
        return NULL;
    }
    if (fd >= 0 && !read_file(fd, path, reports, error))
        return NULL;
    return g_steal_pointer(&reports);
}

GPtrArray *rm_reports_read(const char *session, GError **error)
{
    g_autoptr(GError) problem = NULL;
    rm_autofd folder = rm_statedir_open(KIND, NULL, FALSE, &problem);
    if (problem != NULL) {
        g_propagate_error(error, g_steal_pointer(&problem));
        return NULL;
    }
    return folder < 0 ? g_ptr_array_new_with_free_func(object_put) : read_in(folder, session, error);
}

json_object *rm_reports_read_side(const char *session, RmSide side)
{
    g_autoptr(GPtrArray) reports = rm_reports_read(session, NULL);
    for (guint i = 0; reports != NULL && i < reports->len; i++) {
        if (is_of_side(reports->pdata[i], rm_side_name(side)))
            return json_object_get(reports->pdata[i]);
    }
    return NULL;
}

GPtrArray *rm_reports_list(void)
{
    GPtrArray *sessions = g_ptr_array_new_with_free_func(g_free);
    rm_autofd folder = rm_statedir_open(KIND, NULL, FALSE, NULL);
    if (folder < 0)
        return sessions;
    g_autoptr(GArray) entries = rm_statedir_list(folder, SUFFIX);
    for (guint i = 0; i < entries->len; i++)
        g_ptr_array_add(sessions, g_strdup(g_array_index(entries, RmStatedirEntry, i).session));
    return sessions;
}

/* ---- writing ---- */

static gboolean lock_folder(int folder, GError **error)
{
    gint64 deadline = g_get_monotonic_time() + LOCK_WAIT_MS * 1000;
    while (flock(folder, LOCK_EX | LOCK_NB) < 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || g_get_monotonic_time() > deadline)
            return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot lock the folder of reports");
        g_usleep(LOCK_POLL_MS * 1000);
    }
    return TRUE;
}

/* Lines of other sides stay; a file that can't be read is none. */
static char *new_text(int folder, const char *session, json_object *report)
{
    const char *side = "";
    GString *text = g_string_new(NULL);
    g_autoptr(GPtrArray) old = read_in(folder, session, NULL);
    rm_json_string_opt(report, "side", &side, NULL);
    for (guint i = 0; old != NULL && i < old->len; i++) {
        g_autofree char *line = rm_notice_line(old->pdata[i]);
        if (!is_of_side(old->pdata[i], side))
            g_string_append_printf(text, "%s\n", line);
    }
    g_autofree char *line = rm_notice_line(report);
    g_string_append_printf(text, "%s\n", line);
    return g_string_free(text, FALSE);
}

static gboolean write_new(int folder, const char *name, const char *text)
{
    rm_autofd fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    gsize length = strlen(text);
    if (fd < 0)
        return FALSE;
    for (gsize done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return FALSE;
        done += (gsize)n;
    }
    return TRUE;
}

static gboolean replace(int folder, const char *session, json_object *report, GError **error)
{
    g_autofree char *name = g_strconcat(session, SUFFIX, NULL);
    g_autofree char *unfinished = g_strconcat(RM_STATEDIR_UNFINISHED, session, NULL);
    g_autofree char *path = rm_statedir_path(KIND, name);
    if (!lock_folder(folder, error))
        return FALSE;
    g_autofree char *text = new_text(folder, session, report);
    unlinkat(folder, unfinished, 0); /* of one that died; under the lock it is nobody's */
    if (write_new(folder, unfinished, text) && renameat(folder, unfinished, folder, name) == 0)
        return TRUE;
    int cause = errno;
    unlinkat(folder, unfinished, 0);
    return rm_set_errno(error, RM_REASON_JOURNAL, cause, "cannot write %s", path);
}

static void prune(int folder)
{
    g_autoptr(GArray) entries = rm_statedir_list(folder, SUFFIX);
    for (guint i = 0; i < entries->len; i++) {
        g_autofree char *name = g_strconcat(g_array_index(entries, RmStatedirEntry, i).session, SUFFIX, NULL);
        if (rm_statedir_is_old(entries, i))
            unlinkat(folder, name, 0);
    }
    rm_statedir_prune_unfinished(folder);
}

void rm_reports_write(json_object *report)
{
    g_autoptr(GError) error = NULL;
    const char *session = "";
    rm_json_string_opt(report, "session", &session, NULL);
    rm_autofd folder = rm_statedir_open(KIND, NULL, FALSE, &error);
    if (folder < 0 && error == NULL)
        folder = rm_statedir_open(KIND, NULL, TRUE, &error);
    if (folder >= 0 && replace(folder, session, report, &error))
        prune(folder);
    else
        g_warning("session %s has no report: %s", session, error->message);
}

/* ---- settled later ---- */

static json_object *member(json_object *object, const char *key)
{
    json_object *value = NULL;
    return object != NULL && json_object_object_get_ex(object, key, &value) ? json_object_get(value) : NULL;
}

static gboolean same_text(json_object *a, json_object *b, const char *key)
{
    const char *x = NULL, *y = NULL;
    rm_json_string_opt(a, key, &x, NULL); /* null is another type, and leaves NULL */
    rm_json_string_opt(b, key, &y, NULL);
    return g_strcmp0(x, y) == 0;
}

static gboolean says_the_same(json_object *old, json_object *new)
{
    static const char *const keys[] = {"state", "reason", "where", "next"};
    for (guint i = 0; i < G_N_ELEMENTS(keys); i++) {
        if (!same_text(old, new, keys[i]))
            return FALSE;
    }
    return TRUE;
}

static RmReason reason_of(RmState state, const GError *problem)
{
    if (problem != NULL)
        return rm_error_reason(problem);
    switch (state) {
    case RM_STATE_DONE:
        return RM_REASON_NONE;
    case RM_STATE_COMMITTED:
        return RM_REASON_CLEANUP;
    case RM_STATE_DOUBTFUL:
        return RM_REASON_DOUBTFUL;
    case RM_STATE_CANCELLED:
        return RM_REASON_CANCELLED;
    default: /* its daemon died before it could say why it ended */
        return RM_REASON_INTERNAL;
    }
}

/* What the session's own daemon has said of its course, and why it failed. */
static void keep_course(json_object *new, json_object *old, RmState state)
{
    static const char *const course[] = {"start", "transport", "metrics", "rounds"};
    const char *reason = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(course); i++)
        rm_json_add(new, course[i], member(old, course[i]));
    rm_json_string_opt(old, "reason", &reason, NULL);
    if (state == RM_STATE_FAILED && reason != NULL)
        rm_json_add(new, "reason", member(old, "reason"));
}

void rm_reports_settled(const RmJournalFacts *facts, const RmSettled *settled, const GError *problem,
                        const char *by)
{
    if (settled->state >= RM_STATE_COUNT) /* the journal could not be read */
        return;
    rm_autojson old = rm_reports_read_side(facts->session, facts->side);
    RmReport report = {
        .session = facts->session,
        .guest = facts->guest,
        .side = facts->side,
        .peer = facts->peer,
        .start_us = facts->time_us,
        .end_us = g_get_real_time(),
        .state = settled->state,
        .reason = reason_of(settled->state, problem),
        .owner = settled->owner,
        .where = settled->where,
        .detail = problem != NULL ? problem->message : settled->detail,
        .next = settled->next,
        .by = by,
    };
    rm_autojson new = rm_report_object(&report);
    if (old != NULL)
        keep_course(new, old, settled->state);
    if (old == NULL || !says_the_same(old, new))
        rm_reports_write(new);
}

void rm_reports_settled_here(const RmJournalFacts *facts, RmGuest *guest, RmState state,
                             const GError *problem, const char *by)
{
    g_auto(RmSettled) settled = {.state = state};
    char *whereabouts = NULL;
    if (state >= RM_STATE_COUNT)
        return;
    if (guest != NULL && rm_state_owner(state) == RM_OWNER_DESTINATION)
        whereabouts = rm_settle_whereabouts(guest, facts->guest);
    else if (rm_journal_vmm_lives(facts))
        whereabouts = g_strdup_printf("guest %s: its QEMU (pid %d) does not answer on %s", facts->guest,
                                      (int)facts->pid, g_get_host_name());
    rm_settled_at_destination(&settled, facts, whereabouts);
    rm_reports_settled(facts, &settled, problem, by);
}
