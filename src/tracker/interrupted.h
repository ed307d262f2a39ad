/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where a thread goes on that was stopped in the middle of a system call. */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/user.h>

/* `stopped`: the registers at an event stop, before the kernel has made up its mind about restarting. */

#define RM_INTERRUPTED_CODE                                                                                  \
    7 /* bytes before the instruction pointer that tell which system call was made there */

/* The registers with which the thread, coming from user mode, does what it was doing. `code`: what lies
 * before rip. */
struct user_regs_struct rm_interrupted_context(const struct user_regs_struct *stopped,
                                               const uint8_t code[RM_INTERRUPTED_CODE]);

/* The registers to put back at an event stop. `signal_due`: a signal with a handler is pending for the
 * thread. */
struct user_regs_struct rm_interrupted_resume(const struct user_regs_struct *stopped, gboolean signal_due);
