/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Parses /proc/PID/task/TID/status: lines "Name:\tvalue". */
#include "tracker/task-status.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* The text behind "\nNAME:\t", NULL if there is no such line. */
static const char *field(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at == NULL ? NULL : at + strlen(name);
}

static uint64_t number(const char *text, const char *name, int base)
{
    const char *at = field(text, name);
    return at == NULL ? 0 : g_ascii_strtoull(at, NULL, base);
}

static gboolean line_has_word(const char *line, const char *word)
{
    g_autofree char *copy = line == NULL ? NULL : g_strndup(line, strcspn(line, "\n"));
    return copy != NULL && strstr(copy, word) != NULL;
}

gboolean rm_task_status(pid_t pid, pid_t tid, RmTaskStatus *ret_status, GError **error)
{
    char path[64], text[8192];
    g_snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)tid);
    rm_autofd fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return rm_set_errno(error, RM_REASON_GUEST_GONE, n == 0 ? ESRCH : errno, "thread %d of process %d",
                            (int)tid, (int)pid);
    text[n] = '\0';
    const char *state = field(text, "\nState:\t");
    *ret_status = (RmTaskStatus){
        .state = state != NULL ? *state : '?',
        .tracer = (pid_t)number(text, "\nTracerPid:\t", 10),
        .seccomp = (unsigned)number(text, "\nSeccomp:\t", 10),
        .shadow_stack = line_has_word(field(text, "\nx86_Thread_features:\t"), "shstk"),
        .pending = number(text, "\nSigPnd:\t", 16) | number(text, "\nShdPnd:\t", 16),
        .blocked = number(text, "\nSigBlk:\t", 16),
        .caught = number(text, "\nSigCgt:\t", 16),
    };
    return TRUE;
}

GArray *rm_task_list(pid_t pid, GError **error)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task", (int)pid);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    if (dir == NULL) {
        rm_fail(error, RM_REASON_GUEST_GONE, "process %d does not exist", (int)pid);
        return NULL;
    }
    GArray *tids = g_array_new(FALSE, FALSE, sizeof(pid_t));
    g_array_append_val(tids, pid);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        pid_t tid = (pid_t)g_ascii_strtoull(name, NULL, 10);
        if (tid != pid)
            g_array_append_val(tids, tid);
    }
    return tids;
}
