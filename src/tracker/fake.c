/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A tracker without a VMM: tests say which pages were written. */
#include "tracker/tracker.h"

typedef struct {
    RmTracker base;
    RmBitmap **written; /* one per block */
    guint n_blocks;
    gboolean armed;
} Fake;

static gboolean fake_arm(RmTracker *tracker, GError **error)
{
    Fake *fake = (Fake *)tracker;
    for (guint i = 0; i < fake->n_blocks; i++)
        rm_bitmap_clear_all(fake->written[i]);
    fake->armed = TRUE;
    return TRUE;
}

static void fake_read(Fake *fake, unsigned index, const GArray *extents, RmBitmap *dirty, gboolean protect)
{
    g_assert(fake->armed && index < fake->n_blocks);
    RmBitmap *written = fake->written[index];
    for (guint i = 0; i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        uint64_t end = extent->end >> RM_PAGE_SHIFT;
        rm_bitmap_foreach_run (written, extent->start >> RM_PAGE_SHIFT, end, first, last) {
            rm_bitmap_set(dirty, first, last - first);
            if (protect)
                rm_bitmap_clear(written, first, last - first);
        }
    }
}

static gboolean fake_scan(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                          GError **error)
{
    fake_read((Fake *)tracker, index, extents, dirty, TRUE);
    return TRUE;
}

static gboolean fake_peek(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                          GError **error)
{
    fake_read((Fake *)tracker, index, extents, dirty, FALSE);
    return TRUE;
}

static void fake_free(RmTracker *tracker)
{
    Fake *fake = (Fake *)tracker;
    for (guint i = 0; i < fake->n_blocks; i++)
        rm_bitmap_free(fake->written[i]);
    g_free(fake->written);
    g_free(fake);
}

static const RmTrackerOps fake_ops = {
    .name = "fake",
    .arm = fake_arm,
    .scan = fake_scan,
    .peek = fake_peek,
    .free = fake_free,
};

RmTracker *rm_tracker_fake_new(GPtrArray *blocks)
{
    Fake *fake = g_new0(Fake, 1);
    fake->base.ops = &fake_ops;
    fake->n_blocks = blocks->len;
    fake->written = g_new0(RmBitmap *, MAX(blocks->len, 1));
    for (guint i = 0; i < blocks->len; i++)
        fake->written[i] = rm_bitmap_new(rm_block_pages(g_ptr_array_index(blocks, i)));
    return &fake->base;
}

void rm_tracker_fake_touch(RmTracker *tracker, unsigned index, uint64_t page, uint64_t count)
{
    g_assert(tracker->ops == &fake_ops);
    Fake *fake = (Fake *)tracker;
    g_assert(index < fake->n_blocks);
    rm_bitmap_set(fake->written[index], page, count);
}
