/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rounds: what the destination holds after them, whatever the guest does in between. */
#include "rig.h"

#include <errno.h>

static const char *const one[] = {"ram0"};
static const char *const two[] = {"ram0", "ram1"};

static void test_first_round_sends_the_file(void)
{
    const uint64_t sizes[] = {8 << 20};
    Rig *rig = rig_new(one, sizes, 1, 2);
    /* written before tracking began, so the tracker knows nothing of it */
    memset(rm_guest_fake_memory(rig->session->guest, 0) + 100 * RM_PAGE, 7, 3 * RM_PAGE);
    RmRoundStats stats = rig_round(rig, RM_ROUND_FIRST);
    g_assert_cmpuint(stats.sent_bytes, ==, 3 * RM_PAGE);
    g_assert_true(stats.fenced);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

static void test_zero_pages(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig_write(rig, 0, 1, 1);
    rig_write(rig, 0, 2, 0); /* populated, and zero */
    RmRoundStats stats = rig_round(rig, RM_ROUND_FIRST);
    g_assert_cmpuint(stats.sent_bytes, ==, RM_PAGE);
    g_assert_cmpuint(stats.zero_pages, ==, 1);
    rig_write(rig, 0, 1, 0); /* was sent, is zero now: must become zero there */
    stats = rig_round(rig, RM_ROUND_PRECOPY);
    g_assert_cmpuint(stats.sent_bytes, ==, 0);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_write(rig, 0, 1, 9); /* and back */
    rig_round(rig, RM_ROUND_PRECOPY);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

static void test_hole_is_a_zero_page(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    for (uint64_t page = 10; page < 20; page++)
        rig_write(rig, 0, page, 5);
    rig_round(rig, RM_ROUND_FIRST);
    rig_round(rig, RM_ROUND_PRECOPY); /* takes in what was reported before the first round */
    for (uint64_t page = 12; page < 15; page++)
        rig_punch(rig, 0, page); /* unreported */
    RmRoundStats stats = rig_round(rig, RM_ROUND_STOPPED);
    g_assert_cmpuint(stats.sent_bytes, ==, 0);
    uint64_t allocated = 0;
    g_assert_true(rm_block_allocated(rig->session->blocks->pdata[0], &allocated, NULL));
    g_assert_cmpuint(allocated, ==, 7 * RM_PAGE); /* looking allocated nothing */
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

/* Punched, and there again because somebody read it: populated as before, never written, and zero now. */
static void test_punched_and_read_again(void)
{
    const uint64_t sizes[] = {4 << 20};
    for (int watches = 0; watches < 2; watches++) {
        Rig *rig = rig_new_full(one, sizes, 1, 1, watches);
        uint8_t *memory = rm_guest_fake_memory(rig->session->guest, 0);
        for (uint64_t page = 10; page < 20; page++)
            rig_write(rig, 0, page, 5);
        rig_round(rig, RM_ROUND_FIRST);
        rig_round(rig, RM_ROUND_PRECOPY); /* takes in what was reported before the first round */
        rig_punch(rig, 0, 12);
        g_assert_cmpuint(((volatile uint8_t *)memory)[12 * RM_PAGE], ==, 0);
        RmRoundStats stats = rig_round(rig, RM_ROUND_STOPPED);
        /* unnoticed without the watch: that is why there is one */
        g_assert_cmpint(rig_differs(rig, 0), ==, watches ? -1 : 12);
        g_assert_cmpuint(stats.dirty_pages, ==, watches ? 1 : 0);
        g_assert_cmpuint(stats.sent_bytes, ==, 0);
        stats = rig_round(rig, RM_ROUND_STOPPED);
        g_assert_cmpuint(stats.dirty_pages, ==, 0); /* told once */
        rig_free(rig);
    }
}

static void punch_on_fence(RmGuest *guest, const char *op, gpointer data)
{
    Rig *rig = data;
    for (uint64_t page = 30; strcmp(op, "fence") == 0 && page < 60; page++)
        rig_punch(rig, 0, page);
}

/* Punched when the round has found them populated and written, and before it reads them: the source gets
 * nothing back that the guest gave away. */
static void test_punched_in_the_round(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new_full(one, sizes, 1, 1, TRUE);
    for (uint64_t page = 0; page < 100; page++)
        rig_write(rig, 0, page, 5);
    rig_round(rig, RM_ROUND_FIRST);
    for (uint64_t page = 0; page < 100; page++)
        rig_write(rig, 0, page, 6);
    rm_guest_fake_set_hook(rig->session->guest, punch_on_fence, rig);
    RmRoundStats stats = rig_round(rig, RM_ROUND_PRECOPY);
    rm_guest_fake_set_hook(rig->session->guest, NULL, NULL);
    g_assert_cmpuint(stats.dirty_pages, ==, 100);
    g_assert_cmpuint(stats.sent_bytes, ==, 70 * RM_PAGE);
    uint64_t allocated = 0;
    g_assert_true(rm_block_allocated(rig->session->blocks->pdata[0], &allocated, NULL));
    g_assert_cmpuint(allocated, ==, 70 * RM_PAGE);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_write(rig, 0, 40, 7);
    rig_round(rig, RM_ROUND_STOPPED);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

/* ---- direct I/O: the page is reported when a request is submitted, the data lands when it likes ---- */

typedef struct {
    Rig *rig;
    GArray *pages; /* uint64_t: in flight */
    int value;
    gboolean drains; /* whether a fence waits for them, as it must */
} Dma;

static void submit(Dma *dma, uint64_t page)
{
    rm_tracker_fake_touch(dma->rig->session->tracker, 0, page, 1);
    g_array_append_val(dma->pages, page);
}

static void land(Dma *dma)
{
    for (guint i = 0; i < dma->pages->len; i++)
        memset(rm_guest_fake_memory(dma->rig->session->guest, 0) +
                   g_array_index(dma->pages, uint64_t, i) * RM_PAGE,
               ++dma->value | 0x80, RM_PAGE);
    g_array_set_size(dma->pages, 0);
}

static void on_op(RmGuest *guest, const char *op, gpointer data)
{
    Dma *dma = data;
    if (dma->drains && strcmp(op, "fence") == 0)
        land(dma);
}

static Dma *dma_new(Rig *rig, gboolean drains)
{
    Dma *dma = g_new0(Dma, 1);
    *dma = (Dma){.rig = rig, .pages = g_array_new(FALSE, FALSE, sizeof(uint64_t)), .drains = drains};
    rm_guest_fake_set_hook(rig->session->guest, on_op, dma);
    return dma;
}

static void dma_free(Dma *dma)
{
    g_array_unref(dma->pages);
    g_free(dma);
}

static void test_fence_waits_for_direct_io(void)
{
    const uint64_t sizes[] = {4 << 20};
    for (int drains = 0; drains < 2; drains++) {
        Rig *rig = rig_new(one, sizes, 1, 1);
        Dma *dma = dma_new(rig, drains);
        rig_write(rig, 0, 3, 1);
        rig_round(rig, RM_ROUND_FIRST);
        submit(dma, 3);
        rig_round(rig, RM_ROUND_PRECOPY);
        land(dma); /* after the page was protected and read, if the fence didn't wait */
        rig_round(rig, RM_ROUND_STOPPED);
        /* without the wait the write is lost: that is why there is a fence */
        g_assert_cmpint(rig_differs(rig, 0), ==, drains ? -1 : 3);
        rig_free(rig);
        dma_free(dma);
    }
}

/* Where a block's pages are found by content (hugetlbfs), a page counts only once its data has landed; and
 * round 1 is the only one to look at a page that was protected when arming. A page that is still a hole
 * stands for it here. */
static void test_first_round_fences_before_it_asks(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    Dma *dma = dma_new(rig, TRUE);
    uint64_t page = 3;
    g_array_append_val(dma->pages, page); /* submitted before tracking began: reported to nobody */
    rig_round(rig, RM_ROUND_FIRST);
    rig_round(rig, RM_ROUND_STOPPED);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
    dma_free(dma);
}

/* A guest whose rounds are all short has a rate as well: without one it would never be stopped. */
static void test_short_rounds_have_a_rate(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig_write(rig, 0, 3, 1);
    rig_round(rig, RM_ROUND_FIRST);
    g_assert_cmpfloat(rig->session->rate, >, 0);
    rig_free(rig);
}

static void test_suspects_are_sent_again(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    Dma *dma = dma_new(rig, TRUE);
    rig_write(rig, 0, 3, 1);
    rig_round(rig, RM_ROUND_FIRST);
    rig->session->last_stall_us = 10 * G_USEC_PER_SEC; /* over --max-stall: rounds go without */
    rig->session->rate = 1e12;
    submit(dma, 3);
    RmRoundStats stats = rig_round(rig, RM_ROUND_PRECOPY);
    g_assert_false(stats.fenced);
    uint64_t dirty, suspect;
    g_assert_true(rm_round_pending(rig->session, &dirty, &suspect, NULL));
    g_assert_cmpuint(suspect, ==, RM_PAGE);
    land(dma); /* unseen by the tracker */
    stats = rig_round(rig, RM_ROUND_STOPPED);
    g_assert_cmpuint(stats.sent_bytes, ==, RM_PAGE);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    g_assert_true(rm_round_pending(rig->session, &dirty, &suspect, NULL));
    g_assert_cmpuint(suspect, ==, 0);
    rig_free(rig);
    dma_free(dma);
}

static void test_suspect_in_a_hole_is_not_read(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig_write(rig, 0, 3, 1);
    rig_round(rig, RM_ROUND_FIRST);
    rig->session->last_stall_us = 10 * G_USEC_PER_SEC;
    rig->session->rate = 1e12;
    rig_write(rig, 0, 3, 2);
    g_assert_false(rig_round(rig, RM_ROUND_PRECOPY).fenced);
    rig_punch(rig, 0, 3);
    rig_round(rig, RM_ROUND_STOPPED);
    uint64_t allocated = 1;
    g_assert_true(rm_block_allocated(rig->session->blocks->pdata[0], &allocated, NULL));
    g_assert_cmpuint(allocated, ==, 0);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

static void test_suspects_bring_the_fence_back(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    for (uint64_t page = 0; page < 512; page++)
        rig_write(rig, 0, page, 1);
    rig_round(rig, RM_ROUND_FIRST);
    rig->session->last_stall_us = 10 * G_USEC_PER_SEC;
    rig->session->rate = RM_PAGE * 1000; /* 150 pages fit in half of the downtime limit */
    for (uint64_t page = 0; page < 512; page++)
        rig_write(rig, 0, page, 2);
    g_assert_false(rig_round(rig, RM_ROUND_PRECOPY).fenced);
    rig->session->rate = RM_PAGE * 1000;
    g_assert_true(rig_round(rig, RM_ROUND_PRECOPY).fenced);
    rig_free(rig);
}

/* ---- anything goes ---- */

static void wild_steps(Rig *rig, Dma *dma, GRand *random)
{
    for (int i = g_rand_int_range(random, 0, 120); i > 0; i--) {
        unsigned block = (unsigned)g_rand_int_range(random, 0, 2);
        uint64_t pages = rm_block_pages(rig->session->blocks->pdata[block]);
        uint64_t page = (uint64_t)g_rand_int_range(random, 0, (gint32)pages);
        switch (g_rand_int_range(random, 0, 6)) {
        case 0:
            rig_write(rig, block, page, 0);
            break;
        case 1:
            rig_punch(rig, block, page);
            break;
        case 2:
            submit(dma, page % rm_block_pages(rig->session->blocks->pdata[0]));
            break;
        default:
            rig_write(rig, block, page, g_rand_int_range(random, 1, 127));
        }
    }
    if (g_rand_boolean(random))
        land(dma);
}

static void test_wild_guest(void)
{
    const uint64_t sizes[] = {(3 << 20) + 5 * RM_PAGE, (2 << 20) + RM_PAGE}; /* short last chunks */
    for (guint32 seed = 1; seed <= 60; seed++) {
        g_autoptr(GRand) random = g_rand_new_with_seed(seed);
        g_autoptr(GError) error = NULL;
        Rig *rig = rig_new(two, sizes, 2, 1 + seed % 4);
        Dma *dma = dma_new(rig, TRUE);
        wild_steps(rig, dma, random);
        rig_round(rig, RM_ROUND_FIRST);
        for (int round = g_rand_int_range(random, 0, 8); round > 0; round--) {
            wild_steps(rig, dma, random);
            rig->session->last_stall_us = g_rand_boolean(random) ? 10 * G_USEC_PER_SEC : 0;
            rig->session->rate = 1e12;
            rig_round(rig, RM_ROUND_PRECOPY);
        }
        wild_steps(rig, dma, random);
        land(dma); /* what `stop` does */
        rig_round(rig, RM_ROUND_STOPPED);
        for (unsigned block = 0; block < 2; block++) {
            if (rig_differs(rig, block) >= 0)
                g_error("seed %u: page %" G_GINT64_FORMAT " of block %u differs", seed,
                        rig_differs(rig, block), block);
        }
        if (!rm_fake_check(rig->session->tx, &error))
            g_error("seed %u: %s", seed, error->message);
        rig_free(rig);
        dma_free(dma);
    }
}

static void test_failed_post_ends_the_round(void)
{
    const uint64_t sizes[] = {4 << 20};
    Rig *rig = rig_new(one, sizes, 1, 1);
    RmRoundStats stats;
    g_autoptr(GError) error = NULL;
    rig_write(rig, 0, 3, 1);
    rm_fake_fail_post(rig->session->tx, 0, -EIO);
    g_assert_false(rm_round_run(rig->session, RM_ROUND_FIRST, &stats, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_TRANSPORT);
    rig_free(rig);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rounds/first-sends-the-file", test_first_round_sends_the_file);
    g_test_add_func("/rounds/zero-pages", test_zero_pages);
    g_test_add_func("/rounds/hole", test_hole_is_a_zero_page);
    g_test_add_func("/rounds/punched-and-read-again", test_punched_and_read_again);
    g_test_add_func("/rounds/punched-in-the-round", test_punched_in_the_round);
    g_test_add_func("/rounds/fence", test_fence_waits_for_direct_io);
    g_test_add_func("/rounds/first-fences", test_first_round_fences_before_it_asks);
    g_test_add_func("/rounds/short", test_short_rounds_have_a_rate);
    g_test_add_func("/rounds/suspects", test_suspects_are_sent_again);
    g_test_add_func("/rounds/suspect-in-a-hole", test_suspect_in_a_hole_is_not_read);
    g_test_add_func("/rounds/suspects-fence", test_suspects_bring_the_fence_back);
    g_test_add_func("/rounds/failed-post", test_failed_post_ends_the_round);
    g_test_add_func("/rounds/wild", test_wild_guest);
    return g_test_run();
}
