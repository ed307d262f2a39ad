/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A block at the destination, chunk by chunk.
 *
 * Locks: registering takes long (it populates), so each chunk has one of a few locks, and the registration
 * pool's threads work on different chunks at once. Words of `asked` are never shared between chunks: a
 * granule is 256 pages.
 */
#include "transport/verbs/target.h"

#include "common/bitmap.h"
#include "common/reason.h"
#include "memory/chunk.h"
#include "memory/zero.h"

#define N_LOCKS 16
#define PAGES_PER_LOOK 256 /* between two looks at the clock */

struct RmVerbsTarget {
    RmBlock *block;
    uint64_t chunk_size;
    uint64_t n_chunks;
    GMutex locks[N_LOCKS];
    GArray **chunks;    /* lock of the chunk: its pieces; NULL while there are none */
    RmBitmap *asked;    /* lock of the chunk: pages that somebody announced to write */
    uint8_t *populated; /* lock of the chunk: by granule, whether it has ever been registered */
};

RmVerbsTarget *rm_verbs_target_new(RmBlock *block, uint64_t chunk_size)
{
    RmVerbsTarget *target = g_new0(RmVerbsTarget, 1);
    target->block = block;
    target->chunk_size = chunk_size;
    target->n_chunks = rm_chunk_count(block, chunk_size);
    target->chunks = g_new0(GArray *, target->n_chunks);
    target->asked = rm_bitmap_new(rm_block_pages(block));
    target->populated = g_new0(uint8_t, rm_chunk_count(block, RM_CHUNK_MIN));
    for (unsigned i = 0; i < N_LOCKS; i++)
        g_mutex_init(&target->locks[i]);
    return target;
}

void rm_verbs_target_free(RmVerbsTarget *target)
{
    if (target == NULL)
        return;
    for (uint64_t i = 0; i < target->n_chunks; i++)
        g_clear_pointer(&target->chunks[i], g_array_unref);
    for (unsigned i = 0; i < N_LOCKS; i++)
        g_mutex_clear(&target->locks[i]);
    rm_bitmap_free(target->asked);
    g_free(target->populated);
    g_free(target->chunks);
    g_free(target);
}

/* ---- registering ---- */

/* What one request works with. */
typedef struct {
    RmVerbsTarget *target;
    GArray *pieces; /* of the chunk */
    RmVerbsRegions *regions;
    struct ibv_pd *pd;
    const RmVerbsLimits *limits;
} Request;

/* Makes what is not yet of [start, end) writable, in as many regions as the device's limit on their size asks
 * for. An attempt that fails leaves what it has registered, for the next one to go on from. */
static gboolean register_range(Request *request, uint64_t start, uint64_t end, GError **error)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    RmBlock *block = request->target->block;
    RmExtent gap;
    while (rm_verbs_pieces_gap(request->pieces, start, end, request->limits->max_mr_size, &gap)) {
        uint64_t length = gap.end - gap.start;
        RmVerbsPiece piece = {.offset = gap.start, .end = gap.end};
        /* By itself, since it tells better what was missing than a registration can. */
        if (!rm_block_populate(block, gap.start, length, error))
            return FALSE;
        for (uint64_t at = gap.start; at < gap.end; at = (at / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN)
            request->target->populated[at / RM_CHUNK_MIN] = TRUE;
        piece.mr = rm_verbs_region_new(request->regions, request->pd, request->limits, block->map + gap.start,
                                       length, gap.start, access, error);
        if (piece.mr == NULL) {
            g_prefix_error(error, "RAM block %s: ", block->name);
            return FALSE;
        }
        rm_verbs_pieces_insert(request->pieces, &piece);
    }
    return TRUE;
}

