/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Planning of chunks. */
#include "source/plan.h"

#include "memory/chunk.h"
#include "memory/zero.h"

#include <string.h>

typedef enum { UNASKED, ASKING /* by the plan being made */, ASKED } Asked;

#define LOOK_PAGES 16u /* read at a time where pages may be punched */

RmSendState *rm_send_state_new(RmBlock *block, gboolean asks, RmPunchWatch *watch)
{
    RmSendState *state = g_new0(RmSendState, 1);
    state->block = block;
    state->watch = watch;
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
    const Look look = {plan, state, max_run, zeroes};
    rm_bitmap_foreach_run (pages, first, end, from, to) {
        if (state->watch != NULL)
            look_at_copies(&look, from, to);
        else
            look_at_map(&look, from, to);
    }
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
