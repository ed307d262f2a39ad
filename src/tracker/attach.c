/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Makes a thread of the VMM run one system call, and takes what it returned.
 *
 * The rule: at every instant the thread can go on without us. This process may be killed between any two
 * instructions; the kernel then lets go of the thread, which runs on with whatever registers, memory and
 * signal mask it has. So:
 *
 *  1. Stop the thread (PTRACE_SEIZE, PTRACE_INTERRUPT) inside the kernel's signal delivery, and wait for a
 * moment when no signal is due. Nothing is changed yet.
 *  2. Write a signal frame below its stack's red zone, with its registers, vector state and signal mask, and
 * the C library's rt_sigreturn stub as return address. No program may care about memory there.
 *  3. Set all its registers in one request: `syscall; ret` next, the stack pointer at the frame. From here
 * on, left alone, it makes the call, returns into the stub, and the kernel gives it everything back.
 *  4. Only now block its signals. (Before 3 our death would leave them blocked for ever; now rt_sigreturn
 * undoes it.)
 *  5. Let it run through userfaultfd(), take a copy of the descriptor, let it run through close() the same
 * way.
 *  6. Interrupt it once more: it stops in the same place in the kernel as in step 1. Put back first its
 * signal mask, while the frame still stands, then its registers, exactly as found, down to the kernel's
 * private error codes, so that the kernel restarts an interrupted call just as if nothing had been
 * (tracker/interrupted.c). Let go.
 *
 * If anything unexpected happens after step 3 there is nothing to undo: letting go is the undoing.
 *
 * If this process dies between the two system calls of step 5, a userfaultfd stays open in the VMM. It is
 * registered to nothing, does nothing, and is close-on-exec. A later attach leaves it alone, for nothing
 * proves that it is ours.
 *
 * If it dies between the interrupt and step 3, the kernel decides alone what becomes of an interrupted system
 * call, and of those that it never restarts (epoll_wait and its like) the thread sees EINTR, as it would
 * after SIGSTOP and SIGCONT. Every program on Linux has to live with that (signal(7)); nothing can be done
 * before the thread has stopped.
 *
 * If this process dies and a signal comes at the same time, its handler runs before the interrupted system
 * call is run again, as if it had come just before that call. To keep that true of calls that set a signal
 * mask of their own while they sleep (ppoll, sigsuspend), the thread's proper mask is put back before step 3:
 * the call itself is then what admits the signal.
 *
 * All of it happens in a thread of our own, because the end of the tracing thread is the one way to let go of
 * a thread that could not be stopped in time (one in uninterruptible sleep, or in a frozen cgroup).
 */
#include "tracker/attach.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "tracker/interrupted.h"
#include "tracker/sigframe.h"
#include "tracker/task-status.h"
#include "tracker/thread-checks.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define WAIT_US                                                                                              \
    (2 * G_USEC_PER_SEC) /* for a thread to stop; it takes some microseconds unless it is stuck              \
                          */
#define QUIET_TRIES 8    /* how often to let due signals be handled first */
#define QUIET_US 500
#define RELEASE_TRIES 200
#define RELEASE_US 1000
#define XSTATE_ROOM 65536
#define USER_CS 0x33 /* code segment of 64-bit user mode */

#ifndef PIDFD_THREAD /* include/uapi/linux/pidfd.h, Linux 6.9 */
#define PIDFD_THREAD O_EXCL
#endif

typedef struct {
    pid_t pid;
    int flags;
    RmTracee tracee;
    RmTaskStatus status; /* before the attach; then at the stop */
    GArray *mappings;    /* of RmMapping, shortly before the stop */
    RmCode code;
    int pidfd;
    struct user_regs_struct stopped; /* as found, save for an aborted rseq section */
    uint64_t sigmask;
    RmSigframe frame;
    int64_t stopped_at, stopped_us;
    pid_t tracer; /* our thread that does it */
    int fd;       /* the result, or -1 */
    GError *error;
} Attach;

