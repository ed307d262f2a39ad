/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The blocks of a session by index. */
#include "transport/block-table.h"

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
