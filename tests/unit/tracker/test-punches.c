/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages that are punched out of the file, as a balloon does: what the tracker says of them, which the rounds
 * rely on, and what it does not say, for which there is the punch watch. `n` is a page of the backing in
 * pages of 4 KiB, so that the same is tried on tmpfs and hugetlbfs.
 */
#include "tracker/punch-watch.h"
#include "victim.h"

#define COUNT 8

static void each_backing(void (*test)(Victim *victim))
{
    Victim victim = {0};
    victim_start(&victim, 64 * MIB);
    test(&victim);
    victim_stop(&victim);
    with_huge_pages(HUGE_PAGE, COUNT, test);
}

static uint64_t unit(const Victim *victim)
{
    return victim->huge_page != 0 ? victim->huge_page / RM_PAGE : 1;
}

static void punch(Victim *victim, uint64_t page, uint64_t count)
{
    g_assert_cmpint(tell(victim, OP_PUNCH, page, count, victim->huge_page != 0), ==, 0);
}

static void load(Victim *victim, uint64_t page)
{
    g_assert_cmpint(tell(victim, OP_LOAD, page, 1, 0), ==, 0); /* zero */
}

static GArray *all_of(Victim *victim)
{
    GArray *extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    RmExtent extent = {0, COUNT * unit(victim) * RM_PAGE};
    g_array_append_val(extents, extent);
    return extents;
}

/* Which of the COUNT pages are set, as a number with a bit for each; a part of one is an error. */
static unsigned units_set(const RmBitmap *map, uint64_t n)
{
    unsigned set = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        uint64_t count = rm_bitmap_count(map, i * n, n);
        g_assert_true(count == 0 || count == n);
        set |= count == n ? 1u << i : 0;
    }
    return set;
}

/* Scans all of them, whether or not they are populated. */
static unsigned scan_units(Victim *victim)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) extents = all_of(victim);
    g_assert_true(read_extents(victim, extents, TRUE, &error));
    g_assert_no_error(error);
    return units_set(victim->dirty, unit(victim));
}

/* ---- the tracker ---- */

/* Filled again by each kind of access after a punch of an armed page: a write is reported, a read is not. */
static void filled_again(Victim *victim)
{
    uint64_t n = unit(victim);
    for (unsigned i = 0; i < COUNT; i++)
        store(victim, i * n, 1, 1);
    arm(victim);
    g_assert_cmphex(scan_units(victim), ==, 0);
    punch(victim, 0, 5 * n);
    store(victim, 1 * n, 1, 2);
    load(victim, 2 * n);
    g_assert_cmpint(tell(victim, OP_READ, 3 * n, 1, 0), ==, 0);
    gboolean direct = tell(victim, OP_DIRECT, 4 * n, 1, 0) == 0;
    g_assert_cmphex(scan_units(victim), ==, 1u << 1 | 1u << 3 | (direct ? 1u << 4 : 0));

    /* Protected while they are holes, or filled by a read: the next write is reported, wherever. */
    g_assert_cmphex(scan_units(victim), ==, 0);
    for (unsigned i = 0; i < 5; i++)
        store(victim, i * n, 1, 3);
    g_assert_cmphex(scan_units(victim), ==, 0x1f);
}

static void test_filled_again(void)
{
    each_backing(filled_again);
}

/* Punched between a write and the scan that reports it: the report is not lost with the page. */
static void written_and_punched(Victim *victim)
{
    uint64_t n = unit(victim);
    for (unsigned i = 0; i < COUNT; i++)
        store(victim, i * n, 1, 1);
    arm(victim);
    scan_units(victim);
    for (unsigned i = 0; i < 4; i++)
        store(victim, i * n, 1, 2);
    punch(victim, 0, 4 * n);
    load(victim, 1 * n);
    store(victim, 2 * n, 1, 3);
    g_assert_cmphex(scan_units(victim) & 0xf6, ==, 0x6); /* of the holes, 0 and 3, nothing is demanded */
    g_assert_cmphex(scan_units(victim), ==, 0);
    for (unsigned i = 0; i < 4; i++)
        store(victim, i * n, 1, 4);
    g_assert_cmphex(scan_units(victim), ==, 0xf);
}

