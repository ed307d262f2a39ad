/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A block at the source, chunk by chunk. */
#include "transport/verbs/origin.h"

#include "memory/chunk.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    GArray *regions; /* lock: RmRegion, sorted, not overlapping; NULL while there are none */

    /* The channel's thread's own. */
    struct ibv_mr *mr;
    uint32_t looked; /* the round in which it was last found to have a hole, or could not be registered; 0:
                        never */
} Chunk;

struct RmVerbsOrigin {
    const RmBlock *block;
    uint64_t chunk_size;
    uint64_t n_chunks;
    GMutex lock;
    Chunk *chunks;
};

RmVerbsOrigin *rm_verbs_origin_new(const RmBlock *block, uint64_t chunk_size)
{
    RmVerbsOrigin *origin = g_new0(RmVerbsOrigin, 1);
    origin->block = block;
    origin->chunk_size = chunk_size;
    origin->n_chunks = rm_chunk_count(block, chunk_size);
    origin->chunks = g_new0(Chunk, origin->n_chunks);
    g_mutex_init(&origin->lock);
    return origin;
}

void rm_verbs_origin_free(RmVerbsOrigin *origin, RmVerbsRegions *regions)
{
    if (origin == NULL)
        return;
    for (uint64_t i = 0; i < origin->n_chunks; i++) {
        if (origin->chunks[i].mr != NULL)
            rm_verbs_region_free(regions, origin->chunks[i].mr);
        g_clear_pointer(&origin->chunks[i].regions, g_array_unref);
    }
    g_mutex_clear(&origin->lock);
    g_free(origin->chunks);
    g_free(origin);
}

/* ---- the far side ---- */

/* Index of the first region that ends behind `offset`. */
static unsigned find(const GArray *regions, uint64_t offset)
{
    unsigned low = 0, high = regions->len;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        const RmRegion *region = &g_array_index(regions, RmRegion, middle);
        if (region->offset + region->length <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What overlaps it is replaced: the far side's latest word counts. Under the lock. */
static void add_region(GArray *regions, const RmRegion *region)
{
    unsigned at = find(regions, region->offset);
    while (at < regions->len && g_array_index(regions, RmRegion, at).offset < region->offset + region->length)
        g_array_remove_index(regions, at);
    g_array_insert_val(regions, at, *region);
}

gboolean rm_verbs_origin_add(RmVerbsOrigin *origin, const RmRegion *regions, unsigned n)
{
    gboolean ok = TRUE;
    g_mutex_lock(&origin->lock);
    for (unsigned i = 0; i < n && ok; i++) {
        const RmRegion *region = &regions[i];
        uint64_t index = region->offset / origin->chunk_size;
        ok = region->length > 0 && region->length <= origin->block->size &&
             region->offset <= origin->block->size - region->length &&
             (region->offset + region->length - 1) / origin->chunk_size == index;
        if (!ok)
            break;
        Chunk *chunk = &origin->chunks[index];
        if (chunk->regions == NULL)
            chunk->regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
        add_region(chunk->regions, region);
    }
    g_mutex_unlock(&origin->lock);
    return ok;
}

gboolean rm_verbs_origin_find(RmVerbsOrigin *origin, uint64_t offset, RmRegion *ret_region)
{
    gboolean found = FALSE;
    g_mutex_lock(&origin->lock);
    const GArray *regions = origin->chunks[offset / origin->chunk_size].regions;
    unsigned at = regions != NULL ? find(regions, offset) : 0;
    if (regions != NULL && at < regions->len && g_array_index(regions, RmRegion, at).offset <= offset) {
        *ret_region = g_array_index(regions, RmRegion, at);
        found = TRUE;
    }
    g_mutex_unlock(&origin->lock);
    return found;
}

/* ---- this side ---- */

/* Whether every page of [start, start + length) is in the file, so that registering it allocates none. */
static gboolean is_whole(const RmBlock *block, uint64_t start, uint64_t length)
{
    if (block->fd < 0)
        return FALSE; /* the device state: small, and sent while the guest stands still */
    if (block->hugetlb) {
        /* It has no holes to seek: only a file that is allocated throughout has none. */
        uint64_t allocated;
        return rm_block_allocated(block, &allocated, NULL) && allocated >= block->file_offset + block->size;
    }
    off_t from = (off_t)(block->file_offset + start);
    off_t hole = lseek(block->fd, from, SEEK_HOLE);
    return hole >= from && (uint64_t)(hole - from) >= length;
}

struct ibv_mr *rm_verbs_origin_mr(RmVerbsOrigin *origin, uint64_t index, uint32_t round,
                                  RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                  GError **ret_problem)
{
    Chunk *chunk = &origin->chunks[index];
    const RmBlock *block = origin->block;
    uint64_t start = index * origin->chunk_size, length = rm_chunk_length(block, origin->chunk_size, index);
    if (chunk->mr != NULL || chunk->looked == round)
        return chunk->mr;
    chunk->looked = round;
    if (length > limits->max_mr_size || !is_whole(block, start, length))
        return NULL;
    g_autoptr(GError) problem = NULL;
    uint8_t *address = block->map + start;
    chunk->mr = rm_verbs_region_new(regions, pd, limits, address, length, (uintptr_t)address, 0, &problem);
    if (problem != NULL && *ret_problem == NULL)
        *ret_problem = g_steal_pointer(&problem);
    return chunk->mr;
}
