/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The uffd-async tracker on a victim. */
#include "victim.h"

/* The value after `field` in /proc/PID/status, kB. */
static uint64_t status_kb(pid_t pid, const char *field)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/status", pid), *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    char *at = strstr(text, field);
    g_assert_nonnull(at);
    return g_ascii_strtoull(at + strlen(field), NULL, 10);
}

static char *maps_of(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/maps", pid);
    char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

static guint count_fds(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/fd", pid);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    guint n = 0;
    while (g_dir_read_name(dir) != NULL)
        n++;
    return n;
}

/* ---- tests ---- */

static void test_writes(void)
{
    Victim victim = {0};
    victim_start(&victim, 64 * MIB);
    store(&victim, 100, 50, 1);
    arm(&victim);
    g_assert_cmpuint(scan(&victim), ==, 0);

    store(&victim, 110, 3, 2);
    g_assert_cmpuint(look(&victim, FALSE), ==, 3);
    assert_dirty(&victim, 110, 3);
    g_assert_cmpuint(scan(&victim), ==, 3);
    assert_dirty(&victim, 110, 3);
    g_assert_cmpuint(scan(&victim), ==, 0);
    g_assert_cmpuint(look(&victim, FALSE), ==, 0);

    g_assert_cmpint(tell(&victim, OP_LOAD, 100, 50, 0), >, 0); /* reading is not writing */
    g_assert_cmpuint(scan(&victim), ==, 0);

    g_assert_cmpint(tell(&victim, OP_READ, 120, 2, 0), ==, 0); /* written by the kernel in read(2) */
    g_assert_cmpuint(scan(&victim), ==, 2);
    assert_dirty(&victim, 120, 2);

    int direct = tell(&victim, OP_DIRECT, 130, 1, 0); /* written by the block layer */
    if (direct == 0) {
        g_assert_cmpuint(scan(&victim), ==, 1);
        assert_dirty(&victim, 130, 1);
        g_assert_cmpuint(victim.block->map[130 * RM_PAGE], ==, 0xd1);
    } else {
        g_test_message("O_DIRECT not tested: %s on %s", g_strerror(-direct), victim.direct);
    }
    g_assert_cmpuint(scan(&victim), ==, 0);
    victim_stop(&victim);
}

static void test_holes(void)
{
    Victim victim = {0};
    victim_start(&victim, 64 * MIB);
    store(&victim, 0, 1, 1);
    arm(&victim);
    g_assert_cmpuint(scan(&victim), ==, 0);

    store(&victim, 5000, 2, 1); /* appear in a hole of the page tables */
    store(&victim, 7, 1, 1);    /* and next to an armed page */
    scan(&victim);
    assert_dirty(&victim, 5000, 2);
    assert_dirty(&victim, 7, 1);
    g_assert_cmpuint(scan(&victim), ==, 0);

    /* Punched, scanned while it is a hole, and written again. */
    g_assert_cmpint(
        fallocate(victim.block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000 * RM_PAGE, RM_PAGE), ==,
        0);
    scan(&victim);
    store(&victim, 5000, 1, 3);
    scan(&victim);
    assert_dirty(&victim, 5000, 1);
    g_assert_cmpuint(scan(&victim), ==, 0);
    victim_stop(&victim);
}

/* Pages that somebody else put into the file, and the victim never touched: as after a migration to here. */
static void test_never_touched(void)
{
    Victim victim = {0};
    victim_start(&victim, 64 * MIB);
    memset(victim.block->map + 20 * MIB, 0x55, 4 * MIB);
    arm(&victim);
    g_assert_cmpuint(scan(&victim), ==, 0);
    store(&victim, 20 * 256 + 9, 1, 1);
    g_assert_cmpuint(scan(&victim), ==, 1);
    assert_dirty(&victim, 20 * 256 + 9, 1);
    victim_stop(&victim);
}

/* Over many rounds, with many runs in a scan, and several VMAs in the block: nothing missed, nothing twice.
 */
static void test_rounds(void)
{
    Victim victim = {0};
    victim_start(&victim, 64 * MIB);
    store(&victim, 0, 16384, 1);
    g_assert_cmpint(tell(&victim, OP_SPLIT, 4000, 1000, 0), ==, 0);
    arm(&victim);
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    g_autoptr(RmBitmap) written = rm_bitmap_new(victim.dirty->n_bits);
    for (int round = 0; round < 20; round++) {
        rm_bitmap_clear_all(written);
        for (int i = 0; i < 1500; i++) {
            uint64_t page = (uint64_t)g_rand_int_range(random, 0, 16384 - 4);
            uint64_t count = (uint64_t)g_rand_int_range(random, 1, 4);
            store(&victim, page, count, round);
            rm_bitmap_set(written, page, count);
        }
        g_assert_cmpuint(scan(&victim), ==, rm_bitmap_count(written, 0, written->n_bits));
        g_assert_cmpmem(victim.dirty->words, written->n_bits / 8, written->words, written->n_bits / 8);
    }
    g_assert_cmpuint(scan(&victim), ==, 0);
    victim_stop(&victim);
}

/* Sends what a scan reports to a copy, as a migration does, while the victim writes as fast as it can: when
 * it has ended, one more scan makes the copy equal. */
static void test_race(void)
{
    const uint64_t size = 16 * MIB, pages = size / RM_PAGE;
    Victim victim = {0};
    struct pollfd done;
    unsigned scans = 0;
    victim_start(&victim, size);
    store(&victim, 0, pages / 2, 1); /* the other half appears while we look */
    arm(&victim);
    g_autofree uint8_t *copy = g_malloc0(size);
    memcpy(copy, victim.block->map, size / 2);
    struct command command = {OP_HAMMER, 0, pages, 1500};
    g_assert_cmpint(write(victim.socket, &command, sizeof command), ==, sizeof command);
    do {
        done = (struct pollfd){victim.socket, POLLIN, 0};
        poll(&done, 1, 0);
        look(&victim, TRUE);
        rm_bitmap_foreach_run (victim.dirty, 0, pages, first, last)
            memcpy(copy + first * RM_PAGE, victim.block->map + first * RM_PAGE, (last - first) * RM_PAGE);
        scans++;
    } while (!(done.revents & POLLIN));
    int result;
    g_assert_cmpint(read(victim.socket, &result, sizeof result), ==, sizeof result);
    g_assert_cmpuint(scan(&victim), ==, 0);
    g_assert_cmpint(memcmp(copy, victim.block->map, size), ==, 0);
    g_test_message("%u scans", scans);
    victim_stop(&victim);
}

/* Extents that a scan is not told of stay as they are. */
static void test_partial_extents(void)
{
    Victim victim = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    RmExtent extent = {8 * RM_PAGE, 12 * RM_PAGE};
    victim_start(&victim, 4 * MIB);
    store(&victim, 0, 100, 1);
    arm(&victim);
    store(&victim, 0, 100, 2);
    g_array_append_val(extents, extent);
    g_assert_true(read_extents(&victim, extents, TRUE, &error));
    g_assert_cmpuint(rm_bitmap_count(victim.dirty, 0, 1024), ==, 4);
    assert_dirty(&victim, 8, 4);
    g_assert_cmpuint(scan(&victim), ==, 96);
    victim_stop(&victim);
}

static void test_sparse(void)
{
    Victim victim = {0};
    uint64_t allocated, again;
    g_autoptr(GError) error = NULL;
    victim_start(&victim, UINT64_C(64) << 30);
    for (uint64_t i = 0; i < 8; i++)
        store(&victim, i * 2000000, 1, 1);
    uint64_t tables = status_kb(victim.pid, "VmPTE:");
    g_assert_true(rm_block_allocated(victim.block, &allocated, &error));
    arm(&victim);
    for (uint64_t i = 0; i < 8; i++)
        store(&victim, i * 2000000, 1, 2);
    g_assert_cmpuint(scan(&victim), ==, 8);
    g_assert_cmpuint(scan(&victim), ==, 0);
    rm_tracker_free(g_steal_pointer(&victim.tracker));
    g_assert_cmpuint(status_kb(victim.pid, "VmPTE:"), <=, tables + 64);
    g_assert_true(rm_block_allocated(victim.block, &again, &error));
    g_assert_cmpuint(again, ==, allocated);
    g_assert_false(any_vma_tracked(victim.pid));
    victim_stop(&victim);
}

static void test_free(void)
{
    Victim victim = {0};
    victim_start(&victim, 600 * MIB); /* more than one slice of the release */
    store(&victim, 0, 20000, 1);
    store(&victim, 140000, 1000, 1);
    g_autofree char *before = maps_of(victim.pid);
    guint fds = count_fds(victim.pid);
    arm(&victim);
    g_assert_true(any_vma_tracked(victim.pid));
    g_assert_cmpuint(count_fds(victim.pid), ==, fds);
    scan(&victim);
    rm_tracker_free(g_steal_pointer(&victim.tracker));
    g_autofree char *after = maps_of(victim.pid);
    g_assert_false(any_vma_tracked(victim.pid));
    g_assert_cmpstr(before, ==, after);
    g_assert_cmpuint(count_fds(victim.pid), ==, fds);

    /* Nothing left in the way of another tracker, which starts from nothing. */
    store(&victim, 0, 10, 2);
    victim.tracker = rm_tracker_uffd_async_new(victim.pid, victim.blocks);
    arm(&victim);
    g_assert_cmpuint(scan(&victim), ==, 0);
    store(&victim, 5, 1, 3);
    g_assert_cmpuint(scan(&victim), ==, 1);
    victim_stop(&victim);
}

static void test_never_armed(void)
{
    Victim victim = {0};
    victim_start(&victim, MIB);
    rm_tracker_free(g_steal_pointer(&victim.tracker));
    g_assert_false(any_vma_tracked(victim.pid));
    victim_stop(&victim);
}

static void test_second_tracker(void)
{
    Victim victim = {0};
    g_autoptr(GError) error = NULL;
    victim_start(&victim, MIB);
    arm(&victim);
    g_autoptr(RmTracker) second = rm_tracker_uffd_async_new(victim.pid, victim.blocks);
    g_assert_false(second->ops->arm(second, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TRACKER);
    g_assert_nonnull(strstr(error->message, "another userfaultfd"));
    rm_tracker_free(g_steal_pointer(&second));
    store(&victim, 0, 1, 1); /* the first is not disturbed */
    scan(&victim);
    assert_dirty(&victim, 0, 1);
    victim_stop(&victim);
}

static void expect_failure(Victim *victim, int reason, const char *word)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    RmExtent whole = {0, victim->block->size};
    g_array_append_val(extents, whole);
    g_assert_false(read_extents(victim, extents, TRUE, &error));
    g_test_message("%s", error->message);
    g_assert_error(error, RM_ERROR, reason);
    g_assert_nonnull(strstr(error->message, word));
    g_clear_error(&error);
    g_assert_false(read_extents(victim, extents, FALSE, &error));
    g_assert_error(error, RM_ERROR, reason);
}

static void test_changed(gconstpointer data)
{
    Victim victim = {0};
    victim_start(&victim, 4 * MIB);
    store(&victim, 0, 1024, 1);
    arm(&victim);
    g_assert_cmpint(tell(&victim, GPOINTER_TO_INT(data), 100, 100, 0), ==, 0);
    expect_failure(&victim, RM_REASON_GUEST_CHANGED,
                   GPOINTER_TO_INT(data) == OP_REMAP ? "mapped it anew" : "no longer at address");
    victim_stop(&victim);
}

static void test_gone(void)
{
    Victim victim = {0};
    g_autoptr(GError) error = NULL;
    victim_start(&victim, 4 * MIB);
    store(&victim, 0, 1024, 1);
    arm(&victim);
    kill(victim.pid, SIGKILL);
    siginfo_t info;
    waitid(P_PID, (id_t)victim.pid, &info, WEXITED | WNOWAIT); /* dead, not yet reaped */
    expect_failure(&victim, RM_REASON_GUEST_GONE, "has ended");
    waitpid(victim.pid, NULL, 0);
    expect_failure(&victim, RM_REASON_GUEST_GONE, "has ended");
    g_autoptr(RmTracker) late = rm_tracker_uffd_async_new(victim.pid, victim.blocks);
    g_assert_false(late->ops->arm(late, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_GUEST_GONE);
    victim_stop(&victim);
}

/* ---- huge pages ---- */

static void huge_2m(Victim *victim)
{
    const uint64_t n = HUGE_PAGE / RM_PAGE;
    store(victim, 0, 2 * n, 1);
    memset(victim->block->map + 4 * HUGE_PAGE, 0x66, HUGE_PAGE); /* the victim never touched it */
    arm(victim);
    g_assert_cmpuint(scan(victim), ==, 0);
    store(victim, n + 3, 1, 2);
    g_assert_cmpuint(scan(victim), ==, n); /* the whole huge page */
    assert_dirty(victim, n, n);
    g_assert_cmpuint(scan(victim), ==, 0);
    store(victim, 4 * n + 1, 1, 2);
    g_assert_cmpint(tell(victim, OP_READ, 0, 1, 0), ==, 0); /* into what is 2 at its other pages */
    store(victim, 6 * n, 1, 2);                             /* appears */
    g_assert_cmpuint(scan(victim), ==, 3 * n);
    assert_dirty(victim, 0, n);
    assert_dirty(victim, 4 * n, n);
    assert_dirty(victim, 6 * n, n);
    g_assert_cmpuint(scan(victim), ==, 0);
}

static void test_huge(void)
{
    with_huge_pages(HUGE_PAGE, HUGE_PAGES, huge_2m);
}

/* A page that is larger than the window of one protecting scan. */
static void huge_1g(Victim *victim)
{
    const uint64_t n = (1024 * MIB) / RM_PAGE;
    store(victim, 5, 1, 1);
    arm(victim);
    g_assert_cmpuint(scan(victim), ==, 0);
    store(victim, n - 1, 1, 2);
    g_assert_cmpuint(scan(victim), ==, n);
    g_assert_cmpuint(scan(victim), ==, 0);
}

static void test_huge_1g(void)
{
    with_huge_pages(1024 * MIB, 1, huge_1g);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/uffd-async/writes", test_writes);
    g_test_add_func("/uffd-async/holes", test_holes);
    g_test_add_func("/uffd-async/never-touched", test_never_touched);
    g_test_add_func("/uffd-async/rounds", test_rounds);
    g_test_add_func("/uffd-async/race", test_race);
    g_test_add_func("/uffd-async/partial-extents", test_partial_extents);
    g_test_add_func("/uffd-async/sparse", test_sparse);
    g_test_add_func("/uffd-async/free", test_free);
    g_test_add_func("/uffd-async/never-armed", test_never_armed);
    g_test_add_func("/uffd-async/second-tracker", test_second_tracker);
    g_test_add_data_func("/uffd-async/remapped", GINT_TO_POINTER(OP_REMAP), test_changed);
    g_test_add_data_func("/uffd-async/unmapped", GINT_TO_POINTER(OP_UNMAP), test_changed);
    g_test_add_data_func("/uffd-async/other-memory", GINT_TO_POINTER(OP_MAP_OTHER), test_changed);
    g_test_add_func("/uffd-async/gone", test_gone);
    g_test_add_func("/uffd-async/huge", test_huge);
    g_test_add_func("/uffd-async/huge-1g", test_huge_1g);
    return g_test_run();
}