static gboolean fail(Attach *a, int result, const char *what)
{
    pid_t tid = a->tracee.tid;
    if (result == -ESRCH)
        return rm_set_errno(&a->error, RM_REASON_GUEST_GONE, ESRCH, "the VMM's thread %d ended while %s",
                            (int)tid, what);
    if (result == -ETIMEDOUT)
        return rm_fail(
            &a->error, RM_REASON_ATTACH,
            "the VMM's thread %d did not stop within %d s while %s (in uninterruptible sleep, or frozen); "
            "it was let go unharmed: look at the storage it may be waiting for, then try again",
            (int)tid, (int)(WAIT_US / G_USEC_PER_SEC), what);
    return rm_set_errno(&a->error, RM_REASON_ATTACH, -result,
                        "cannot attach to the VMM's thread %d (%s); the VMM runs on unharmed", (int)tid,
                        what);
}

/* ---- before the stop ---- */

static gboolean fail_seize(Attach *a, int result)
{
    RmTaskStatus now = {0};
    if (result != -EPERM && result != -EACCES)
        return fail(a, result, "seizing it");
    if (rm_task_status(a->pid, a->tracee.tid, &now, NULL) && now.tracer != 0)
        return rm_fail(&a->error, RM_REASON_ATTACH,
                       "process %d traces the VMM already (a debugger or strace?): end that first",
                       (int)now.tracer);
    g_autofree char *yama = NULL;
    g_file_get_contents("/proc/sys/kernel/yama/ptrace_scope", &yama, NULL, NULL);
    return rm_fail(
        &a->error, RM_REASON_PRIVILEGE,
        "not allowed to trace process %d: run rdmamig as root (CAP_SYS_PTRACE), or as the VMM's user with "
        "kernel.yama.ptrace_scope=0 (it is %s here) and a VMM that may dump core",
        (int)a->pid, yama != NULL ? g_strchomp(yama) : "absent");
}

static gboolean fail_32bit(Attach *a)
{
    return rm_fail(&a->error, RM_REASON_ATTACH, "process %d runs 32-bit code; only 64-bit VMMs are supported",
                   (int)a->pid);
}

/* Only to say it early and clearly: what counts is the mode that the thread is stopped in. */
static gboolean is_32bit_program(pid_t pid)
{
    uint8_t ident[EI_NIDENT] = {0};
    g_autofree char *path = g_strdup_printf("/proc/%d/exe", (int)pid);
    rm_autofd fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && read(fd, ident, sizeof ident) == sizeof ident && ident[EI_CLASS] == ELFCLASS32;
}

static gboolean look(Attach *a)
{
    if (!rm_task_status(a->pid, a->tracee.tid, &a->status, &a->error))
        return FALSE;
    if (a->status.tracer != 0)
        return fail_seize(a, -EPERM);
    if (a->status.shadow_stack)
        return rm_fail(
            &a->error, RM_REASON_ATTACH,
            "process %d uses a user shadow stack, on which a system call cannot be injected safely; start "
            "the VMM with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off",
            (int)a->pid);
    if (is_32bit_program(a->pid))
        return fail_32bit(a);
    a->mappings = rm_mappings_read(a->pid, &a->error);
    if (a->mappings == NULL || !rm_code_find(a->pid, a->mappings, &a->code, &a->error))
        return FALSE;
    /* Of the thread itself where the kernel can: it might have a descriptor table of its own. */
    a->pidfd = (int)syscall(SYS_pidfd_open, a->tracee.tid, PIDFD_THREAD);
    if (a->pidfd < 0)
        a->pidfd = (int)syscall(SYS_pidfd_open, a->pid, 0);
    if (a->pidfd < 0)
        return fail(a, -errno, "opening a pidfd");
    return TRUE;
}

/* ---- steps 1 and 2 ---- */

