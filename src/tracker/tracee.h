/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ptrace on one thread: every request of an attach goes through here, so that each can be counted, and this
 * process killed before or after any of them by the tests (fault point attach-die=N).
 *
 * All functions return 0 or more, or a negative errno. The tracer is the calling thread: ptrace knows
 * threads, not processes, and only the end of that thread lets go of a tracee that cannot be stopped.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

typedef struct {
    pid_t tid;
    int64_t wait_us; /* bound of each wait */
    unsigned steps;  /* fault points passed */
} RmTracee;

/* A fault point: passes it, or dies. Two around each request; callers add their own around other calls that
 * count. */
void rm_tracee_step(RmTracee *tracee);

long rm_tracee_request(RmTracee *tracee, int request, uintptr_t addr, uintptr_t data);

int rm_tracee_get_regs(RmTracee *tracee,
                       struct user_regs_struct *ret_regs); /* -EPROTOTYPE: not 64-bit code */
int rm_tracee_set_regs(RmTracee *tracee, const struct user_regs_struct *regs);
int rm_tracee_get_xstate(RmTracee *tracee, uint8_t *xstate, size_t room, size_t *ret_length);
int rm_tracee_get_sigmask(RmTracee *tracee, uint64_t *ret_mask);
int rm_tracee_set_sigmask(RmTracee *tracee, uint64_t mask);

/* Waits for the next stop. -ETIMEDOUT: none within wait_us; -ESRCH: the thread is gone. */
int rm_tracee_wait(RmTracee *tracee, int *ret_status);

/* Waits until the thread stands in an event stop, that is, inside the kernel's signal delivery, before any
 * signal has been taken from the queue; PTRACE_INTERRUPT must be in force. Signals met on the way are handed
 * on. */
int rm_tracee_wait_event_stop(RmTracee *tracee);

/* Lets the thread run to the next entry into or exit from a system call. */
int rm_tracee_run_to_syscall_stop(RmTracee *tracee);
