/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Obtains a userfaultfd of another process's address space without its help, safely against our own death. */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int64_t stopped_us; /* how long the thread stood still */
    unsigned steps;     /* fault points passed (attach-die=N, N from 1) */
} RmAttachStats;

/* Makes thread `tid` of process `pid` run userfaultfd(flags), takes the descriptor over (O_CLOEXEC) and
 * closes it there. Whatever happens, registers, signal mask, pending signals, interrupted system calls and
 * descriptors of the thread are as they were. Reasons attach (with errno and the sysctl, LSM or seccomp to
 * look at), privilege, guest-gone. Returns the descriptor or -1. `ret_stats` may be NULL. */
int rm_attach_userfaultfd(pid_t pid, pid_t tid, int flags, RmAttachStats *ret_stats, GError **error);