static gboolean signal_due(const RmTaskStatus *status)
{
    return (status->pending & ~status->blocked & status->caught) != 0;
}

/* Stops the thread at a moment when no handler is about to run, if there is one soon. */
static int stop(Attach *a)
{
    for (int tries = 0;; tries++) {
        long result = rm_tracee_request(&a->tracee, PTRACE_INTERRUPT, 0, 0);
        if (result == 0)
            result = rm_tracee_wait_event_stop(&a->tracee);
        if (result < 0)
            return (int)result;
        a->stopped_at = g_get_monotonic_time();
        if (!rm_task_status(a->pid, a->tracee.tid, &a->status, NULL))
            return -ESRCH;
        if (tries == QUIET_TRIES || !signal_due(&a->status))
            return 0;
        result = rm_tracee_request(&a->tracee, PTRACE_CONT, 0, 0);
        if (result < 0)
            return (int)result;
        a->stopped_us += g_get_monotonic_time() - a->stopped_at;
        g_usleep(QUIET_US);
    }
}

static int write_frame(Attach *a)
{
    struct iovec local = {a->frame.bytes, a->frame.length};
    struct iovec remote = {(void *)(uintptr_t)a->frame.address, a->frame.length};
    rm_tracee_step(&a->tracee);
    ssize_t n = process_vm_writev(a->pid, &local, 1, &remote, 1, 0);
    int result = n == (ssize_t)a->frame.length ? 0 : n < 0 ? -errno : -EFAULT;
    rm_tracee_step(&a->tracee);
    return result;
}

/* The thread's stack may have been mapped since we looked. */
static gboolean check_stack(Attach *a)
{
    if (rm_check_stack(a->mappings, a->frame.address, a->frame.length, NULL))
        return TRUE;
    g_array_unref(a->mappings);
    a->mappings = rm_mappings_read(a->pid, &a->error);
    return a->mappings != NULL && rm_check_stack(a->mappings, a->frame.address, a->frame.length, &a->error);
}

/* What lies before the instruction pointer; stays as it is if that cannot be read. */
static void read_code(Attach *a, uint8_t code[RM_INTERRUPTED_CODE])
{
    struct iovec local = {code, RM_INTERRUPTED_CODE};
    struct iovec remote = {(void *)(uintptr_t)(a->stopped.rip - RM_INTERRUPTED_CODE), RM_INTERRUPTED_CODE};
    if (process_vm_readv(a->pid, &local, 1, &remote, 1, 0) != RM_INTERRUPTED_CODE)
        memset(code, 0, RM_INTERRUPTED_CODE);
}

static gboolean prepare(Attach *a)
{
    g_autofree uint8_t *xstate = g_malloc0(XSTATE_ROOM);
    size_t xstate_length;
    int result = rm_tracee_get_regs(&a->tracee, &a->stopped);
    if (result == -EPROTOTYPE || (result == 0 && a->stopped.cs != USER_CS))
        return fail_32bit(a);
    if (result < 0)
        return fail(a, result, "reading its registers");
    if (a->status.seccomp != 0 && !rm_check_seccomp(&a->tracee, &a->code, &a->error))
        return FALSE;
    if ((result = rm_abort_rseq(&a->tracee, a->pid, &a->stopped)) < 0)
        return fail(a, result, "reading its restartable sequence");
    if ((result = rm_tracee_get_xstate(&a->tracee, xstate, XSTATE_ROOM, &xstate_length)) < 0)
        return fail(a, result, "reading its vector registers");
    if ((result = rm_tracee_get_sigmask(&a->tracee, &a->sigmask)) < 0)
        return fail(a, result, "reading its signal mask");
    uint8_t code[RM_INTERRUPTED_CODE] = {0};
    read_code(a, code);
    struct user_regs_struct context = rm_interrupted_context(&a->stopped, code);
    if (!rm_sigframe_build(&context, a->sigmask, xstate, xstate_length, a->code.restorer, &a->frame,
                           &a->error) ||
        !check_stack(a))
        return FALSE;
    if (!rm_code_check(a->pid, &a->code))
        return fail(a, -ESTALE, "its code changed");
    if ((result = write_frame(a)) < 0)
        return fail(a, result, "writing below its stack");
    return TRUE;
}