/* The granules of the extents, neighbours together. */
static gboolean register_granules(Request *request, uint64_t start, uint64_t length, const RmExtent *extents,
                                  unsigned n, GError **error)
{
    uint64_t count = (length + RM_CHUNK_MIN - 1) / RM_CHUNK_MIN;
    g_autofree gboolean *wanted = g_new0(gboolean, count);
    for (unsigned i = 0; i < n; i++)
        for (uint64_t at = extents[i].start; at < extents[i].end; at = (at / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN)
            wanted[(at - start) / RM_CHUNK_MIN] = TRUE;
    for (uint64_t first = 0, last; first < count; first = last) {
        last = first + 1;
        if (!wanted[first])
            continue;
        while (last < count && wanted[last])
            last++;
        if (!register_range(request, start + first * RM_CHUNK_MIN, start + MIN(last * RM_CHUNK_MIN, length),
                            error))
            return FALSE;
    }
    return TRUE;
}

static void answer_regions(const GArray *pieces, const RmExtent *extents, unsigned n, GArray *answer)
{
    unsigned answered = 0; /* pieces before this one have been, in the order of the extents */
    for (unsigned i = 0; i < n; i++) {
        unsigned at = MAX(rm_verbs_pieces_find(pieces, extents[i].start), answered);
        for (; at < pieces->len && rm_verbs_piece(pieces, at)->offset < extents[i].end; at++) {
            const RmVerbsPiece *piece = rm_verbs_piece(pieces, at);
            RmRegion region = {piece->offset, piece->end - piece->offset, piece->mr->rkey};
            g_array_append_val(answer, region);
            answered = at + 1;
        }
    }
}

static int compare_extents(gconstpointer a, gconstpointer b)
{
    const RmExtent *left = a, *right = b;
    return left->start < right->start ? -1 : left->start > right->start;
}

gboolean rm_verbs_target_register(RmVerbsTarget *target, uint64_t chunk, const RmExtent *wanted, unsigned n,
                                  RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                  GArray *answer, GError **error)
{
    uint64_t start = chunk * target->chunk_size;
    uint64_t length = rm_chunk_length(target->block, target->chunk_size, chunk);
    g_autoptr(GArray) sorted = g_array_sized_new(FALSE, FALSE, sizeof(RmExtent), n);
    g_array_append_vals(sorted, wanted, n);
    g_array_sort(sorted, compare_extents);
    const RmExtent *extents = (const RmExtent *)(const void *)sorted->data;

    GMutex *lock = &target->locks[chunk % N_LOCKS];
    g_mutex_lock(lock);
    if (target->chunks[chunk] == NULL)
        target->chunks[chunk] = rm_verbs_pieces_new();
    Request request = {target, target->chunks[chunk], regions, pd, limits};
    for (unsigned i = 0; i < n; i++) {
        uint64_t first = extents[i].start >> RM_PAGE_SHIFT;
        uint64_t end = (extents[i].end + RM_PAGE - 1) >> RM_PAGE_SHIFT;
        if (end > first)
            rm_bitmap_set(target->asked, first, end - first);
    }
    gboolean ok = register_granules(&request, start, length, extents, n, error);
    if (ok)
        answer_regions(request.pieces, extents, n, answer);
    g_mutex_unlock(lock);
    return ok;
}

/* ---- releasing ---- */

/* Under the chunk's lock. */
static gboolean release_range(GArray *pieces, uint64_t start, uint64_t end, RmVerbsRegions *regions,
                              GError **error)
{
    unsigned from = rm_verbs_pieces_find(pieces, start), to = from;
    while (to < pieces->len && rm_verbs_piece(pieces, to)->offset < end)
        to++;
    if (from == to)
        return TRUE;
    if (rm_verbs_piece(pieces, from)->offset < start || rm_verbs_piece(pieces, to - 1)->end > end)
        return rm_fail(error, RM_REASON_PROTOCOL, "the source released a part of what it had asked for");
    return rm_verbs_pieces_drop(pieces, from, to, regions) ||
           rm_fail(error, RM_REASON_TRANSPORT,
                   "the RDMA device did not end a registration; look at the kernel log");
}

gboolean rm_verbs_target_release(RmVerbsTarget *target, uint64_t chunk, const RmExtent *extents, unsigned n,
                                 RmVerbsRegions *regions, GError **error)
{
    GMutex *lock = &target->locks[chunk % N_LOCKS];
    gboolean ok = TRUE;
    g_mutex_lock(lock);
    for (unsigned i = 0; i < n && ok && target->chunks[chunk] != NULL; i++)
        ok = release_range(target->chunks[chunk], extents[i].start, extents[i].end, regions, error);
    g_mutex_unlock(lock);
    return ok;
}

/* ---- the end ---- */

gboolean rm_verbs_target_close(RmVerbsTarget *target, RmVerbsRegions *regions)
{
    gboolean ok = TRUE;
    for (uint64_t chunk = 0; chunk < target->n_chunks; chunk++) {
        GArray *pieces = target->chunks[chunk];
        if (pieces != NULL)
            ok = rm_verbs_pieces_drop(pieces, 0, pieces->len, regions) && ok;
    }
    return ok;
}

/* Punches the zero pages of [first, end), which nobody announced to write. */
static uint64_t trim_run(RmBlock *block, uint64_t first, uint64_t end, gint64 deadline_us)
{
    uint64_t trimmed = 0;
    for (uint64_t at = first; at < end && g_get_monotonic_time() < deadline_us;) {
        uint64_t from = at, most = MIN(end, at + PAGES_PER_LOOK);
        while (at < most && rm_is_zero(block->map + (at << RM_PAGE_SHIFT), RM_PAGE))
            at++;
        uint64_t bytes = (at - from) << RM_PAGE_SHIFT;
        if (bytes == 0)
            at++;
        else if (rm_block_zero(block, from << RM_PAGE_SHIFT, bytes, TRUE, NULL))
            trimmed += bytes;
    }
    return trimmed;
}

/*
 * Why this cannot lose a byte: there is no writer left. The queue pairs are destroyed and the regions
 * deregistered, zero ranges are written by the thread that calls this, and the VMM writes its RAM only from
 * the load on, which comes after. And a page of zeroes and a hole are the same to every reader, so that it
 * matters not whether a page which was not announced (a granule is asked for once) has been written since: if
 * it holds anything, it stays.
 *
 * Not on hugetlbfs, where a page given back might not be had again; nor in private memory, which is no file.
 */
uint64_t rm_verbs_target_trim(RmVerbsTarget *target, gint64 deadline_us)
{
    RmBlock *block = target->block;
    uint64_t trimmed = 0, pages = rm_block_pages(block);
    if (block->fd < 0 || block->hugetlb)
        return 0;
    for (uint64_t granule = 0; granule < rm_chunk_count(block, RM_CHUNK_MIN); granule++) {
        uint64_t at = granule * RM_CHUNK_MIN / RM_PAGE, end = MIN(at + RM_CHUNK_MIN / RM_PAGE, pages);
        for (uint64_t last; target->populated[granule] && at < end; at = last) {
            at = rm_bitmap_next_clear(target->asked, at, end);
            last = rm_bitmap_next_set(target->asked, at, end);
            trimmed += trim_run(block, at, last, deadline_us);
        }
    }
    return trimmed;
}
