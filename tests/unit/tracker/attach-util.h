/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the tests of attaching share: running tests/tools/attach-once, and looking at a process from outside.
 */
#pragma once

#include "common/autoptr.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define ATTACH_SAMPLE 4 /* by default each thread is killed on at every fourth fault point */

/* Up to the setting of registers that makes the frame count (the later ones if signals make more stops).
 * Killed between the interrupt and that, we leave the kernel to its own devices, and it makes epoll_wait()
 * and its like fail with EINTR, as after SIGSTOP and SIGCONT: signal(7). */
#define ATTACH_POINTS_BEFORE_FRAME 17

/* A program of tests/tools, as seen from the build folder of tests/unit or of a folder below; caller frees.
 */
static inline char *tool_path(const char *name)
{
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *dir = g_path_get_dirname(self);
    char *path = g_build_filename(dir, "..", "tools", name, NULL);
    if (g_file_test(path, G_FILE_TEST_EXISTS))
        return path;
    g_free(path);
    return g_build_filename(dir, "..", "..", "tools", name, NULL);
}

/* Runs attach-once as user `uid` (0: as we are) with a fault (NULL: none); returns its wait status. */
static inline int attach_once(pid_t pid, pid_t tid, const char *fault, uid_t uid)
{
    g_autofree char *path = tool_path("attach-once");
    char pid_text[16], tid_text[16];
    int status;
    g_snprintf(pid_text, sizeof pid_text, "%d", (int)pid);
    g_snprintf(tid_text, sizeof tid_text, "%d", (int)tid);
    pid_t attacher = fork();
    if (attacher == 0) {
        rm_autofd null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        if (fault != NULL)
            setenv("RDMAMIG_FAULT", fault, 1);
        if (uid == 0 || setuid(uid) == 0)
            execl(path, "attach-once", pid_text, tid_text, NULL);
        _exit(127);
    }
    g_assert_cmpint(waitpid(attacher, &status, 0), ==, attacher);
    return status;
}

/* The letter of the thread's state, '?' if it does not exist. */
static inline char task_state(pid_t pid, pid_t tid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%d/stat", (int)pid, (int)tid), *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return '?';
    return strrchr(text, ')')[2];
}

/* The thread is neither stopped nor traced. The kernel lets go a little after the tracer's end. */
static inline void assert_task_released(pid_t pid, pid_t tid)
{
    char state = 't';
    for (int tries = 0; tries < 500 && (state == 't' || state == 'T'); tries++) {
        if (tries > 0)
            g_usleep(2000);
        state = task_state(pid, tid);
    }
    g_assert_nonnull(strchr("RSD?", state));
}

/* Open descriptors of a process, and how many of them are userfaultfds. */
static inline guint count_fds(pid_t pid, guint *ret_uffds)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/fd", (int)pid);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    guint n = 0;
    *ret_uffds = 0;
    for (const char *name; (name = g_dir_read_name(dir)) != NULL; n++) {
        g_autofree char *link = g_build_filename(path, name, NULL);
        g_autofree char *target = g_file_read_link(link, NULL);
        *ret_uffds += target != NULL && strstr(target, "userfaultfd") != NULL;
    }
    return n;
}
