/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Stopping a thread interrupts the system call it sleeps in. At the stop, orig_rax is the call's number, and
 * rax says what the kernel means to do once no signal handler runs:
 *
 * - -ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND: run the call again: rip - 2, rax = orig_rax. Those that
 * sleep for a time have written what is left of it to their caller's memory.
 * - -ERESTART_RESTARTBLOCK: run restart_syscall instead, which knows what is left of the time (nanosleep,
 * poll, futex).
 * - -EINTR: some calls never run again by themselves and report the interruption to the program.
 *
 * Put back at an event stop, the first two kinds are exactly as before, and the kernel does the rest (RESUME
 * below). Through rt_sigreturn, after our death, neither the kernel's decision nor the restart block survive:
 * the call is run again from its beginning (CONTEXT), so a sleep may last longer, by at most its own length,
 * but never end early.
 *
 * If the thread had been stopped and restarted once before, by whomever, the call that we find is
 * restart_syscall, which fails with EINTR once the restart block is gone. The arguments are still those of
 * the first call; its number is to be had from the code that made it, `mov $NUMBER,%eax; syscall`, as
 * compilers write it as a rule. Where it isn't, and we die in the same instant, one sleep ends with EINTR.
 *
 * Calls of the third kind are run again, too, both ways, if they are in the list below: a program that never
 * sees a signal need not expect EINTR. Their time-outs start anew. If a signal with a handler is due, EINTR
 * is what the program would have seen anyway, and it stays. Not in the list is what may have had an effect
 * before it was interrupted (read and write on a FUSE file, close), and ioctl: KVM_RUN returns EINTR, with
 * its exit reason set accordingly, and each VMM knows.
 */
#include "tracker/interrupted.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

/* include/linux/errno.h of the kernel: never seen by programs, only by tracers */
#define KERNEL_ERESTARTSYS 512
#define KERNEL_ERESTARTNOINTR 513
#define KERNEL_ERESTARTNOHAND 514
#define KERNEL_ERESTART_RESTARTBLOCK 516

#define LENGTH_OF_SYSCALL_INSN 2

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

/* signal(7), "the following interfaces are never restarted", as far as they have no effect when they return
 * EINTR; socket calls when a time-out is set on the socket; select and its kin where the time-out lies in
 * read-only memory. */
static gboolean may_run_again(unsigned long long number)
{
    switch (number) {
    case SYS_select:
    case SYS_pselect6:
    case SYS_ppoll:
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
    case SYS_epoll_pwait2:
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_msgrcv:
    case SYS_msgsnd:
    case SYS_rt_sigtimedwait:
    case SYS_io_getevents:
    case SYS_io_pgetevents:
    case SYS_io_uring_enter:
    case SYS_accept:
    case SYS_accept4:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
        return TRUE;
    default:
        return FALSE;
    }
}

static gboolean in_syscall(const struct user_regs_struct *regs)
{
    return (long long)regs->orig_rax >= 0;
}

static gboolean ended_by_interrupt(const struct user_regs_struct *regs)
{
    return in_syscall(regs) && (long long)regs->rax == -EINTR && may_run_again(regs->orig_rax);
}

static gboolean kernel_restarts(const struct user_regs_struct *regs)
{
    long long result = (long long)regs->rax;
    return in_syscall(regs) && (result == -KERNEL_ERESTARTSYS || result == -KERNEL_ERESTARTNOINTR ||
                                result == -KERNEL_ERESTARTNOHAND || result == -KERNEL_ERESTART_RESTARTBLOCK);
}

static struct user_regs_struct run_again(const struct user_regs_struct *regs)
{
    struct user_regs_struct again = *regs;
    again.rip -= LENGTH_OF_SYSCALL_INSN;
    again.rax = regs->orig_rax;
    again.orig_rax = -1;
    return again;
}

/* The calls that use a restart block. */
static gboolean sleeps(uint32_t number)
{
    return number == SYS_nanosleep || number == SYS_clock_nanosleep || number == SYS_poll ||
           number == SYS_futex;
}

struct user_regs_struct rm_interrupted_context(const struct user_regs_struct *stopped,
                                               const uint8_t code[RM_INTERRUPTED_CODE])
{
    static const uint8_t mov_eax = 0xb8, syscall_insn[LENGTH_OF_SYSCALL_INSN] = {0x0f, 0x05};
    if (!kernel_restarts(stopped) && !ended_by_interrupt(stopped))
        return *stopped;
    struct user_regs_struct context = run_again(stopped);
    uint32_t number;
    memcpy(&number, code + 1, sizeof number);
    if (stopped->orig_rax == SYS_restart_syscall && code[0] == mov_eax && sleeps(number) &&
        memcmp(code + 1 + sizeof number, syscall_insn, sizeof syscall_insn) == 0)
        context.rax = number;
    return context;
}

struct user_regs_struct rm_interrupted_resume(const struct user_regs_struct *stopped, gboolean signal_due)
{
    return ended_by_interrupt(stopped) && !signal_due ? run_again(stopped) : *stopped;
}
