/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Chunk geometry. A chunk is the unit of registration: a power of two of bytes, aligned within its block; the
 * last one of a block may be short. It is not a unit of transfer: only runs of dirty pages inside it are
 * written.
 */
#pragma once

#include "memory/block.h"

#define RM_CHUNK_MIN (UINT64_C(1) << 20) /* negotiable range: docs/protocol.md */
#define RM_CHUNK_MAX (UINT64_C(1) << 30)
#define RM_CHUNK_DEFAULT (UINT64_C(64) << 20)

static inline gboolean rm_chunk_size_valid(uint64_t size)
{
    return size >= RM_CHUNK_MIN && size <= RM_CHUNK_MAX && (size & (size - 1)) == 0;
}

static inline uint64_t rm_chunk_count(const RmBlock *block, uint64_t chunk_size)
{
    return block->size / chunk_size + (block->size % chunk_size != 0);
}

static inline uint64_t rm_chunk_length(const RmBlock *block, uint64_t chunk_size, uint64_t chunk)
{
    return MIN(chunk_size, block->size - chunk * chunk_size);
}

/* The channel a chunk is bound to for the whole session: two versions of one page never travel on two
 * channels. */
static inline unsigned rm_chunk_channel(uint32_t block_index, uint64_t chunk, unsigned channels)
{
    return (unsigned)((block_index + chunk) % channels);
}
