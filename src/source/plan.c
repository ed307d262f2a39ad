/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Planning of chunks. */
#include "source/plan.h"

#include "memory/chunk.h"
#include "memory/zero.h"

#include <string.h>

#define LOOK_PAGES 16u /* read at a time where pages may be punched */

RmSendState *rm_send_state_new(RmBlock *block, gboolean asks, gboolean window, RmPunchWatch *watch)
{
    RmSendState *state = g_new0(RmSendState, 1);
    state->block = block;
    state->watch = watch;
    state->sent = rm_bitmap_new(rm_block_pages(block));
    if (asks)
        state->asked = g_new0(uint8_t, rm_chunk_count(block, RM_CHUNK_MIN));
    if (asks && window)
        state->used_by = g_new0(uint32_t, rm_chunk_count(block, RM_CHUNK_MIN));
    return state;
}

void rm_send_state_free(gpointer data)
{
    RmSendState *state = data;
    rm_bitmap_free(state->sent);
    g_free(state->asked);
    g_free(state->used_by);
    g_free(state);
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

static uint64_t granule_end(const RmSendState *state, uint64_t offset)
{
    return MIN((offset / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN, state->block->size);
}

static void append_extent(GArray *extents, uint64_t start, uint64_t end)
{
    RmExtent extent = {start, end};
    RmExtent *last = extents->len > 0 ? &g_array_index(extents, RmExtent, extents->len - 1) : NULL;
    if (last != NULL && last->end >= start)
        last->end = MAX(last->end, end);
    else
        g_array_append_val(extents, extent);
}

/* At most RM_PLAN_EXTENTS_MAX extents that cover these: the gap that is closed is as small as that needs, and
 * shorter than a granule, which leaves at most one extent a granule. So none covers a granule that isn't
 * touched. */
static void merge_extents(const GArray *wanted, GArray *extents)
{
    for (uint64_t gap = 0;; gap = MIN(MAX(gap * 4, RM_PAGE), RM_CHUNK_MIN - RM_PAGE)) {
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
G_STATIC_ASSERT(RM_PLAN_EXTENTS_MAX >= RM_PLAN_BYTES_MAX / RM_CHUNK_MIN);

uint64_t rm_plan_need(const RmPlan *plan, const RmSendState *state)
{
    uint64_t need = 0;
    for (guint i = 0; i < plan->granules->len && state->asked != NULL; i++) {
        const RmExtent *extent = &g_array_index(plan->granules, RmExtent, i);
        for (uint64_t at = extent->start, next; at < extent->end; at = next) {
            next = granule_end(state, at);
            need += state->asked[at / RM_CHUNK_MIN] ? 0 : next - at;
        }
    }
    return need;
}

void rm_plan_ask(RmPlan *plan, RmSendState *state)
{
    g_autoptr(GArray) wanted = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    for (guint i = 0; i < plan->runs->len && state->asked != NULL; i++) {
        const RmRun *run = &g_array_index(plan->runs, RmRun, i);
        uint64_t end = run->offset + run->length;
        for (uint64_t at = run->offset, next; at < end; at = next) {
            next = MIN(granule_end(state, at), end);
            if (!state->asked[at / RM_CHUNK_MIN]) {
                uint64_t granule = at - at % RM_CHUNK_MIN;
                RmExtent extent = {at, next};
                g_array_append_val(wanted, extent);
                append_extent(plan->asked, granule, granule_end(state, at));
            }
        }
    }
    merge_extents(wanted, plan->extents);
    for (guint i = 0; i < plan->asked->len; i++) {
        const RmExtent *extent = &g_array_index(plan->asked, RmExtent, i);
        memset(state->asked + extent->start / RM_CHUNK_MIN, TRUE,
               (extent->end - 1) / RM_CHUNK_MIN - extent->start / RM_CHUNK_MIN + 1);
    }
}

/* What one plan is made with. */
typedef struct {
    RmPlan *plan;
    RmSendState *state;
    uint64_t max_run;
    GArray *zeroes;
} Look;

/* A page that changes after it was found zero, or not, is reported by the tracker and comes again in a later
 * round. */
static void judge(const Look *look, uint64_t page, gboolean zero)
{
    RmBitmap *sent = look->state->sent;
    if (!zero) {
        append_page(look->plan->runs, page, look->max_run);
        rm_bitmap_set(sent, page, 1);
        return;
    }
    look->plan->zero_pages++;
    if (rm_bitmap_test(sent, page)) {
        append_zero(look->zeroes, look->plan->block, page);
        rm_bitmap_clear(sent, page, 1);
    }
}

static void look_at_map(const Look *look, uint64_t from, uint64_t to)
{
    for (uint64_t page = from; page < to; page++)
        judge(look, page, rm_is_zero(look->state->block->map + (page << RM_PAGE_SHIFT), RM_PAGE));
}

/* The same through copies. A page that isn't zero is there, so that holding it allocates nothing; if it is
 * punched between the two, one page of zeroes is. */
static void look_at_copies(const Look *look, uint64_t from, uint64_t to)
{
    _Alignas(64) uint8_t buffer[LOOK_PAGES * RM_PAGE];
    const RmSendState *state = look->state;
    for (uint64_t page = from; page < to; page += LOOK_PAGES) {
        uint64_t n = MIN(to - page, LOOK_PAGES), held = 0; /* held: pages before it are */
        /* What can't be read goes the way of all data, where the failure is told. */
        gboolean failed = rm_block_read(state->block, page << RM_PAGE_SHIFT, buffer, n << RM_PAGE_SHIFT) < 0;
        for (uint64_t i = 0; i <= n; i++) {
            gboolean zero = i == n || (!failed && rm_is_zero(buffer + i * RM_PAGE, RM_PAGE));
            if (zero && i > held)
                rm_punch_watch_hold(state->watch, (page + held) << RM_PAGE_SHIFT,
                                    (i - held) << RM_PAGE_SHIFT);
            if (zero)
                held = i + 1;
            if (i < n)
                judge(look, page + i, zero);
        }
    }
}

static void find_granules(RmPlan *plan, const RmSendState *state)
{
    for (guint i = 0; i < plan->runs->len; i++) {
        const RmRun *run = &g_array_index(plan->runs, RmRun, i);
        uint64_t last = run->offset + run->length - 1;
        append_extent(plan->granules, run->offset - run->offset % RM_CHUNK_MIN, granule_end(state, last));
    }
    for (guint i = 0; i < plan->granules->len; i++) {
        const RmExtent *extent = &g_array_index(plan->granules, RmExtent, i);
        plan->touched += extent->end - extent->start;
    }
}

RmPlan *rm_plan_new(RmSendState *state, uint32_t index, uint64_t chunk, RmExtent range, const RmBitmap *pages,
                    uint64_t max_run, GArray *zeroes)
{
    g_assert(range.start % RM_CHUNK_MIN == 0 && range.end - range.start <= RM_PLAN_BYTES_MAX);
    RmPlan *plan = g_new0(RmPlan, 1);
    plan->block = index;
    plan->chunk = chunk;
    plan->runs = g_array_new(FALSE, FALSE, sizeof(RmRun));
    plan->granules = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    plan->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    plan->asked = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    const Look look = {plan, state, max_run, zeroes};
    rm_bitmap_foreach_run (pages, range.start >> RM_PAGE_SHIFT, range.end >> RM_PAGE_SHIFT, from, to) {
        if (state->watch != NULL)
            look_at_copies(&look, from, to);
        else
            look_at_map(&look, from, to);
    }
    find_granules(plan, state);
    return plan;
}

void rm_plan_free(gpointer data)
{
    RmPlan *plan = data;
    g_array_unref(plan->runs);
    g_array_unref(plan->granules);
    g_array_unref(plan->extents);
    g_array_unref(plan->asked);
    g_free(plan);
}
