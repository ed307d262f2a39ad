/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What can go wrong with a thread for reasons of its own.
 *
 * Known limit: a thread that is just executing a signal handler on an alternate stack which is too small for
 * one more frame, and lies amid other data, cannot be told from one with a stack of ample size. The kernel
 * would overflow such a stack with the next nested signal, too.
 */
#include "tracker/thread-checks.h"

#include "common/privileges.h"
#include "common/reason.h"
#include "tracker/seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define MAX_FILTERS 64

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif

struct rseq_configuration { /* include/uapi/linux/ptrace.h, Linux 5.13: struct ptrace_rseq_configuration */
    uint64_t rseq_abi_pointer;
    uint32_t rseq_abi_size;
    uint32_t signature;
    uint32_t flags;
    uint32_t pad;
};

#define RSEQ_CS_AT 8 /* include/uapi/linux/rseq.h: struct rseq.rseq_cs */

struct critical_section { /* struct rseq_cs there */
    uint32_t version, flags;
    uint64_t start, length, abort;
};

static const long our_syscalls[] = {SYS_userfaultfd, SYS_close, SYS_rt_sigreturn, SYS_restart_syscall};

static gboolean judge(const struct sock_filter *filter, unsigned length, const RmCode *code, GError **error)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(our_syscalls); i++) {
        struct seccomp_data data = {
            .nr = (int)our_syscalls[i],
            .arch = AUDIT_ARCH_X86_64,
            .instruction_pointer = code->syscall_ret + 2,
        };
        uint32_t action = rm_seccomp_run(filter, length, &data) & SECCOMP_RET_ACTION_FULL;
        if (action != SECCOMP_RET_ALLOW && action != SECCOMP_RET_LOG)
            return rm_fail(
                error, RM_REASON_ATTACH,
                "a seccomp filter of the VMM forbids system call %ld (action: %s), so it was not tried; "
                "allow userfaultfd in the VMM's sandbox",
                our_syscalls[i], rm_seccomp_action_name(action));
    }
    return TRUE;
}

gboolean rm_check_seccomp(RmTracee *tracee, const RmCode *code, GError **error)
{
    g_autofree struct sock_filter *filter = g_new0(struct sock_filter, BPF_MAXINSNS);
    for (unsigned i = 0; i < MAX_FILTERS; i++) {
        rm_privileges_admin(TRUE);
        long length = rm_tracee_request(tracee, PTRACE_SECCOMP_GET_FILTER, i, (uintptr_t)filter);
        rm_privileges_admin(FALSE);
        if (length == -ENOENT && i > 0)
            return TRUE;
        if (length == -EACCES || length == -EPERM)
            return rm_fail(
                error, RM_REASON_PRIVILEGE,
                "the VMM runs under a seccomp filter, which only a process with CAP_SYS_ADMIN may read; a "
                "call that it forbids could kill the VMM, so none was tried: run rdmamig as root");
        if (length <= 0)
            return rm_set_errno(
                error, RM_REASON_ATTACH, length < 0 ? (int)-length : EIO,
                "the VMM runs under a seccomp filter that cannot be read (needs a kernel with "
                "CONFIG_CHECKPOINT_RESTORE, and rdmamig itself outside any seccomp filter)");
        if (!judge(filter, (unsigned)length, code, error))
            return FALSE;
    }
    return rm_fail(error, RM_REASON_ATTACH, "the VMM runs under more than %d seccomp filters", MAX_FILTERS);
}

gboolean rm_check_stack(const GArray *mappings, uint64_t address, uint64_t length, GError **error)
{
    const RmMapping *mapping = rm_mappings_find(mappings, address);
    if (mapping != NULL && mapping->write && !mapping->shared && address + length < mapping->end)
        return TRUE;
    return rm_fail(error, RM_REASON_ATTACH,
                   "no room for %" G_GUINT64_FORMAT
                   " bytes below the thread's stack pointer (%#" G_GINT64_MODIFIER "x)",
                   length, address + length);
}

static gboolean read_exactly(pid_t pid, uint64_t address, void *data, size_t length)
{
    struct iovec local = {data, length}, remote = {(void *)(uintptr_t)address, length};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)length;
}

int rm_abort_rseq(RmTracee *tracee, pid_t pid, struct user_regs_struct *regs)
{
    struct rseq_configuration config = {0};
    struct critical_section section;
    uint64_t pointer;
    long result = rm_tracee_request(tracee, PTRACE_GET_RSEQ_CONFIGURATION, sizeof config, (uintptr_t)&config);
    if (result == -EIO || result == -EINVAL || (result >= 0 && config.rseq_abi_pointer == 0))
        return 0; /* a kernel without rseq, or a thread that has not registered any */
    if (result < 0)
        return (int)result;
    if (!read_exactly(pid, config.rseq_abi_pointer + RSEQ_CS_AT, &pointer, sizeof pointer))
        return -EFAULT;
    if (pointer == 0)
        return 0;
    if (!read_exactly(pid, pointer, &section, sizeof section))
        return -EFAULT;
    /* The kernel aborts a section on the way back to user mode, by the instruction pointer it finds there:
     * ours, at that time. It would never do so again. */
    if (regs->rip - section.start < section.length)
        regs->rip = section.abort;
    return 0;
}