static void test_written_and_punched(void)
{
    each_backing(written_and_punched);
}

/* ---- the watch ---- */

static unsigned collect_units(Victim *victim, RmPunchWatch *watch, const RmBitmap *sent)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) extents = all_of(victim);
    rm_bitmap_clear_all(victim->dirty);
    g_assert_true(rm_punch_watch_collect(watch, extents, sent, victim->dirty, &error));
    g_assert_no_error(error);
    return units_set(victim->dirty, unit(victim));
}

static void watch(Victim *victim)
{
    g_autoptr(GError) error = NULL;
    uint64_t n = unit(victim);
    g_autoptr(RmPunchWatch) punches = rm_punch_watch_new(victim->block, &error);
    g_autoptr(RmBitmap) sent = rm_bitmap_new(victim->dirty->n_bits);
    g_assert_no_error(error);
    for (unsigned i = 0; i < COUNT; i++)
        store(victim, i * n, 1, 1);
    arm(victim);
    rm_bitmap_set(sent, 0, 7 * n);
    rm_punch_watch_hold(punches, 0, 6 * n * RM_PAGE);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 1u << 6); /* never held; 7 is not asked after */

    /* A hole, filled by a write, by a read: all three. Others' accesses to the pages beside them hide
     * nothing. */
    punch(victim, n, 3 * n);
    store(victim, 2 * n, 1, 2);
    load(victim, 3 * n);
    for (unsigned i = 0; i < COUNT; i++)
        tell(victim, OP_LOAD, i * n, 1, 0);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 0x4e);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 0x4e); /* until they are held */

    /* Holding the neighbours hides nothing, either. */
    rm_punch_watch_hold(punches, n * RM_PAGE, n * RM_PAGE);
    rm_punch_watch_hold(punches, 4 * n * RM_PAGE, n * RM_PAGE);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 0x4c);
    rm_punch_watch_hold(punches, 2 * n * RM_PAGE, 2 * n * RM_PAGE);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 0x40);

    /* It sees no writes: these are the tracker's. */
    scan_units(victim);
    store(victim, 0, 1, 5);
    g_assert_cmphex(collect_units(victim, punches, sent), ==, 0x40);
    g_assert_cmphex(scan_units(victim), ==, 1);
}

static void test_watch(void)
{
    each_backing(watch);
}

/* Huge pages of tmpfs, of which a part is punched: nothing of it may count as held. */
static void test_watch_huge_tmpfs(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *mount_point = g_dir_make_tmp("rdmamig-thp-XXXXXX", NULL);
    if (mount("tmpfs", mount_point, "tmpfs", 0, "huge=always,size=64m") < 0) {
        g_test_skip("this kernel has no huge pages for tmpfs, or this is not root");
        g_rmdir(mount_point);
        return;
    }
    Victim victim = {.mount = mount_point};
    victim_start(&victim, 8 * MIB);
    g_autoptr(RmPunchWatch) punches = rm_punch_watch_new(victim.block, &error);
    g_assert_no_error(error);
    const uint64_t pages = rm_block_pages(victim.block);
    g_autoptr(RmBitmap) sent = rm_bitmap_new(pages);
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    RmExtent whole = {0, victim.block->size};
    g_array_append_val(extents, whole);
    store(&victim, 0, pages, 1);
    arm(&victim);
    rm_bitmap_set(sent, 0, pages);
    rm_punch_watch_hold(punches, 0, victim.block->size);
    rm_bitmap_clear_all(victim.dirty);
    g_assert_true(rm_punch_watch_collect(punches, extents, sent, victim.dirty, &error));
    g_assert_cmpuint(rm_bitmap_count(victim.dirty, 0, pages), ==, 0);

    /* A whole huge page that comes back as one, and a part of another; then only one page of each is held. */
    punch(&victim, 0, 512);
    load(&victim, 100);
    punch(&victim, 512 + 10, 20);
    load(&victim, 512 + 15);
    rm_punch_watch_hold(punches, 100 * RM_PAGE, RM_PAGE);
    rm_punch_watch_hold(punches, (512 + 15) * RM_PAGE, RM_PAGE);
    g_assert_true(rm_punch_watch_collect(punches, extents, sent, victim.dirty, &error));
    g_assert_no_error(error);
    g_assert_cmpuint(rm_bitmap_count(victim.dirty, 0, 512), ==, 511);
    g_assert_cmpuint(rm_bitmap_count(victim.dirty, 512 + 10, 20), ==, 19);
    g_assert_cmpuint(rm_bitmap_count(victim.dirty, 1024, 1024), ==, 0);
    victim_stop(&victim);
    umount(mount_point);
    g_rmdir(mount_point);
}

