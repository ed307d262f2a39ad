/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The blocks of a session by their index on the wire. Grows at its end only while data threads read it: an
 * entry is written before the count that makes it visible, and is never moved.
 */
#pragma once

#include "memory/block.h"

#define RM_BLOCKS_ADDED_MAX                                                                                  \
    16 /* blocks that a session may add to the guest's own; it adds one, the device state */

typedef struct {
    unsigned capacity;
    unsigned count; /* atomic */
    RmBlock *blocks[];
} RmBlockTable;

/* `blocks`: RmBlock*, borrowed for the table's life. */
RmBlockTable *rm_block_table_new(const GPtrArray *blocks);
void rm_block_table_free(RmBlockTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmBlockTable, rm_block_table_free)

/* By one thread at a time. */
void rm_block_table_add(RmBlockTable *table, RmBlock *block);

/* NULL if there is no such index. Any thread. */
static inline RmBlock *rm_block_table_get(const RmBlockTable *table, uint32_t index)
{
    return index < __atomic_load_n(&table->count, __ATOMIC_ACQUIRE) ? table->blocks[index] : NULL;
}

/* The block that a request to register `extents` of `chunk` is about, or NULL with reason protocol if there
 * is no such block or chunk, or an extent does not lie within it. */
RmBlock *rm_block_table_check_chunk(const RmBlockTable *table, uint64_t chunk_size, uint32_t block,
                                    uint64_t chunk, const RmExtent *extents, unsigned n, GError **error);
