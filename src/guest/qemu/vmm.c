/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU as a process: /proc/PID/map_files, and who it is. */
#include "guest/qemu/vmm.h"

#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int rm_vmm_open(pid_t pid, const RmMapping *mapping, gboolean writable, GError **error)
{
    g_autofree char *path =
        g_strdup_printf("/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid, mapping->start, mapping->end);
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    if (errno == EPERM || errno == EACCES)
        rm_set_errno(error, RM_REASON_PRIVILEGE, errno,
                     "cannot open %s: run as root, or with CAP_SYS_ADMIN (or CAP_CHECKPOINT_RESTORE) and "
                     "CAP_SYS_PTRACE",
                     path);
    else
        rm_set_errno(error, RM_REASON_GUEST_CHANGED, errno, "cannot open %s, which was there a moment ago",
                     path);
    return -1;
}

char *rm_vmm_comm(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/comm", (int)pid);
    char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return g_strdup("?");
    return g_strchomp(text);
}

/* The process that thread `tid` belongs to; 0 if there is no such thread. */
static pid_t process_of(pid_t tid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/status", (int)tid);
    g_autofree char *text = NULL;
    int pid = 0;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    const char *line = strstr(text, "\nTgid:");
    return line != NULL && sscanf(line, "\nTgid: %d", &pid) == 1 ? pid : 0;
}

/* By its program, since the comm is what -name,process= or debug-threads made of it. */
static gboolean looks_like_qemu(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/exe", (int)pid);
    g_autofree char *program = g_file_read_link(path, NULL);
    g_autofree char *comm = rm_vmm_comm(pid);
    return (program != NULL && strstr(program, "qemu") != NULL) || strstr(comm, "qemu") != NULL;
}

gboolean rm_vmm_find(pid_t peer, pid_t thread, pid_t *ret_pid, GError **error)
{
    pid_t owner = thread > 0 ? process_of(thread) : 0;
    if (peer > 0 && (owner == peer || looks_like_qemu(peer))) {
        *ret_pid = peer;
        return TRUE;
    }
    /* The thread id means nothing here if QEMU is in a PID namespace of its own: then some other program has
     * it. */
    if (owner > 0 && looks_like_qemu(owner)) {
        *ret_pid = owner;
        return TRUE;
    }
    return rm_fail(
        error, RM_REASON_INTERNAL,
        "cannot tell which process is QEMU: the QMP socket was made by pid %d, and its vCPU thread %d is not "
        "a QEMU's here; run rdmamig in the PID namespace that holds QEMU, or an outer one",
        (int)peer, (int)thread);
}

gboolean rm_vmm_wait_end(int pidfd, unsigned timeout_ms)
{
    struct pollfd fd = {.fd = pidfd, .events = POLLIN};
    gint64 deadline = g_get_monotonic_time() + (gint64)timeout_ms * 1000;
    for (;;) {
        gint64 left = MAX(0, deadline - g_get_monotonic_time());
        int n = poll(&fd, 1, (int)MIN((left + 999) / 1000, G_MAXINT));
        if (n > 0)
            return TRUE;
        if (n == 0 || errno != EINTR)
            return FALSE;
    }
}
