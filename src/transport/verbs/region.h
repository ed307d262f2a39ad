/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Registering guest memory: the budget of regions, and what to say when it fails. */
#pragma once

#include "transport/verbs/device.h"

/* The memory regions of one session on its device. The device's own limit counts those of all processes, so a
 * count within it is no promise. */
typedef struct {
    unsigned n;     /* atomic */
    uint64_t bytes; /* atomic: the sum of their lengths, as the limit of locked memory counts them */
    uint64_t most;  /* of bytes; 0: no bound. Immutable once registering has begun */
} RmVerbsRegions;

/* Registers [address, address + length) so that it is named by [iova, …) on the wire: `access` as for
 * ibv_reg_mr(). `length` is at most limits->max_mr_size. NULL with reason privilege (locked memory, or the
 * bound of `regions`), memory-short or transport. */
struct ibv_mr *rm_verbs_region_new(RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                   uint8_t *address, uint64_t length, uint64_t iova, int access,
                                   GError **error);

/* Whether locking `need` bytes more would exceed this process's limit of locked memory; if so, what is locked
 * and the limit. */
gboolean rm_verbs_memlock_binds(uint64_t need, uint64_t *ret_pinned, uint64_t *ret_limit);

/* FALSE if the device refused; the region is then still there. */
gboolean rm_verbs_region_free(RmVerbsRegions *regions, struct ibv_mr *mr);
