/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What this process uses. */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct {
    double cpu_s;   /* user and system, all threads */
    double start_s; /* when it was started, since 1970 */
    uint64_t resident_bytes, virtual_bytes;
    uint64_t open_fds, max_fds;
} RmProcessUsage;

/* What /proc does not tell is 0. */
void rm_process_usage(RmProcessUsage *ret_usage);
