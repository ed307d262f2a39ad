/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ptrace on one thread, counted and bounded. */
#include "tracker/tracee.h"

#include "common/fault.h"

#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define SYSCALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */
#define SPIN_US 300                   /* a stop comes within that as a rule: poll without sleeping */
#define POLL_US 200

void rm_tracee_step(RmTracee *tracee)
{
    tracee->steps++;
    const char *value = rm_fault_value("attach-die");
    if (value != NULL && g_ascii_strtoull(value, NULL, 10) == tracee->steps)
        raise(SIGKILL);
}

long rm_tracee_request(RmTracee *tracee, int request, uintptr_t addr, uintptr_t data)
{
    rm_tracee_step(tracee);
    long result = ptrace(request, tracee->tid, addr, data);
    if (result < 0)
        result = -errno;
    rm_tracee_step(tracee);
    return result;
}

int rm_tracee_get_regs(RmTracee *tracee, struct user_regs_struct *ret_regs)
{
    struct iovec iov = {ret_regs, sizeof *ret_regs};
    long result = rm_tracee_request(tracee, PTRACE_GETREGSET, NT_PRSTATUS, (uintptr_t)&iov);
    if (result < 0)
        return (int)result;
    return iov.iov_len == sizeof *ret_regs ? 0 : -EPROTOTYPE;
}

int rm_tracee_set_regs(RmTracee *tracee, const struct user_regs_struct *regs)
{
    struct iovec iov = {(void *)regs, sizeof *regs};
    return (int)rm_tracee_request(tracee, PTRACE_SETREGSET, NT_PRSTATUS, (uintptr_t)&iov);
}

int rm_tracee_get_xstate(RmTracee *tracee, uint8_t *xstate, size_t room, size_t *ret_length)
{
    struct iovec iov = {xstate, room};
    int result = (int)rm_tracee_request(tracee, PTRACE_GETREGSET, NT_X86_XSTATE, (uintptr_t)&iov);
    *ret_length = iov.iov_len;
    return result;
}

int rm_tracee_get_sigmask(RmTracee *tracee, uint64_t *ret_mask)
{
    return (int)rm_tracee_request(tracee, PTRACE_GETSIGMASK, sizeof *ret_mask, (uintptr_t)ret_mask);
}

int rm_tracee_set_sigmask(RmTracee *tracee, uint64_t mask)
{
    return (int)rm_tracee_request(tracee, PTRACE_SETSIGMASK, sizeof mask, (uintptr_t)&mask);
}

/* A stop that is there now, as waitpid() would say it; 0 if there is none.
 *
 * A signal on its way to the thread is only looked at: waiting for it properly would take it out of the
 * kernel's hands, and if we died before we handed it on, it would be lost. Unwaited-for, the kernel delivers
 * it. With a stop at a system call it is the other way round: unwaited-for, its code is sent to the thread as
 * a signal, which is harmless only since PTRACE_O_TRACESYSGOOD makes it a number that no signal has. */
static int look(const RmTracee *tracee, int *ret_status)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)tracee->tid, &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT | __WALL) < 0)
        return errno == ECHILD ? -ESRCH : -errno;
    if (info.si_pid == 0)
        return 0;
    if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED)
        return -ESRCH;
    *ret_status = info.si_status << 8 | 0x7f;
    if (*ret_status >> 16 == PTRACE_EVENT_STOP || WSTOPSIG(*ret_status) == SYSCALL_STOP)
        waitpid(tracee->tid, NULL, __WALL | WNOHANG);
    return 1;
}

int rm_tracee_wait(RmTracee *tracee, int *ret_status)
{
    int64_t start = g_get_monotonic_time();
    for (;;) {
        int result = look(tracee, ret_status);
        if (result != 0 && result != -EINTR)
            return MIN(result, 0);
        int64_t waited = g_get_monotonic_time() - start;
        if (waited > tracee->wait_us)
            return -ETIMEDOUT;
        if (waited < SPIN_US)
            sched_yield();
        else
            g_usleep(POLL_US);
    }
}

int rm_tracee_wait_event_stop(RmTracee *tracee)
{
    for (;;) {
        int status;
        long result = rm_tracee_wait(tracee, &status);
        if (result < 0)
            return (int)result;
        /* Either our interrupt or a group stop (SIGSTOP and the like): the same place in the kernel. */
        if (status >> 16 == PTRACE_EVENT_STOP)
            return 0;
        /* A signal on its way to the thread. Any stop cancels an interrupt that is pending: ask again first,
         * so that the next stop comes before the thread executes anything, or, if the signal is ignored,
         * still inside the same interrupted system call, whose registers are then still to be seen. */
        int signal_number = WSTOPSIG(status) == SYSCALL_STOP ? 0 : WSTOPSIG(status);
        result = rm_tracee_request(tracee, PTRACE_INTERRUPT, 0, 0);
        if (result == 0)
            result = rm_tracee_request(tracee, PTRACE_CONT, 0, signal_number);
        if (result < 0)
            return (int)result;
    }
}

int rm_tracee_run_to_syscall_stop(RmTracee *tracee)
{
    int signal_number = 0;
    for (;;) {
        int status;
        long result = rm_tracee_request(tracee, PTRACE_SYSCALL, 0, signal_number);
        if (result == 0)
            result = rm_tracee_wait(tracee, &status);
        if (result < 0)
            return (int)result;
        if (WSTOPSIG(status) == SYSCALL_STOP)
            return 0;
        /* All signals are blocked by now, so this is SIGSTOP, or the group stop that it starts. Run on in
         * spite of it: the kernel puts the thread back into the group stop when it is detached. */
        signal_number = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
    }
}
