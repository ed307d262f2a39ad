/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Guest memory at the destination: what of a block the source's card may write.
 *
 * Regions have remote write access (local write, which that needs), and nothing else. They are named on the
 * wire by their byte offset in the block, so that none of our addresses, or the VMM's, is told to anybody,
 * and a key is good for one stretch of one block.
 *
 * Registering populates. So only the granules (RM_CHUNK_MIN) that were asked for are registered, neighbours
 * together, and what is asked for is going to be written: whatever the chunk size, the destination holds no
 * more than a granule for each granule that was written. Of that rm_verbs_target_trim() gives back what never
 * was, at the end.
 */
#pragma once

#include "transport/transport.h"
#include "transport/verbs/pieces.h"

typedef struct RmVerbsTarget RmVerbsTarget;

RmVerbsTarget *rm_verbs_target_new(RmBlock *block, uint64_t chunk_size);
void rm_verbs_target_free(RmVerbsTarget *target);

/* RmRxOps.register_chunk(), for a request that has been checked. Any threads. */
gboolean rm_verbs_target_register(RmVerbsTarget *target, uint64_t chunk, const RmExtent *extents, unsigned n,
                                  RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                  GArray *answer, GError **error);

/* RmRxOps.release_chunk(), for a request that has been checked, once nothing that was written into it can be
 * under way. Any threads. Reasons protocol if it is not as it was asked for, transport if the device refused.
 */
gboolean rm_verbs_target_release(RmVerbsTarget *target, uint64_t chunk, const RmExtent *extents, unsigned n,
                                 RmVerbsRegions *regions, GError **error);

/* Deregisters all; nobody may register any more. FALSE if the device refused one. */
gboolean rm_verbs_target_close(RmVerbsTarget *target, RmVerbsRegions *regions);

/* Gives back the pages that only registering populated, until `deadline_us`; the guest is paused meanwhile,
 * so what is left then is left. Returns the bytes given back. After close(), with nobody writing the block.
 */
uint64_t rm_verbs_target_trim(RmVerbsTarget *target, gint64 deadline_us);
