/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the two pieces of code in a process that an injected system call runs through. */
#pragma once

#include "common/mappings.h"

typedef struct {
    uint64_t syscall_ret; /* `syscall; ret` */
    uint64_t restorer;    /* loads __NR_rt_sigreturn into rax and calls it */
} RmCode;

/* Looks through the read-only code that `mappings` of process `pid` hold, the C library first. Reason attach
 * if there is none. */
gboolean rm_code_find(pid_t pid, const GArray *mappings, RmCode *ret_code, GError **error);

/* Whether the code is (still) there. */
gboolean rm_code_check(pid_t pid, const RmCode *code);
