/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A block at the source, chunk by chunk. */
#include "transport/verbs/origin.h"

#include "memory/chunk.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    GArray *regions; /* lock: RmRegion, sorted, not overlapping; NULL while there are none */
    GArray *pieces;  /* the channel's thread's own; NULL while there are none */
} Chunk;

struct RmVerbsOrigin {
    const RmBlock *block;
    uint64_t chunk_size;
    uint64_t n_chunks;
    GMutex lock;
    Chunk *chunks;
    /* By granule, the channel's thread's own: the round in which it was last found to have a hole, or could
     * not be registered; 0: never. */
    uint32_t *looked;
};

/* What a window has to end, in the order in which it was registered. */
typedef struct {
    RmVerbsOrigin *origin;
    uint64_t offset;
} Registered;

RmVerbsOrigin *rm_verbs_origin_new(const RmBlock *block, uint64_t chunk_size)
{
    RmVerbsOrigin *origin = g_new0(RmVerbsOrigin, 1);
    origin->block = block;
    origin->chunk_size = chunk_size;
    origin->n_chunks = rm_chunk_count(block, chunk_size);
    origin->chunks = g_new0(Chunk, origin->n_chunks);
    origin->looked = g_new0(uint32_t, rm_chunk_count(block, RM_CHUNK_MIN));
    g_mutex_init(&origin->lock);
    return origin;
}

void rm_verbs_origin_free(RmVerbsOrigin *origin, RmVerbsRegions *regions)
{
    if (origin == NULL)
        return;
    for (uint64_t i = 0; i < origin->n_chunks; i++) {
        Chunk *chunk = &origin->chunks[i];
        if (chunk->pieces != NULL)
            rm_verbs_pieces_drop(chunk->pieces, 0, chunk->pieces->len, regions);
        g_clear_pointer(&chunk->pieces, g_array_unref);
        g_clear_pointer(&chunk->regions, g_array_unref);
    }
    g_mutex_clear(&origin->lock);
    g_free(origin->looked);
    g_free(origin->chunks);
    g_free(origin);
}

void rm_verbs_window_init(RmVerbsWindow *window)
{
    g_mutex_init(&window->lock);
    g_queue_init(&window->oldest);
}

