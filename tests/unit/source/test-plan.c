/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Plans: runs, zero ranges, and what is asked for. */
#include "memory/chunk.h"
#include "source/plan.h"

#include <string.h>
#include <sys/mman.h>

#define MIB (UINT64_C(1) << 20)

typedef struct {
    RmBlock *block;
    RmSendState *state;
    RmBitmap *pages;
    GArray *zeroes;
} Rig;

static Rig *rig_new(void)
{
    Rig *rig = g_new0(Rig, 1);
    rig->block = rm_block_new("ram", 8 * MIB);
    rig->block->map = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rig->state = rm_send_state_new(rig->block, TRUE, FALSE, NULL);
    rig->pages = rm_bitmap_new(8 * MIB / RM_PAGE);
    rig->zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    return rig;
}

static void rig_free(Rig *rig)
{
    rm_send_state_free(rig->state);
    rm_block_free(rig->block);
    rm_bitmap_free(rig->pages);
    g_array_unref(rig->zeroes);
    g_free(rig);
}

static void dirty(Rig *rig, uint64_t page, uint64_t count, int value)
{
    memset(rig->block->map + page * RM_PAGE, value, count * RM_PAGE);
    rm_bitmap_set(rig->pages, page, count);
}

static RmPlan *plan(Rig *rig, uint64_t chunk, uint64_t chunk_size, uint64_t max_run)
{
    RmExtent range = {chunk * chunk_size, (chunk + 1) * chunk_size};
    RmPlan *p = rm_plan_new(rig->state, 0, chunk, range, rig->pages, max_run, rig->zeroes);
    rm_plan_ask(p, rig->state);
    return p;
}

static void test_runs(void)
{
    Rig *rig = rig_new();
    dirty(rig, 0, 3, 1);
    dirty(rig, 3, 1, 0);
    dirty(rig, 4, 2, 1);
    dirty(rig, 300, 1, 1); /* the next chunk's */
    RmPlan *p = plan(rig, 0, MIB, MIB);
    g_assert_cmpuint(p->runs->len, ==, 2);
    g_assert_cmpuint(g_array_index(p->runs, RmRun, 0).length, ==, 3 * RM_PAGE);
    g_assert_cmpuint(g_array_index(p->runs, RmRun, 1).offset, ==, 4 * RM_PAGE);
    g_assert_cmpuint(p->zero_pages, ==, 1);
    g_assert_cmpuint(rig->zeroes->len, ==, 0); /* zero there already */
    rm_plan_free(p);
    p = plan(rig, 0, MIB, RM_PAGE); /* no run longer than asked */
    g_assert_cmpuint(p->runs->len, ==, 5);
    rm_plan_free(p);
    rig_free(rig);
}

static void test_asks_once(void)
{
    Rig *rig = rig_new();
    dirty(rig, 10, 1, 1);
    dirty(rig, 20, 1, 1);
    dirty(rig, 600, 1, 1); /* third granule */
    RmPlan *p = plan(rig, 0, 8 * MIB, MIB);
    g_assert_cmpuint(p->extents->len, ==, 3);
    rm_plan_free(p);
    dirty(rig, 30, 1, 1);  /* same granule: asked for already */
    dirty(rig, 300, 1, 1); /* second granule: not yet */
    p = plan(rig, 0, 8 * MIB, MIB);
    g_assert_cmpuint(p->extents->len, ==, 1);
    g_assert_cmpuint(g_array_index(p->extents, RmExtent, 0).start, ==, 300 * RM_PAGE);
    rm_plan_free(p);
    rig_free(rig);
}

static void test_zeroes_ask_for_nothing(void)
{
    Rig *rig = rig_new();
    dirty(rig, 0, 2048, 0);
    RmPlan *p = plan(rig, 0, 8 * MIB, MIB);
    g_assert_cmpuint(p->extents->len, ==, 0);
    g_assert_cmpuint(p->runs->len, ==, 0);
    rm_plan_free(p);
    rig_free(rig);
}

