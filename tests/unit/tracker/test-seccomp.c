/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The interpreter for seccomp filters, instruction by instruction; test-attach.c holds it against real
 * filters. */
#include "tracker/seccomp.h"

#include <linux/audit.h>
#include <stddef.h>

#define RUN(...)                                                                                             \
    run((const struct sock_filter[]){__VA_ARGS__},                                                           \
        sizeof((const struct sock_filter[]){__VA_ARGS__}) / sizeof(struct sock_filter))

static const struct seccomp_data data = {
    .nr = 323,
    .arch = AUDIT_ARCH_X86_64,
    .instruction_pointer = UINT64_C(0x1122334455667788),
    .args = {UINT64_C(0xaabbccdd00112233)},
};

static uint32_t run(const struct sock_filter *filter, unsigned length)
{
    return rm_seccomp_run(filter, length, &data);
}

static void test_loads(void)
{
    g_assert_cmphex(RUN(BPF_STMT(BPF_RET | BPF_K, 7)), ==, 7);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_STMT(BPF_RET | BPF_A, 0)), ==, 323);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), BPF_STMT(BPF_RET | BPF_A, 0)), ==,
                    AUDIT_ARCH_X86_64);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 12), BPF_STMT(BPF_RET | BPF_A, 0)), ==,
                    0x11223344);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16), BPF_STMT(BPF_RET | BPF_A, 0)), ==,
                    0x00112233);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_IMM, 9), BPF_STMT(BPF_ST, 3), BPF_STMT(BPF_LD | BPF_IMM, 1),
                        BPF_STMT(BPF_LDX | BPF_MEM, 3), BPF_STMT(BPF_MISC | BPF_TXA, 0),
                        BPF_STMT(BPF_RET | BPF_A, 0)),
                    ==, 9);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_RET | BPF_A, 0)), ==,
                    sizeof data);
}

static void test_arithmetic(void)
{
    static const struct {
        uint16_t op;
        uint32_t a, k, expected;
    } cases[] = {
        {BPF_ADD, 0xffffffff, 2, 1}, {BPF_SUB, 1, 2, 0xffffffff}, {BPF_MUL, 3, 5, 15},
        {BPF_DIV, 17, 5, 3},         {BPF_AND, 0xff, 0x3c, 0x3c}, {BPF_OR, 0xf0, 0x0f, 0xff},
        {BPF_XOR, 0xff, 0x0f, 0xf0}, {BPF_LSH, 1, 31, 1u << 31},  {BPF_RSH, 0x80, 3, 0x10},
        {BPF_NEG, 1, 0, 0xffffffff},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_IMM, cases[i].a),
                            BPF_STMT(BPF_ALU | cases[i].op | BPF_K, cases[i].k),
                            BPF_STMT(BPF_RET | BPF_A, 0)),
                        ==, cases[i].expected);
        g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_IMM, cases[i].k), BPF_STMT(BPF_MISC | BPF_TAX, 0),
                            BPF_STMT(BPF_LD | BPF_IMM, cases[i].a),
                            BPF_STMT(BPF_ALU | cases[i].op | BPF_X, 0xbad), BPF_STMT(BPF_RET | BPF_A, 0)),
                        ==, cases[i].expected);
    }
}

static void test_jumps(void)
{
    static const struct {
        uint16_t op;
        uint32_t a, k;
        gboolean taken;
    } cases[] = {
        {BPF_JEQ, 5, 5, TRUE},  {BPF_JEQ, 5, 6, FALSE},  {BPF_JGT, 6, 5, TRUE},
        {BPF_JGT, 5, 5, FALSE}, {BPF_JGE, 5, 5, TRUE},   {BPF_JGE, 4, 5, FALSE},
        {BPF_JSET, 6, 2, TRUE}, {BPF_JSET, 4, 2, FALSE}, {BPF_JGT, 0x80000000, 1, TRUE},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpuint(RUN(BPF_STMT(BPF_LD | BPF_IMM, cases[i].a),
                             BPF_JUMP(BPF_JMP | cases[i].op | BPF_K, cases[i].k, 1, 0),
                             BPF_STMT(BPF_RET | BPF_K, 100), BPF_STMT(BPF_RET | BPF_K, 200)),
                         ==, cases[i].taken ? 200 : 100);
    g_assert_cmpuint(RUN(BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0), BPF_STMT(BPF_RET | BPF_K, 100),
                         BPF_STMT(BPF_RET | BPF_K, 200)),
                     ==, 200);
}

/* What cannot be understood must count as the worst. */
static void test_invalid(void)
{
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_IMM, 1)), ==, SECCOMP_RET_KILL_PROCESS); /* no end */
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 64), BPF_STMT(BPF_RET | BPF_K, 7)), ==,
                    SECCOMP_RET_KILL_PROCESS);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0), BPF_STMT(BPF_RET | BPF_K, 7)), ==,
                    SECCOMP_RET_KILL_PROCESS);
    g_assert_cmphex(RUN(BPF_JUMP(BPF_JMP | BPF_JA, 0xffffffff, 0, 0), BPF_STMT(BPF_RET | BPF_K, 7)), ==,
                    SECCOMP_RET_KILL_PROCESS);
    g_assert_cmphex(RUN(BPF_STMT(BPF_LD | BPF_IMM, 1), BPF_STMT(BPF_ALU | BPF_DIV | BPF_X, 0),
                        BPF_STMT(BPF_RET | BPF_K, 7)),
                    ==, SECCOMP_RET_KILL_PROCESS);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/seccomp/loads", test_loads);
    g_test_add_func("/seccomp/arithmetic", test_arithmetic);
    g_test_add_func("/seccomp/jumps", test_jumps);
    g_test_add_func("/seccomp/invalid", test_invalid);
    return g_test_run();
}