/* ---- steps 3 to 5 ---- */

static int aim(Attach *a, long number, uint64_t argument)
{
    struct user_regs_struct regs = a->stopped;
    regs.rip = a->code.syscall_ret;
    regs.rsp = a->frame.address;
    regs.rax = number;
    regs.rdi = argument;
    regs.orig_rax = -1; /* else the kernel would take it for an interrupted call */
    return rm_tracee_set_regs(&a->tracee, &regs);
}

/* Runs the call that the thread is aimed at. Negative: the attach failed; else *ret_value is what the call
 * returned. */
static int run(Attach *a, long number, int64_t *ret_value)
{
    struct user_regs_struct regs;
    int result = rm_tracee_run_to_syscall_stop(&a->tracee);
    if (result == 0)
        result = rm_tracee_run_to_syscall_stop(&a->tracee);
    if (result == 0)
        result = rm_tracee_get_regs(&a->tracee, &regs);
    if (result < 0)
        return result;
    if ((long)regs.orig_rax != number || regs.rip != a->code.syscall_ret + 2)
        return -EPROTO;
    *ret_value = (int64_t)regs.rax;
    return 0;
}

static gboolean fail_userfaultfd(Attach *a, int errno_value)
{
    const char *hint = errno_value == EPERM
                           ? "a security module (SELinux, AppArmor) or vm.unprivileged_userfaultfd forbids it"
                       : errno_value == EACCES ? "a security module (SELinux) forbids it: see the audit log"
                       : errno_value == ENOSYS ? "the kernel was built without it, or a sandbox hides it"
                       : errno_value == EMFILE
                           ? "the VMM is at its limit of open files: raise its RLIMIT_NOFILE"
                       : errno_value == ENFILE ? "the host is at fs.file-max"
                                               : "unexpected";
    return rm_set_errno(&a->error, RM_REASON_ATTACH, errno_value,
                        "userfaultfd in the VMM (process %d) failed: %s; the VMM runs on unharmed",
                        (int)a->pid, hint);
}

/* A copy of the thread's descriptor `number`, once it has proved to be what we asked for. */
static int take(Attach *a, int number)
{
    char path[64], target[64] = "";
    rm_tracee_step(&a->tracee);
    rm_autofd fd = (int)syscall(SYS_pidfd_getfd, a->pidfd, number, 0); /* sets O_CLOEXEC */
    int errno_value = errno;
    rm_tracee_step(&a->tracee);
    if (fd < 0) {
        rm_set_errno(&a->error, errno_value == EPERM ? RM_REASON_PRIVILEGE : RM_REASON_ATTACH, errno_value,
                     "cannot copy the userfaultfd out of the VMM (process %d)", (int)a->pid);
        return -1;
    }
    g_snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, "userfaultfd") == NULL) {
        rm_fail(&a->error, RM_REASON_ATTACH,
                "descriptor %d of process %d is \"%s\", not the userfaultfd just made: its threads do not "
                "share their "
                "descriptors",
                number, (int)a->pid, target);
        return -1;
    }
    return rm_fd_steal(&fd);
}

