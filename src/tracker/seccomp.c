/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * An interpreter for the part of classic BPF that the kernel lets into seccomp filters (kernel/seccomp.c,
 * seccomp_check_filter). Filters have no backward jumps, so each run ends.
 */
#include "tracker/seccomp.h"

#include <string.h>

#define INVALID SECCOMP_RET_KILL_PROCESS

static gboolean alu(uint16_t code, uint32_t *a, uint32_t operand)
{
    switch (BPF_OP(code)) {
    case BPF_ADD:
        *a += operand;
        return TRUE;
    case BPF_SUB:
        *a -= operand;
        return TRUE;
    case BPF_MUL:
        *a *= operand;
        return TRUE;
    case BPF_DIV:
        *a = operand == 0 ? 0 : *a / operand;
        return operand != 0;
    case BPF_AND:
        *a &= operand;
        return TRUE;
    case BPF_OR:
        *a |= operand;
        return TRUE;
    case BPF_XOR:
        *a ^= operand;
        return TRUE;
    case BPF_LSH:
        *a <<= operand & 31;
        return TRUE;
    case BPF_RSH:
        *a >>= operand & 31;
        return TRUE;
    case BPF_NEG:
        *a = -*a;
        return TRUE;
    default:
        return FALSE;
    }
}

/* How many instructions to skip; -1 if it is no jump. */
static int64_t jump(const struct sock_filter *in, uint32_t a, uint32_t operand)
{
    switch (BPF_OP(in->code)) {
    case BPF_JA:
        return in->k;
    case BPF_JEQ:
        return a == operand ? in->jt : in->jf;
    case BPF_JGT:
        return a > operand ? in->jt : in->jf;
    case BPF_JGE:
        return a >= operand ? in->jt : in->jf;
    case BPF_JSET:
        return (a & operand) != 0 ? in->jt : in->jf;
    default:
        return -1;
    }
}

static gboolean load(const struct sock_filter *in, const struct seccomp_data *data, const uint32_t *memory,
                     uint32_t *ret_value)
{
    switch (BPF_MODE(in->code)) {
    case BPF_IMM:
        *ret_value = in->k;
        return TRUE;
    case BPF_LEN:
        *ret_value = sizeof *data;
        return TRUE;
    case BPF_MEM:
        *ret_value = memory[in->k % BPF_MEMWORDS];
        return TRUE;
    case BPF_ABS:
        if (in->k > sizeof *data - sizeof *ret_value || in->k % 4 != 0)
            return FALSE;
        memcpy(ret_value, (const uint8_t *)data + in->k, sizeof *ret_value);
        return TRUE;
    default:
        return FALSE;
    }
}

uint32_t rm_seccomp_run(const struct sock_filter *filter, unsigned length, const struct seccomp_data *data)
{
    uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {0};
    for (uint64_t pc = 0; pc < length; pc++) {
        const struct sock_filter *in = &filter[pc];
        uint32_t operand = BPF_SRC(in->code) == BPF_X ? x : in->k;
        int64_t skip;
        gboolean ok = TRUE;
        switch (BPF_CLASS(in->code)) {
        case BPF_LD:
            ok = load(in, data, memory, &a);
            break;
        case BPF_LDX:
            ok = load(in, data, memory, &x);
            break;
        case BPF_ST:
            memory[in->k % BPF_MEMWORDS] = a;
            break;
        case BPF_STX:
            memory[in->k % BPF_MEMWORDS] = x;
            break;
        case BPF_ALU:
            ok = alu(in->code, &a, operand);
            break;
        case BPF_JMP:
            skip = jump(in, a, operand);
            ok = skip >= 0;
            pc += (uint64_t)MAX(skip, 0);
            break;
        case BPF_RET:
            return BPF_RVAL(in->code) == BPF_A ? a : in->k;
        case BPF_MISC:
            if (BPF_MISCOP(in->code) == BPF_TAX)
                x = a;
            else
                a = x;
            break;
        }
        if (!ok)
            return INVALID;
    }
    return INVALID;
}

const char *rm_seccomp_action_name(uint32_t action)
{
    switch (action & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_ALLOW:
        return "allow";
    case SECCOMP_RET_LOG:
        return "log";
    case SECCOMP_RET_TRACE:
        return "trace";
    case SECCOMP_RET_USER_NOTIF:
        return "notify";
    case SECCOMP_RET_ERRNO:
        return "errno";
    case SECCOMP_RET_TRAP:
        return "trap";
    default:
        return "kill";
    }
}
