/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The registered pieces of a chunk, at either end: sorted by offset, not overlapping. */
#pragma once

#include "memory/block.h"
#include "transport/verbs/region.h"

typedef struct {
    uint64_t offset; /* in the block, as is end */
    uint64_t end;
    struct ibv_mr *mr;
    uint64_t last_request; /* source: number of the latest request that reads through it, and one; 0: none */
} RmVerbsPiece;

/* Arrays are of RmVerbsPiece. */
GArray *rm_verbs_pieces_new(void);

static inline RmVerbsPiece *rm_verbs_piece(const GArray *pieces, unsigned index)
{
    return &g_array_index(pieces, RmVerbsPiece, index);
}

/* Index of the first piece that ends behind `offset`. */
unsigned rm_verbs_pieces_find(const GArray *pieces, uint64_t offset);

/* The first stretch of [start, end) that is not registered, cut to `most` bytes; FALSE if there is none. */
gboolean rm_verbs_pieces_gap(const GArray *pieces, uint64_t start, uint64_t end, uint64_t most,
                             RmExtent *ret_gap);

/* It must fit. */
void rm_verbs_pieces_insert(GArray *pieces, const RmVerbsPiece *piece);

/* Deregisters [from, to) of the array, and forgets what was; FALSE if the device refused one. */
gboolean rm_verbs_pieces_drop(GArray *pieces, unsigned from, unsigned to, RmVerbsRegions *regions);
