/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Holdings. */
#include "source/holdings.h"

#include "memory/chunk.h"

#include <string.h>

void rm_holdings_init(RmHoldings *holdings, uint64_t limit)
{
    *holdings = (RmHoldings){.limit = limit};
    g_queue_init(&holdings->oldest);
}

void rm_holdings_clear(RmHoldings *holdings)
{
    g_queue_clear_full(&holdings->oldest, rm_holding_free);
}

void rm_holding_free(gpointer data)
{
    RmHolding *holding = data;
    g_array_unref(holding->granules);
    g_free(holding);
}

void rm_holdings_add(RmHoldings *holdings, uint32_t block, uint64_t chunk, const GArray *granules)
{
    if (holdings->limit == 0 || granules->len == 0)
        return;
    RmHolding *holding = g_new(RmHolding, 1);
    *holding = (RmHolding){block, chunk, 0, g_array_new(FALSE, FALSE, sizeof(RmExtent))};
    g_array_append_vals(holding->granules, granules->data, granules->len);
    for (guint i = 0; i < granules->len; i++) {
        const RmExtent *extent = &g_array_index(granules, RmExtent, i);
        holding->bytes += extent->end - extent->start;
    }
    holdings->used += holding->bytes;
    g_queue_push_tail(&holdings->oldest, holding);
}

void rm_holdings_use(const RmHoldings *holdings, RmSendState *state, const RmPlan *plan, uint32_t number)
{
    for (guint i = 0; holdings->limit != 0 && state->used_by != NULL && i < plan->granules->len; i++) {
        const RmExtent *extent = &g_array_index(plan->granules, RmExtent, i);
        for (uint64_t granule = extent->start / RM_CHUNK_MIN; granule * RM_CHUNK_MIN < extent->end; granule++)
            state->used_by[granule] = number;
    }
}

static gboolean is_used(const RmHolding *holding, const RmSendState *state, uint32_t first)
{
    for (guint i = 0; i < holding->granules->len; i++) {
        const RmExtent *extent = &g_array_index(holding->granules, RmExtent, i);
        for (uint64_t granule = extent->start / RM_CHUNK_MIN; granule * RM_CHUNK_MIN < extent->end; granule++)
            if (state->used_by[granule] >= first)
                return TRUE;
    }
    return FALSE;
}

static void mark_unasked(const RmHolding *holding, RmSendState *state)
{
    for (guint i = 0; i < holding->granules->len; i++) {
        const RmExtent *extent = &g_array_index(holding->granules, RmExtent, i);
        memset(state->asked + extent->start / RM_CHUNK_MIN, FALSE,
               (extent->end - 1) / RM_CHUNK_MIN - extent->start / RM_CHUNK_MIN + 1);
    }
}

RmHolding *rm_holdings_evict(RmHoldings *holdings, const GPtrArray *states, uint32_t first)
{
    for (GList *item = holdings->oldest.head; item != NULL; item = item->next) {
        RmHolding *holding = item->data;
        RmSendState *state = states->pdata[holding->block];
        if (is_used(holding, state, first))
            continue;
        mark_unasked(holding, state);
        holdings->used -= holding->bytes;
        g_queue_delete_link(&holdings->oldest, item);
        return holding;
    }
    return NULL;
}