/* Scattered pages: few extents, which cover every run. */
static void test_extents_are_bounded(void)
{
    Rig *rig = rig_new();
    for (uint64_t page = 0; page < 2048; page += 2)
        dirty(rig, page, 1, 1);
    RmPlan *p = plan(rig, 0, 8 * MIB, MIB);
    g_assert_cmpuint(p->runs->len, ==, 1024);
    g_assert_cmpuint(p->extents->len, <=, RM_PLAN_EXTENTS_MAX);
    for (guint i = 0; i < p->runs->len; i++) {
        const RmRun *run = &g_array_index(p->runs, RmRun, i);
        gboolean covered = FALSE;
        for (guint k = 0; k < p->extents->len; k++) {
            const RmExtent *extent = &g_array_index(p->extents, RmExtent, k);
            covered |= run->offset >= extent->start && run->offset + run->length <= extent->end;
        }
        g_assert_true(covered);
    }
    rm_plan_free(p);
    rig_free(rig);
}

/* Many runs in every other granule: what is asked for are these granules, and no other one is covered. */
static void test_asks_for_granules(void)
{
    Rig *rig = rig_new();
    for (uint64_t granule = 0; granule < 8; granule += 2)
        for (uint64_t page = 0; page < 256; page += 2)
            dirty(rig, granule * 256 + page, 1, 1);
    RmPlan *p = rm_plan_new(rig->state, 0, 0, (RmExtent){0, 8 * MIB}, rig->pages, MIB, rig->zeroes);
    g_assert_cmpuint(p->touched, ==, 4 * MIB);
    g_assert_cmpuint(rm_plan_need(p, rig->state), ==, 4 * MIB);
    rm_plan_ask(p, rig->state);
    g_assert_cmpuint(rm_plan_need(p, rig->state), ==, 0);
    g_assert_cmpuint(p->asked->len, ==, 4);
    for (guint i = 0; i < p->asked->len; i++) {
        const RmExtent *asked = &g_array_index(p->asked, RmExtent, i);
        g_assert_cmpuint(asked->start, ==, 2 * i * MIB);
        g_assert_cmpuint(asked->end, ==, (2 * i + 1) * MIB);
    }
    g_assert_cmpuint(p->extents->len, <=, RM_PLAN_EXTENTS_MAX);
    for (guint i = 0; i < p->extents->len; i++) {
        const RmExtent *extent = &g_array_index(p->extents, RmExtent, i);
        g_assert_cmpuint(extent->start / MIB % 2, ==, 0);
        g_assert_cmpuint(extent->start / MIB, ==, (extent->end - 1) / MIB);
    }
    rm_plan_free(p);
    rig_free(rig);
}

/* The bytes sent don't depend on the chunk size. */
static void test_chunk_size(void)
{
    uint64_t bytes[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        Rig *rig = rig_new();
        uint64_t chunk_size = i == 0 ? MIB : 8 * MIB;
        for (uint64_t page = 0; page < 2048; page += 3)
            dirty(rig, page, 1, 1);
        for (uint64_t chunk = 0; chunk < rm_chunk_count(rig->block, chunk_size); chunk++) {
            RmPlan *p = plan(rig, chunk, chunk_size, 4 * MIB);
            for (guint k = 0; k < p->runs->len; k++)
                bytes[i] += g_array_index(p->runs, RmRun, k).length;
            rm_plan_free(p);
        }
        rig_free(rig);
    }
    g_assert_cmpuint(bytes[0], ==, 683 * RM_PAGE);
    g_assert_cmpuint(bytes[0], ==, bytes[1]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/plan/runs", test_runs);
    g_test_add_func("/plan/asks-once", test_asks_once);
    g_test_add_func("/plan/zeroes", test_zeroes_ask_for_nothing);
    g_test_add_func("/plan/bounded", test_extents_are_bounded);
    g_test_add_func("/plan/granules", test_asks_for_granules);
    g_test_add_func("/plan/chunk-size", test_chunk_size);
    return g_test_run();
}
