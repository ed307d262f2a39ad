/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rules by which an interrupted system call is taken up again. */
#include "tracker/interrupted.h"

#include <errno.h>
#include <sys/syscall.h>

#define RIP 0x401002

static const uint8_t no_code[RM_INTERRUPTED_CODE];

static struct user_regs_struct stopped(long number, long result)
{
    return (struct user_regs_struct){
        .orig_rax = (unsigned long long)number, .rax = (unsigned long long)result, .rip = RIP, .rdi = 42};
}

/* `number`: what is to run again; -1: the thread goes on behind the call. */
static void expect(struct user_regs_struct regs, const struct user_regs_struct *was, long number)
{
    g_assert_cmphex(regs.rdi, ==, was->rdi);
    if (number < 0) {
        g_assert_cmphex(regs.rip, ==, was->rip);
        g_assert_cmphex(regs.rax, ==, was->rax);
        g_assert_cmphex(regs.orig_rax, ==, was->orig_rax);
    } else {
        g_assert_cmphex(regs.rip, ==, was->rip - 2);
        g_assert_cmphex(regs.rax, ==, (unsigned long long)number);
        g_assert_cmpint((long long)regs.orig_rax, ==, -1); /* not to be restarted a second time */
    }
}

static void test_rules(void)
{
    /* What runs again after our death, what after a return in peace, and what if a handler is due then. */
    static const struct {
        long number, result, context, resume, resume_due;
    } cases[] = {
        {SYS_read, -512, SYS_read, -1, -1}, /* put back as they were, for the kernel to decide */
        {SYS_read, -513, SYS_read, -1, -1},
        {SYS_ppoll, -514, SYS_ppoll, -1, -1},
        {SYS_nanosleep, -516, SYS_nanosleep, -1, -1},
        {SYS_epoll_wait, -EINTR, SYS_epoll_wait, SYS_epoll_wait, -1},
        {SYS_io_uring_enter, -EINTR, SYS_io_uring_enter, SYS_io_uring_enter, -1},
        {SYS_ioctl, -EINTR, -1, -1, -1}, /* KVM_RUN */
        {SYS_write, -EINTR, -1, -1, -1},
        {SYS_close, -EINTR, -1, -1, -1},
        {SYS_epoll_wait, 3, -1, -1, -1},
        {SYS_read, -EAGAIN, -1, -1, -1},
        {SYS_read, -515, -1, -1, -1},
        {-1, -512, -1, -1, -1}, /* a number in rax outside of any system call */
        {-1, -EINTR, -1, -1, -1},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct user_regs_struct regs = stopped(cases[i].number, cases[i].result);
        expect(rm_interrupted_context(&regs, no_code), &regs, cases[i].context);
        expect(rm_interrupted_resume(&regs, FALSE), &regs, cases[i].resume);
        expect(rm_interrupted_resume(&regs, TRUE), &regs, cases[i].resume_due);
    }
}

static void test_restarted_before(void)
{
    struct user_regs_struct regs = stopped(SYS_restart_syscall, -516);
    const uint8_t futex[RM_INTERRUPTED_CODE] = {0xb8, SYS_futex, 0, 0, 0, 0x0f, 0x05};
    const uint8_t other[RM_INTERRUPTED_CODE] = {0xb8, SYS_reboot, 0, 0, 0, 0x0f, 0x05};
    const uint8_t no_mov[RM_INTERRUPTED_CODE] = {0xb9, SYS_futex, 0, 0, 0, 0x0f, 0x05};
    const uint8_t no_syscall[RM_INTERRUPTED_CODE] = {0xb8, SYS_futex, 0, 0, 0, 0xcd, 0x80};
    expect(rm_interrupted_context(&regs, futex), &regs, SYS_futex);
    expect(rm_interrupted_context(&regs, other), &regs, SYS_restart_syscall);
    expect(rm_interrupted_context(&regs, no_mov), &regs, SYS_restart_syscall);
    expect(rm_interrupted_context(&regs, no_syscall), &regs, SYS_restart_syscall);
    expect(rm_interrupted_resume(&regs, FALSE), &regs, -1);
    regs = stopped(SYS_poll, -516); /* the number is known: the code is not asked */
    expect(rm_interrupted_context(&regs, futex), &regs, SYS_poll);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/interrupted/rules", test_rules);
    g_test_add_func("/interrupted/restarted-before", test_restarted_before);
    return g_test_run();
}
