/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake tracker keeps the contract that the real ones keep. */
#include "tracker/tracker.h"

typedef struct {
    GPtrArray *blocks;
    RmTracker *tracker;
    RmBitmap *dirty;
    GArray *extents;
} Fixture;

static void set_up(Fixture *f, gconstpointer unused)
{
    RmExtent extents[] = {{0, 10 * RM_PAGE}, {20 * RM_PAGE, 30 * RM_PAGE}};
    f->blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(f->blocks, rm_block_new("a", 100 * RM_PAGE));
    g_ptr_array_add(f->blocks, rm_block_new("b", 40 * RM_PAGE));
    f->tracker = rm_tracker_fake_new(f->blocks);
    f->dirty = rm_bitmap_new(100);
    f->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_array_append_vals(f->extents, extents, G_N_ELEMENTS(extents));
    rm_tracker_fake_touch(f->tracker, 0, 5, 1);
    g_assert_true(f->tracker->ops->arm(f->tracker, NULL));
}

static void tear_down(Fixture *f, gconstpointer unused)
{
    rm_tracker_free(f->tracker);
    rm_bitmap_free(f->dirty);
    g_array_unref(f->extents);
    g_ptr_array_unref(f->blocks);
}

static uint64_t look(Fixture *f, unsigned block, gboolean protect)
{
    rm_bitmap_clear_all(f->dirty);
    g_assert_true((protect ? f->tracker->ops->scan : f->tracker->ops->peek)(f->tracker, block, f->extents,
                                                                            f->dirty, NULL));
    return rm_bitmap_count(f->dirty, 0, 100);
}

static void test_contract(Fixture *f, gconstpointer unused)
{
    g_assert_cmpuint(look(f, 0, TRUE), ==, 0);   /* written before it was armed */
    rm_tracker_fake_touch(f->tracker, 0, 8, 14); /* 8 to 21, of which 10 to 19 are in no extent */
    g_assert_cmpuint(look(f, 0, FALSE), ==, 4);
    g_assert_cmpuint(look(f, 1, TRUE), ==, 0);
    g_assert_cmpuint(look(f, 0, TRUE), ==, 4);
    g_assert_cmpuint(rm_bitmap_count(f->dirty, 8, 2) + rm_bitmap_count(f->dirty, 20, 2), ==, 4);
    g_assert_cmpuint(look(f, 0, TRUE), ==, 0);
    g_array_index(f->extents, RmExtent, 0).end = 15 * RM_PAGE;
    g_assert_cmpuint(look(f, 0, TRUE), ==, 5); /* still to be reported when somebody asks */
}

static void test_bits_stay(Fixture *f, gconstpointer unused)
{
    rm_bitmap_set(f->dirty, 50, 1);
    g_assert_true(f->tracker->ops->scan(f->tracker, 0, f->extents, f->dirty, NULL));
    g_assert_true(rm_bitmap_test(f->dirty, 50));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add("/fake/contract", Fixture, NULL, set_up, test_contract, tear_down);
    g_test_add("/fake/bits-stay", Fixture, NULL, set_up, test_bits_stay, tear_down);
    return g_test_run();
}
