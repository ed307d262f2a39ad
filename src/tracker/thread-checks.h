/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reasons not to inject a system call into a thread, and one correction; all of a thread that stands in an
 * event stop. */
#pragma once

#include "tracker/find-code.h"
#include "tracker/tracee.h"

/* Whether the thread's seccomp filters let our system calls through. Asks, never tries. Reasons attach,
 * privilege. */
gboolean rm_check_seccomp(RmTracee *tracee, const RmCode *code, GError **error);

/* Whether [address, address + length) is the thread's stack, as far as can be told: one private writable
 * mapping, which holds the stack pointer as well. */
gboolean rm_check_stack(const GArray *mappings, uint64_t address, uint64_t length, GError **error);

/* If the thread was stopped inside a restartable sequence, aborts that, as the kernel would have done. */
int rm_abort_rseq(RmTracee *tracee, pid_t pid, struct user_regs_struct *regs);