/* The victim is punched and read at random by us and by it; what the watch and the tracker name is copied:
 * equal. */
static void test_random(void)
{
    const uint64_t pages = 2048;
    Victim victim = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(GRand) random = g_rand_new_with_seed(11);
    victim_start(&victim, pages * RM_PAGE);
    g_autoptr(RmPunchWatch) punches = rm_punch_watch_new(victim.block, &error);
    g_assert_no_error(error);
    g_autoptr(RmBitmap) sent = rm_bitmap_new(pages);
    g_autofree uint8_t *copy = g_malloc0(pages * RM_PAGE), *now = g_malloc(pages * RM_PAGE);
    RmExtent whole = {0, pages * RM_PAGE};
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_array_append_val(extents, whole);
    store(&victim, 0, pages, 1);
    arm(&victim);
    rm_bitmap_set(victim.dirty, 0, pages);
    for (int round = 2; round < 22; round++) {
        rm_bitmap_foreach_run (victim.dirty, 0, pages, first, last) {
            uint64_t offset = first * RM_PAGE, length = (last - first) * RM_PAGE;
            rm_punch_watch_hold(punches, offset, length);
            g_assert_cmpint(rm_block_read(victim.block, offset, copy + offset, length), ==, 0);
            rm_bitmap_set(sent, first, last - first);
        }
        for (int i = 0; i < 100; i++) {
            uint64_t page = (uint64_t)g_rand_int_range(random, 0, (gint32)pages - 8);
            uint64_t count = (uint64_t)g_rand_int_range(random, 1, 8);
            switch (g_rand_int_range(random, 0, 4)) {
            case 0:
                store(&victim, page, count, round);
                break;
            case 1:
                tell(&victim, OP_LOAD, page, count, 0);
                break;
            default:
                punch(&victim, page, count);
            }
        }
        g_assert_true(read_extents(&victim, extents, TRUE, &error));
        g_assert_true(rm_punch_watch_collect(punches, extents, sent, victim.dirty, &error));
        g_assert_cmpint(rm_block_read(victim.block, 0, now, pages * RM_PAGE), ==, 0);
        for (uint64_t page = 0; page < pages; page++) {
            if (memcmp(copy + page * RM_PAGE, now + page * RM_PAGE, RM_PAGE) != 0)
                g_assert_true(rm_bitmap_test(victim.dirty, page));
        }
    }
    victim_stop(&victim);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/punches/filled-again", test_filled_again);
    g_test_add_func("/punches/written-and-punched", test_written_and_punched);
    g_test_add_func("/punches/watch", test_watch);
    g_test_add_func("/punches/watch-huge-tmpfs", test_watch_huge_tmpfs);
    g_test_add_func("/punches/random", test_random);
    return g_test_run();
}
