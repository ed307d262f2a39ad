/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sorted pieces. */
#include "transport/verbs/pieces.h"

GArray *rm_verbs_pieces_new(void)
{
    return g_array_new(FALSE, FALSE, sizeof(RmVerbsPiece));
}

unsigned rm_verbs_pieces_find(const GArray *pieces, uint64_t offset)
{
    unsigned low = 0, high = pieces->len;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (rm_verbs_piece(pieces, middle)->end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

gboolean rm_verbs_pieces_gap(const GArray *pieces, uint64_t start, uint64_t end, uint64_t most,
                             RmExtent *ret_gap)
{
    unsigned at = rm_verbs_pieces_find(pieces, start);
    for (; at < pieces->len && rm_verbs_piece(pieces, at)->offset <= start; at++)
        start = rm_verbs_piece(pieces, at)->end;
    if (start >= end)
        return FALSE;
    uint64_t gap_end = at < pieces->len ? MIN(end, rm_verbs_piece(pieces, at)->offset) : end;
    *ret_gap = (RmExtent){start, start + MIN(gap_end - start, most)};
    return TRUE;
}

void rm_verbs_pieces_insert(GArray *pieces, const RmVerbsPiece *piece)
{
    g_array_insert_val(pieces, rm_verbs_pieces_find(pieces, piece->offset), *piece);
}

gboolean rm_verbs_pieces_drop(GArray *pieces, unsigned from, unsigned to, RmVerbsRegions *regions)
{
    gboolean ok = TRUE;
    for (unsigned at = to; at > from; at--) {
        if (rm_verbs_region_free(regions, rm_verbs_piece(pieces, at - 1)->mr))
            g_array_remove_index(pieces, at - 1);
        else
            ok = FALSE;
    }
    return ok;
}
