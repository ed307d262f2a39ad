/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What /proc/PID/task/TID/status says of a thread, as far as an attach has to know it. */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    char state;            /* 'R', 'S', 'D', 'T', 't', 'Z', … */
    pid_t tracer;          /* 0: none */
    unsigned seccomp;      /* 0 none, 1 strict, 2 filters */
    gboolean shadow_stack; /* user shadow stack in use */
    /* Bit n-1 is signal n. */
    uint64_t pending; /* of the thread or of its process */
    uint64_t blocked; /* a temporary mask (ppoll, sigsuspend) as long as it is in force */
    uint64_t caught;  /* has a handler */
} RmTaskStatus;

/* Reason guest-gone if the thread does not exist. */
gboolean rm_task_status(pid_t pid, pid_t tid, RmTaskStatus *ret_status, GError **error);

/* Ids of the threads of `pid` (of pid_t), the main thread first; caller unrefs. Reason guest-gone. */
GArray *rm_task_list(pid_t pid, GError **error);
