/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Preamble, headers and runs of the tcp transport: what passes the checks lies within one chunk of one block.
 */
#include "fuzz.h"

#include "memory/chunk.h"
#include "transport/tcp/wire.h"

#include <string.h>

#define CHUNK (UINT64_C(1) << 20)

static void check_preamble(const uint8_t *data, size_t size)
{
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble preamble;
    if (size < sizeof bytes || !rm_tcp_preamble_parse(data, &preamble))
        return;
    rm_tcp_preamble_format(&preamble, bytes);
    g_assert_cmpmem(bytes, sizeof bytes, data, sizeof bytes);
}

static void check_frame(const uint8_t *data, size_t size, const RmTcpLimits *limits)
{
    RmTcpHeader header, posted;
    RmRun runs[RM_RUNS_MAX] = {0};
    if (size < sizeof header)
        return;
    memcpy(&header, data, sizeof header);
    rm_tcp_header_swap(&header);
    if (rm_tcp_header_check(&header, limits) != NULL || header.op == RM_TCP_OP_ROUND_END)
        return;
    g_assert_cmpuint(header.n, <=, RM_RUNS_MAX);
    memcpy(runs, data + sizeof header, MIN(size - sizeof header, header.n * sizeof runs[0]));
    rm_tcp_runs_swap(runs, header.n);
    if (rm_tcp_runs_check(&header, runs, limits) != NULL)
        return;
    const RmBlock *block = rm_block_table_get(limits->blocks, header.block);
    uint64_t total = 0;
    for (unsigned i = 0; i < header.n; i++) {
        g_assert_true(runs[i].length > 0 && runs[i].length <= RM_POST_BYTES_MAX);
        g_assert_true(runs[i].offset < block->size && runs[i].offset + runs[i].length <= block->size);
        g_assert_cmpuint(runs[i].offset / CHUNK, ==, runs[0].offset / CHUNK);
        total += runs[i].length;
    }
    g_assert_cmpuint(total, ==, header.total);
    g_assert_cmpuint(rm_chunk_channel(header.block, runs[0].offset / CHUNK, limits->channels), ==,
                     limits->channel);
    g_assert_null(rm_tcp_post_check(header.block, runs, header.n, limits, &posted));
    g_assert_cmpmem(&posted, sizeof posted, &header, sizeof header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(blocks, rm_block_new("ram", 8 * CHUNK));
    g_ptr_array_add(blocks, rm_block_new("odd", 2 * CHUNK + RM_PAGE));
    g_autoptr(RmBlockTable) table = rm_block_table_new(blocks);
    check_preamble(data, size);
    check_frame(data, size, &(RmTcpLimits){table, CHUNK, 2, 0, 1});
    return 0;
}
