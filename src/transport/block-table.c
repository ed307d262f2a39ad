/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The blocks of a session by index. */
#include "transport/block-table.h"

#include "common/reason.h"
#include "memory/chunk.h"

RmBlockTable *rm_block_table_new(const GPtrArray *blocks)
{
    unsigned capacity = blocks->len + RM_BLOCKS_ADDED_MAX;
    RmBlockTable *table = g_malloc0(sizeof *table + capacity * sizeof table->blocks[0]);
    table->capacity = capacity;
    for (unsigned i = 0; i < blocks->len; i++)
        table->blocks[i] = g_ptr_array_index(blocks, i);
    table->count = blocks->len;
    return table;
}

void rm_block_table_free(RmBlockTable *table)
{
    g_free(table);
}

void rm_block_table_add(RmBlockTable *table, RmBlock *block)
{
    g_assert(table->count < table->capacity);
    table->blocks[table->count] = block;
    __atomic_store_n(&table->count, table->count + 1, __ATOMIC_RELEASE);
}

RmBlock *rm_block_table_check_chunk(const RmBlockTable *table, uint64_t chunk_size, uint32_t index,
                                    uint64_t chunk, const RmExtent *extents, unsigned n, GError **error)
{
    RmBlock *block = rm_block_table_get(table, index);
    if (block == NULL || chunk >= rm_chunk_count(block, chunk_size)) {
        rm_fail(error, RM_REASON_PROTOCOL,
                "the source asked for block %u, chunk %" G_GUINT64_FORMAT ", which does not exist", index,
                chunk);
        return NULL;
    }
    uint64_t start = chunk * chunk_size, end = start + rm_chunk_length(block, chunk_size, chunk);
    for (unsigned i = 0; i < n; i++)
        if (extents[i].start < start || extents[i].end > end || extents[i].start > extents[i].end) {
            rm_fail(error, RM_REASON_PROTOCOL,
                    "RAM block %s: the source asked for memory outside of chunk %" G_GUINT64_FORMAT,
                    block->name, chunk);
            return NULL;
        }
    return block;
}
