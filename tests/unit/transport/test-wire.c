/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp wire format: bytes as documented, and no frame that passes the checks reaches outside of its block.
 */
#include "memory/chunk.h"
#include "transport/tcp/wire.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

static void test_preamble(void)
{
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble in = {.channel = 0x04030201}, out;
    for (unsigned i = 0; i < RM_TOKEN_BYTES; i++)
        in.token[i] = (uint8_t)(i + 100);
    rm_tcp_preamble_format(&in, bytes);
    g_assert_true(memcmp(bytes, "RMDATA1\n", 8) == 0);
    g_assert_cmpuint(bytes[8], ==, 100);
    g_assert_cmpuint(bytes[39], ==, 131);
    g_assert_true(memcmp(bytes + 40, "\1\2\3\4\0\0\0\0", 8) == 0);
    g_assert_true(rm_tcp_preamble_parse(bytes, &out));
    g_assert_cmpuint(out.channel, ==, in.channel);
    g_assert_true(rm_token_equal(in.token, out.token));
    for (unsigned i = 0; i < RM_TCP_PREAMBLE_BYTES; i++) {
        bytes[i] ^= 1;
        gboolean fixed = i < 8 || i >= 44; /* magic and reserved */
        g_assert_cmpint(rm_tcp_preamble_parse(bytes, &out), ==, !fixed);
        if (i >= 8 && i < 40)
            g_assert_false(rm_token_equal(in.token, out.token));
        bytes[i] ^= 1;
    }
}

static void test_order(void)
{
    RmTcpHeader header = {.op = RM_TCP_OP_WRITE, .block = 1, .n = 2, .total = 3};
    rm_tcp_header_swap(&header);
    g_assert_true(memcmp(&header, "RMWR\1\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0", 24) == 0);
    RmRun run = {0x0102030405060708, 0x1112131415161718};
    rm_tcp_runs_swap(&run, 1);
    g_assert_true(memcmp(&run, "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11", 16) == 0);
}

/* Numbers near every border there is. */
static uint64_t odd_number(void)
{
    static const uint64_t bases[] = {0, RM_PAGE, MIB, 2 * MIB, 5 * MIB, UINT64_C(1) << 32, UINT64_C(1) << 63};
    uint64_t base = bases[g_test_rand_int_range(0, G_N_ELEMENTS(bases))];
    uint64_t step = g_test_rand_bit() ? RM_PAGE : 1;
    uint64_t near = (uint64_t)g_test_rand_int_range(0, 4) * step;
    return g_test_rand_bit() ? base + near : base - near;
}

static void check_accepted(const RmTcpHeader *header, const RmRun *runs, const RmTcpLimits *limits)
{
    const RmBlock *block = rm_block_table_get(limits->blocks, header->block);
    uint64_t total = 0;
    g_assert_nonnull(block);
    g_assert_cmpuint(header->n, <=, RM_RUNS_MAX);
    for (unsigned i = 0; i < header->n; i++) {
        g_assert_cmpuint(runs[i].length, >, 0);
        g_assert_cmpuint(runs[i].offset, <, block->size);
        g_assert_cmpuint(runs[i].length, <=, block->size - runs[i].offset);
        g_assert_cmpuint(runs[i].offset / limits->chunk_size, ==, runs[0].offset / limits->chunk_size);
        total += runs[i].length;
    }
    g_assert_cmpuint(total, ==, header->total);
    g_assert_cmpuint(total, <=, RM_POST_BYTES_MAX);
}

static void test_random_frames(void)
{
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(blocks, rm_block_new("a", 5 * MIB));
    g_ptr_array_add(blocks, rm_block_new("b", 2 * MIB + RM_PAGE));
    g_autoptr(RmBlockTable) table = rm_block_table_new(blocks);
    RmTcpLimits limits = {table, MIB, 2, 0, 1};
    unsigned accepted = 0;
    for (unsigned i = 0; i < 300000; i++) {
        RmRun runs[RM_RUNS_MAX];
        RmTcpHeader header = {.op = RM_TCP_OP_WRITE, .block = (uint32_t)g_test_rand_int_range(0, 4)};
        header.n = (uint32_t)g_test_rand_int_range(0, 4);
        for (unsigned k = 0; k < header.n; k++) {
            runs[k] = (RmRun){odd_number(), odd_number()};
            header.total += (uint32_t)runs[k].length;
        }
        limits.channel = (unsigned)g_test_rand_int_range(0, 2);
        if (rm_tcp_header_check(&header, &limits) == NULL &&
            rm_tcp_runs_check(&header, runs, &limits) == NULL) {
            check_accepted(&header, runs, &limits);
            accepted++;
        }
    }
    g_assert_cmpuint(accepted, >, 100); /* else nothing was tested */
}

static void test_table(void)
{
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(blocks, rm_block_new("a", MIB));
    g_autoptr(RmBlockTable) table = rm_block_table_new(blocks);
    g_autoptr(RmBlock) added = rm_block_new("state", MIB);
    g_assert_null(rm_block_table_get(table, 1));
    rm_block_table_add(table, added);
    g_assert_true(rm_block_table_get(table, 0) == g_ptr_array_index(blocks, 0));
    g_assert_true(rm_block_table_get(table, 1) == added);
    g_assert_null(rm_block_table_get(table, 2));
    g_assert_null(rm_block_table_get(table, UINT32_MAX));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/wire/preamble", test_preamble);
    g_test_add_func("/wire/order", test_order);
    g_test_add_func("/wire/random-frames", test_random_frames);
    g_test_add_func("/wire/table", test_table);
    return g_test_run();
}