void rm_verbs_window_clear(RmVerbsWindow *window)
{
    g_queue_clear_full(&window->oldest, g_free);
    g_mutex_clear(&window->lock);
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

void rm_verbs_origin_forget(RmVerbsOrigin *origin, uint64_t start, uint64_t end)
{
    g_mutex_lock(&origin->lock);
    GArray *regions = origin->chunks[start / origin->chunk_size].regions;
    unsigned at = regions != NULL ? find(regions, start) : 0;
    while (regions != NULL && at < regions->len && g_array_index(regions, RmRegion, at).offset < end)
        g_array_remove_index(regions, at);
    g_mutex_unlock(&origin->lock);
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

/* ---- this side: the window ---- */

/* Ends the registration that was made first. The channel's thread, which alone reads through it. */
static int evict(Registered *oldest, RmVerbsWindow *window, RmVerbsRegions *regions, RmVerbsWriter *writer)
{
    GArray *pieces = oldest->origin->chunks[oldest->offset / oldest->origin->chunk_size].pieces;
    unsigned at = rm_verbs_pieces_find(pieces, oldest->offset);
    const RmVerbsPiece *piece = rm_verbs_piece(pieces, at);
    uint64_t length = piece->end - piece->offset;
    int code = rm_verbs_writer_wait(writer, piece->last_request);
    if (code < 0)
        return code;
    /* What the device keeps stays registered, and counted. */
    if (rm_verbs_pieces_drop(pieces, at, at + 1, regions)) {
        g_mutex_lock(&window->lock);
        window->used -= length;
        g_mutex_unlock(&window->lock);
    }
    return 0;
}

/* Room for `length` bytes; *ret_room is FALSE if there cannot be any. */
static int make_room(RmVerbsWindow *window, uint64_t length, RmVerbsRegions *regions, RmVerbsWriter *writer,
                     gboolean *ret_room)
{
    *ret_room = FALSE;
    while (length <= window->limit) {
        g_mutex_lock(&window->lock);
        *ret_room = window->used + length <= window->limit;
        if (*ret_room)
            window->used += length;
        g_autofree Registered *oldest = *ret_room ? NULL : g_queue_pop_head(&window->oldest);
        g_mutex_unlock(&window->lock);
        if (oldest == NULL)
            return 0;
        int code = evict(oldest, window, regions, writer);
        if (code < 0)
            return code;
    }
    return 0;
}

static void took_room(RmVerbsWindow *window, RmVerbsOrigin *origin, const RmVerbsPiece *piece)
{
    Registered *made = NULL;
    if (piece->mr != NULL) {
        made = g_new(Registered, 1);
        *made = (Registered){origin, piece->offset};
    }
    g_mutex_lock(&window->lock);
    if (made != NULL)
        g_queue_push_tail(&window->oldest, made);
    else
        window->used -= piece->end - piece->offset;
    g_mutex_unlock(&window->lock);
}

/* ---- this side: registering ---- */

/* Where the data that begins at `start` ends, at most `end`: what is before that is in the file, so that
 * registering it allocates nothing. */
static uint64_t data_end(const RmBlock *block, uint64_t start, uint64_t end)
{
    if (block->fd < 0)
        return start; /* the device state: small, and sent while the guest stands still */
    if (block->hugetlb) {
        /* It has no holes to seek: only a file that is allocated throughout has none. */
        uint64_t allocated;
        return rm_block_allocated(block, &allocated, NULL) && allocated >= block->file_offset + block->size
                   ? end
                   : start;
    }
    off_t from = (off_t)(block->file_offset + start);
    off_t hole = lseek(block->fd, from, SEEK_HOLE);
    return hole > from ? MIN(end, start + (uint64_t)(hole - from)) : start;
}

static void look_no_more(RmVerbsOrigin *origin, uint64_t start, uint64_t end, uint32_t round)
{
    for (uint64_t granule = start / RM_CHUNK_MIN; granule * RM_CHUNK_MIN < end; granule++)
        origin->looked[granule] = round;
}

/* The whole granules at the beginning of a gap; what is not whole is passed over. FALSE if there are none. */
static gboolean whole_granules(RmVerbsOrigin *origin, RmExtent *gap, uint32_t round)
{
    while (gap->start < gap->end) {
        uint64_t next = MIN((gap->start / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN, gap->end);
        if (origin->looked[gap->start / RM_CHUNK_MIN] != round) {
            uint64_t whole = data_end(origin->block, gap->start, gap->end);
            if (whole < gap->end)
                whole -= whole % RM_CHUNK_MIN;
            if (whole > gap->start) {
                gap->end = whole;
                return TRUE;
            }
            look_no_more(origin, gap->start, next, round);
        }
        gap->start = next;
    }
    return FALSE;
}

int rm_verbs_origin_prepare(RmVerbsOrigin *origin, uint64_t start, uint64_t end, uint32_t round,
                            RmVerbsWindow *window, RmVerbsRegions *regions, RmVerbsWriter *writer,
                            GError **ret_problem)
{
    const RmVerbsLimits *limits = &writer->qp.limits;
    Chunk *chunk = &origin->chunks[start / origin->chunk_size];
    RmExtent gap;
    if (chunk->pieces == NULL)
        chunk->pieces = rm_verbs_pieces_new();
    for (; rm_verbs_pieces_gap(chunk->pieces, start, end, UINT64_MAX, &gap); start = gap.end) {
        if (!whole_granules(origin, &gap, round))
            continue;
        gap.end = gap.start + MIN(gap.end - gap.start, limits->max_mr_size);
        g_autoptr(GError) problem = NULL;
        gboolean room = TRUE;
        RmVerbsPiece piece = {.offset = gap.start, .end = gap.end};
        int code = window->limit != 0 ? make_room(window, gap.end - gap.start, regions, writer, &room) : 0;
        if (code < 0)
            return code;
        if (room) {
            uint8_t *address = origin->block->map + gap.start;
            piece.mr = rm_verbs_region_new(regions, writer->qp.pd, limits, address, gap.end - gap.start,
                                           (uintptr_t)address, 0, &problem);
            if (window->limit != 0)
                took_room(window, origin, &piece);
        }
        if (piece.mr != NULL)
            rm_verbs_pieces_insert(chunk->pieces, &piece);
        else
            look_no_more(origin, gap.start, gap.end, round);
        if (problem != NULL && *ret_problem == NULL)
            *ret_problem = g_steal_pointer(&problem);
    }
    return 0;
}

RmVerbsPiece *rm_verbs_origin_piece(RmVerbsOrigin *origin, uint64_t offset, uint64_t end, uint64_t *ret_end)
{
    const GArray *pieces = origin->chunks[offset / origin->chunk_size].pieces;
    unsigned at = pieces != NULL ? rm_verbs_pieces_find(pieces, offset) : 0;
    *ret_end = end;
    if (pieces == NULL || at == pieces->len)
        return NULL;
    RmVerbsPiece *piece = rm_verbs_piece(pieces, at);
    gboolean inside = piece->offset <= offset;
    *ret_end = MIN(end, inside ? piece->end : piece->offset);
    return inside ? piece : NULL;
}