static gboolean inject(Attach *a)
{
    int64_t value = -1, closed = 0;
    int result = rm_tracee_set_sigmask(&a->tracee, a->sigmask);
    if (result == 0)
        result = aim(a, SYS_userfaultfd, (uint64_t)(unsigned)a->flags);
    rm_fault_pause("attach-hold-aimed");
    if (result == 0)
        result = rm_tracee_set_sigmask(&a->tracee, ~UINT64_C(0));
    if (result == 0)
        result = run(a, SYS_userfaultfd, &value);
    if (result < 0)
        return fail(a, result, "running userfaultfd in it");
    if (value < 0)
        return fail_userfaultfd(a, (int)-value);
    a->fd = take(a, (int)value);
    rm_fault_pause("attach-hold");
    /* Whether or not we could take it. */
    result = aim(a, SYS_close, (uint64_t)value);
    if (result == 0)
        result = run(a, SYS_close, &closed);
    if (a->error != NULL)
        return FALSE;
    if (result < 0 || closed < 0)
        return fail(a, result < 0 ? result : (int)closed, "closing the descriptor in it");
    return TRUE;
}

/* ---- step 6 ---- */

/* The thread stands where the last injected call ended, with all signals blocked. */
static int put_back(Attach *a)
{
    RmTaskStatus status;
    long result = rm_tracee_request(&a->tracee, PTRACE_INTERRUPT, 0, 0);
    if (result == 0)
        result = rm_tracee_request(&a->tracee, PTRACE_CONT, 0, 0);
    if (result == 0)
        result = rm_tracee_wait_event_stop(&a->tracee);
    if (result == 0)
        result = rm_tracee_set_sigmask(&a->tracee, a->sigmask);
    if (result < 0)
        return (int)result;
    if (!rm_task_status(a->pid, a->tracee.tid, &status, NULL))
        return -ESRCH;
    struct user_regs_struct regs = rm_interrupted_resume(&a->stopped, signal_due(&status));
    return rm_tracee_set_regs(&a->tracee, &regs);
}

static gpointer tracer(gpointer data)
{
    Attach *a = data;
    a->tracer = gettid();
    if (!look(a))
        return NULL;
    int result = (int)rm_tracee_request(&a->tracee, PTRACE_SEIZE, 0, PTRACE_O_TRACESYSGOOD);
    if (result < 0) {
        fail_seize(a, result);
        return NULL;
    }
    result = stop(a);
    if (result < 0) {
        fail(a, result, "stopping it");
        return NULL;
    }
    if (prepare(a)) {
        inject(a);
        /* Failing this leaves the frame to do it. Failing after the descriptor was taken is no failure of the
         * attach. */
        result = put_back(a);
        if (result < 0)
            g_debug("thread %d goes on through its signal frame: %s", (int)a->tracee.tid,
                    g_strerror(-result));
    }
    rm_tracee_request(&a->tracee, PTRACE_DETACH, 0, 0);
    a->stopped_us += g_get_monotonic_time() - a->stopped_at;
    return NULL;
}

/* The kernel lets go of a tracee shortly after the join of its tracer; callers may look, or try the next
 * thread. */
static void await_release(const Attach *a)
{
    RmTaskStatus status;
    for (int i = 0; i < RELEASE_TRIES; i++) {
        if (!rm_task_status(a->pid, a->tracee.tid, &status, NULL) || status.tracer != a->tracer)
            return;
        g_usleep(RELEASE_US);
    }
}

int rm_attach_userfaultfd(pid_t pid, pid_t tid, int flags, RmAttachStats *ret_stats, GError **error)
{
    Attach a = {
        .pid = pid,
        .flags = flags,
        .tracee = {.tid = tid, .wait_us = WAIT_US},
        .pidfd = -1,
        .fd = -1,
    };
    g_thread_join(g_thread_new("attach", tracer, &a));
    await_release(&a);
    rm_fd_clear(&a.pidfd);
    rm_sigframe_clear(&a.frame);
    g_clear_pointer(&a.mappings, g_array_unref);
    if (a.error != NULL) {
        rm_fd_clear(&a.fd);
        g_propagate_error(error, a.error);
        return -1;
    }
    if (ret_stats != NULL)
        *ret_stats = (RmAttachStats){.stopped_us = a.stopped_us, .steps = a.tracee.steps};
    return a.fd;
}
