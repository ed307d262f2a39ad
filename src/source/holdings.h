/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What one channel has had registered at the destination, oldest first, where that has a window.
 *
 * Kept as it was asked for, since it is released so: a registration can only end as a whole. Batches are
 * numbered as they are begun, and each granule has the number of the latest one that writes into it: so what
 * a batch needs that has not been posted yet is known, and stays. The channel's thread's own.
 */
#pragma once

#include "source/plan.h"

typedef struct {
    uint64_t limit; /* bytes; 0: no window, and nothing is kept */
    uint64_t used;
    GQueue oldest; /* RmHolding* */
} RmHoldings;

typedef struct {
    uint32_t block;
    uint64_t chunk;
    uint64_t bytes;
    GArray *granules; /* RmExtent */
} RmHolding;

void rm_holdings_init(RmHoldings *holdings, uint64_t limit);
void rm_holdings_clear(RmHoldings *holdings);
void rm_holding_free(gpointer holding);

/* Keeps what was asked for of one chunk. */
void rm_holdings_add(RmHoldings *holdings, uint32_t block, uint64_t chunk, const GArray *granules);

/* Batch `number` writes into the plan's granules. */
void rm_holdings_use(const RmHoldings *holdings, RmSendState *state, const RmPlan *plan, uint32_t number);

/* Takes out the oldest holding that no batch from number `first` on writes into, and marks its granules as
 * not asked for; NULL if there is none. */
RmHolding *rm_holdings_evict(RmHoldings *holdings, const GPtrArray *states, uint32_t first);
