/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Planning of chunks. */
#include "source/plan.h"

#include "memory/chunk.h"
#include "memory/zero.h"

#include <string.h>

typedef enum { UNASKED, ASKING /* by the plan being made */, ASKED } Asked;

RmSendState *rm_send_state_new(RmBlock *block, gboolean asks)
{
    RmSendState *state = g_new0(RmSendState, 1);
    state->block = block;
    state->sent = rm_bitmap_new(rm_block_pages(block));
    if (asks)
        state->asked = g_new0(uint8_t, rm_chunk_count(block, RM_CHUNK_MIN));
    return state;
}

void rm_send_state_free(gpointer data)
{
    RmSendState *state = data;
    rm_bitmap_free(state->sent);
    g_free(state->asked);
    g_free(state);
}

void rm_send_state_asked(RmSendState *state)
{
    memset(state->asked, ASKED, rm_chunk_count(state->block, RM_CHUNK_MIN));
}

static void append_zero(GArray *zeroes, uint64_t block, uint64_t page)
{
    if (zeroes->len > 0) {
        RmZeroRange *last = &g_array_index(zeroes, RmZeroRange, zeroes->len - 1);
        if (last->block == block && last->page + last->count == page) {
            last->count++;
            return;
        }
    }
    RmZeroRange range = {block, page, 1};
    g_array_append_val(zeroes, range);
}

static void append_page(GArray *runs, uint64_t page, uint64_t max_bytes)
{
    uint64_t offset = page << RM_PAGE_SHIFT;
    if (runs->len > 0) {
        RmRun *last = &g_array_index(runs, RmRun, runs->len - 1);
        if (last->offset + last->length == offset && last->length + RM_PAGE <= max_bytes) {
            last->length += RM_PAGE;
            return;
        }
    }
    RmRun run = {offset, RM_PAGE};
    g_array_append_val(runs, run);
}

/* Extents of the runs that lie in granules which nobody has asked for yet. */
static void find_unasked(const GArray *runs, uint8_t *asked, GArray *unasked)
{
    for (guint i = 0; i < runs->len; i++) {
        const RmRun *run = &g_array_index(runs, RmRun, i);
        uint64_t end = run->offset + run->length;
        for (uint64_t at = run->offset, next; at < end; at = next) {
            next = MIN((at / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN, end);
            if (asked[at / RM_CHUNK_MIN] == ASKED)
                continue;
            RmExtent extent = {at, next};
            asked[at / RM_CHUNK_MIN] = ASKING;
            g_array_append_val(unasked, extent);
        }
    }
    for (guint i = 0; i < unasked->len; i++)
        asked[g_array_index(unasked, RmExtent, i).start / RM_CHUNK_MIN] = ASKED;
}

/* At most RM_PLAN_EXTENTS_MAX extents that cover these: the gap that is closed is as small as that needs. */
static void merge_extents(const GArray *wanted, GArray *extents)
{
    for (uint64_t gap = 0;; gap = MAX(gap * 4, RM_PAGE)) {
        g_array_set_size(extents, 0);
        for (guint i = 0; i < wanted->len; i++) {
            RmExtent extent = g_array_index(wanted, RmExtent, i);
            RmExtent *last = extents->len > 0 ? &g_array_index(extents, RmExtent, extents->len - 1) : NULL;
            if (last != NULL && extent.start - last->end <= gap)
                last->end = extent.end;
            else
                g_array_append_val(extents, extent);
        }
        if (extents->len <= RM_PLAN_EXTENTS_MAX)
            return;
    }
}

static void look(RmPlan *plan, RmSendState *state, const RmBitmap *pages, uint64_t first, uint64_t end,
                 uint64_t max_run, GArray *zeroes)
{
    rm_bitmap_foreach_run (pages, first, end, from, to) {
        for (uint64_t page = from; page < to; page++) {
            /* A page that changes after this look is reported by the tracker and comes again in a later
             * round. */
            if (!rm_is_zero(state->block->map + (page << RM_PAGE_SHIFT), RM_PAGE)) {
                append_page(plan->runs, page, max_run);
                rm_bitmap_set(state->sent, page, 1);
                continue;
            }
            plan->zero_pages++;
            if (rm_bitmap_test(state->sent, page)) {
                append_zero(zeroes, plan->block, page);
                rm_bitmap_clear(state->sent, page, 1);
            }
        }
    }
}

RmPlan *rm_plan_new(RmSendState *state, uint32_t index, uint64_t chunk, uint64_t chunk_size,
                    const RmBitmap *pages, uint64_t max_run, GArray *zeroes)
{
    uint64_t first = chunk * chunk_size / RM_PAGE;
    uint64_t end = first + rm_chunk_length(state->block, chunk_size, chunk) / RM_PAGE;
    RmPlan *plan = g_new0(RmPlan, 1);
    plan->block = index;
    plan->chunk = chunk;
    plan->runs = g_array_new(FALSE, FALSE, sizeof(RmRun));
    plan->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    look(plan, state, pages, first, end, max_run, zeroes);
    if (state->asked != NULL) {
        g_autoptr(GArray) unasked = g_array_new(FALSE, FALSE, sizeof(RmExtent));
        find_unasked(plan->runs, state->asked, unasked);
        merge_extents(unasked, plan->extents);
    }
    return plan;
}

void rm_plan_free(gpointer data)
{
    RmPlan *plan = data;
    g_array_unref(plan->runs);
    g_array_unref(plan->extents);
    g_free(plan);
}
