/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Guest memory at the source: what of a block may be written at the far side, with which key, and from where
 * it is read.
 *
 * A chunk is read in place, through a registration of its own, made at its first write: local access only, so
 * that the key is worth nothing to anybody else. But registering populates: a chunk with a hole in its file
 * would grow, and a page that the guest punches out of a registered chunk and fills again is another page, of
 * which the card knows nothing: it would send the old bytes. So a chunk that is not whole in its file is read
 * by us and sent as a copy, and so is everything if the guest may punch holes at any time (RmTxParams.copy).
 * Whether a chunk is whole is looked at again in each round, until it is: holes get filled, and only the
 * guests of `copy` make new ones.
 *
 * Copying is also the way out when the card or the limit of locked memory allows no further registration.
 *
 * A chunk's registration belongs to its channel's thread. The far side's regions may come from any thread:
 * they have a lock.
 */
#pragma once

#include "transport/transport.h"
#include "transport/verbs/region.h"

typedef struct RmVerbsOrigin RmVerbsOrigin;

RmVerbsOrigin *rm_verbs_origin_new(const RmBlock *block, uint64_t chunk_size);
/* Deregisters; the queue pairs must be broken. */
void rm_verbs_origin_free(RmVerbsOrigin *origin, RmVerbsRegions *regions);

/* What the far side answered. FALSE if a region is not within one chunk. Any thread. */
gboolean rm_verbs_origin_add(RmVerbsOrigin *origin, const RmRegion *regions, unsigned n);
/* The region that holds `offset`; FALSE if none does. */
gboolean rm_verbs_origin_find(RmVerbsOrigin *origin, uint64_t offset, RmRegion *ret_region);

/* The registration to read `chunk` through, or NULL: send a copy. Made now if it can be. A failure to make
 * one is not an error; its text is left in `ret_problem`, if that holds none. The chunk's channel's thread.
 */
struct ibv_mr *rm_verbs_origin_mr(RmVerbsOrigin *origin, uint64_t chunk, uint32_t round,
                                  RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                  GError **ret_problem);
