/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Blocks: what is populated, emptying, zeroing, populating; a sparse file stays sparse through all of it. */
#include "memory-file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)
#define PAGES(n) ((uint64_t)(n)*RM_PAGE)

static void fill(RmBlock *block, uint64_t page, uint64_t n, int value)
{
    memset(block->map + PAGES(page), value, PAGES(n));
}

#define assert_extents(block, expected)                                                                      \
    do {                                                                                                     \
        g_autofree char *text_ = memory_extents_text(block);                                                 \
        g_assert_cmpstr(text_, ==, expected);                                                                \
    } while (0)

static void test_open(void)
{
    g_autoptr(RmBlock) block = memory_block(MIB, PAGES(3), 0);
    struct stat status;
    g_assert_cmpint(fstat(block->fd, &status), ==, 0);
    g_assert_cmpuint(block->dev, ==, status.st_dev);
    g_assert_cmpuint(block->ino, ==, status.st_ino);
    g_assert_cmpuint(block->page_size, ==, RM_PAGE);
    g_assert_false(block->hugetlb);
    /* The mapping begins at the block's offset in the file. */
    block->map[5] = 42;
    uint8_t byte = 0;
    g_assert_cmpint(pread(block->fd, &byte, 1, (off_t)PAGES(3) + 5), ==, 1);
    g_assert_cmpuint(byte, ==, 42);
}

/* One holder a file, whoever opened it; two blocks of one file are one holder. */
static void test_claim(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = memory_block(MIB, 0, 0);
    GPtrArray *claims[2];
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", block->fd);
    for (int i = 0; i < 2; i++) {
        claims[i] = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
        for (int k = 0; k < 2; k++) {
            RmBlock *part = rm_block_new("part", MIB / 2);
            part->file_offset = (uint64_t)k * MIB / 2;
            g_assert_true(rm_block_open(part, open(path, O_RDWR | O_CLOEXEC), TRUE, &error));
            g_ptr_array_add(claims[i], part);
        }
    }
    g_assert_true(rm_blocks_claim(claims[0], &error));
    g_assert_no_error(error);
    g_assert_false(rm_blocks_claim(claims[1], &error));
    g_assert_error(error, RM_ERROR, RM_REASON_GUEST_BUSY);
    g_clear_error(&error);
    g_ptr_array_unref(claims[0]);
    g_assert_true(rm_blocks_claim(claims[1], &error));
    g_assert_no_error(error);
    g_ptr_array_unref(claims[1]);
}

/* Opens `size` bytes at `offset` of `fd` (taken) and expects ram-backing. */
static void refused(int fd, uint64_t size, uint64_t offset, const char *word)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = rm_block_new("ram", size);
    block->file_offset = offset;
    g_assert_false(rm_block_open(block, fd, TRUE, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_RAM_BACKING);
    g_assert_nonnull(strstr(error->message, word));
    g_assert_null(block->map);
}

static int sized(uint64_t size)
{
    int fd = memfd_create("ram", MFD_CLOEXEC);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    return fd;
}

static void test_refused(void)
{
    refused(open("/proc/self/maps", O_RDONLY | O_CLOEXEC), MIB, 0, "neither tmpfs nor hugetlbfs");
    refused(sized(MIB), 2 * MIB, 0, "too few");
    refused(sized(MIB), MIB, PAGES(1), "too few");
    refused(sized(MIB), MIB, UINT64_MAX - RM_PAGE + 1, "too few");
    refused(sized(MIB), MIB - 1, 0, "multiples");
    refused(sized(MIB), 0, 0, "multiples");
}

static void test_half_built(void)
{
    rm_block_free(NULL);
    rm_block_free(rm_block_new("ram", MIB));
}

static void test_populated(void)
{
    g_autoptr(RmBlock) block = memory_block(4 * MIB, PAGES(7), 0);
    assert_extents(block, "");
    fill(block, 0, 1, 1);
    fill(block, 10, 5, 1);
    fill(block, 1023, 1, 0); /* touched and zero is populated, too */
    assert_extents(block, "0-1 10-15 1023-1024");
    g_assert_cmpuint(memory_allocated(block), ==, PAGES(7));
}

/* Data before and behind the block in its file is none of it. */
static void test_populated_neighbours(void)
{
    g_autoptr(RmBlock) block = memory_block(MIB, PAGES(4), 0);
    g_assert_cmpint(ftruncate(block->fd, (off_t)(2 * MIB)), ==, 0);
    g_assert_cmpint(pwrite(block->fd, "x", 1, (off_t)PAGES(3)), ==, 1);
    g_assert_cmpint(pwrite(block->fd, "x", 1, (off_t)(PAGES(4) + MIB)), ==, 1);
    assert_extents(block, "");
    fill(block, 254, 2, 1);
    assert_extents(block, "254-256");
}

static void test_empty(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = memory_block(MIB, PAGES(2), 0);
    g_assert_cmpint(pwrite(block->fd, "x", 1, (off_t)PAGES(1)), ==, 1);
    fill(block, 0, 256, 7);
    rm_block_empty(block, &error);
    g_assert_no_error(error);
    assert_extents(block, "");
    g_assert_cmpuint(memory_allocated(block), ==, RM_PAGE); /* the neighbour's */
}

static void test_zero(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = memory_block(MIB, PAGES(1), 0);
    fill(block, 8, 4, 7);
    fill(block, 20, 4, 7);
    /* Over a hole, half of a run, and another hole: overwritten, nothing allocated, nothing given back. */
    rm_block_zero(block, PAGES(0), PAGES(10), FALSE, &error);
    g_assert_no_error(error);
    assert_extents(block, "8-12 20-24");
    for (uint64_t i = PAGES(8); i < PAGES(12); i++)
        g_assert_cmpuint(block->map[i], ==, i < PAGES(10) ? 0 : 7);
    /* Punched. */
    rm_block_zero(block, PAGES(9), PAGES(12), TRUE, &error);
    g_assert_no_error(error);
    assert_extents(block, "8-9 21-24");
    g_assert_cmpuint(block->map[PAGES(21)], ==, 7);
}

static void test_ranges(void)
{
    static const struct {
        uint64_t offset, length;
    } bad[] = {
        {1, RM_PAGE},       {0, RM_PAGE + 1},   {MIB, RM_PAGE},
        {0, MIB + RM_PAGE}, {MIB + RM_PAGE, 0}, {RM_PAGE, UINT64_MAX - RM_PAGE + 1},
    };
    g_autoptr(RmBlock) block = memory_block(MIB, 0, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(rm_block_zero(block, bad[i].offset, bad[i].length, FALSE, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_INTERNAL);
        g_clear_error(&error);
        g_assert_false(rm_block_zero(block, bad[i].offset, bad[i].length, TRUE, &error));
        g_clear_error(&error);
        g_assert_false(rm_block_populate(block, bad[i].offset, bad[i].length, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_INTERNAL);
    }
    g_assert_true(rm_block_zero(block, MIB, 0, TRUE, NULL));
    g_assert_true(rm_block_populate(block, MIB, 0, NULL));
    g_assert_cmpuint(memory_allocated(block), ==, 0);
}

static void test_populate(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = memory_block(MIB, 0, 0);
    fill(block, 4, 1, 9);
    rm_block_populate(block, PAGES(3), PAGES(3), &error);
    g_assert_no_error(error);
    assert_extents(block, "3-6");
    g_assert_cmpuint(block->map[PAGES(4)], ==, 9);
}

/* A full tmpfs is an answer, not a signal. */
static void test_populate_full(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *directory = g_dir_make_tmp("rdmamig-test-XXXXXX", NULL);
    g_assert_nonnull(directory);
    if (mount("none", directory, "tmpfs", 0, "size=1M") < 0) {
        g_rmdir(directory);
        g_test_skip("cannot mount a small tmpfs: needs root");
        return;
    }
    g_autofree char *path = g_build_filename(directory, "ram", NULL);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    g_assert_cmpint(ftruncate(fd, (off_t)(4 * MIB)), ==, 0);
    umount2(directory, MNT_DETACH); /* goes with the last descriptor, also if an assertion fails */
    g_rmdir(directory);
    g_autoptr(RmBlock) block = rm_block_new("ram", 4 * MIB);
    rm_block_open(block, fd, TRUE, &error);
    g_assert_no_error(error);
    g_assert_false(rm_block_populate(block, 0, 4 * MIB, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
}

/* Everything that only looks or zeroes leaves a large sparse file as it was. */
static void test_stays_sparse(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmBlock) block = memory_block(UINT64_C(64) << 30, 0, 0);
    fill(block, 12345678, 3, 1);
    assert_extents(block, "12345678-12345681");
    rm_block_zero(block, 0, block->size, FALSE, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(memory_allocated(block), ==, PAGES(3));
    rm_block_empty(block, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(memory_allocated(block), ==, 0);
}

static void test_huge(void)
{
    g_autoptr(GError) error = NULL;
    if (!memory_huge_reserve(4))
        return;
    g_autoptr(RmBlock) block = memory_block(8 * HUGE_PAGE, 0, MFD_HUGETLB);
    g_assert_true(block->hugetlb);
    g_assert_cmpuint(block->page_size, ==, HUGE_PAGE);
    assert_extents(block, "");
    block->map[3 * HUGE_PAGE - 1] = 5; /* the last byte of page 2 */
    block->map[6 * HUGE_PAGE] = 0;     /* allocated, but zero: a hole to us */
    assert_extents(block, "1024-1536");
    g_assert_cmpuint(memory_allocated(block), ==, 2 * HUGE_PAGE);

    /* Zeroing takes no page and gives none back, whatever `punch` says. */
    rm_block_zero(block, 3 * HUGE_PAGE - RM_PAGE, HUGE_PAGE, TRUE, &error);
    g_assert_no_error(error);
    assert_extents(block, "");
    block->map[6 * HUGE_PAGE + 77] = 5;
    rm_block_empty(block, &error);
    g_assert_no_error(error);
    assert_extents(block, "");
    g_assert_cmpuint(memory_allocated(block), ==, 2 * HUGE_PAGE);

    /* A 4 KiB page of a huge page that isn't there yet. */
    rm_block_populate(block, RM_PAGE, RM_PAGE, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(memory_allocated(block), ==, 3 * HUGE_PAGE);
}

static void test_huge_refused(void)
{
    g_autoptr(GError) error = NULL;
    int fd = memfd_create("ram", MFD_CLOEXEC | MFD_HUGETLB);
    if (fd < 0 || ftruncate(fd, 4 * (off_t)HUGE_PAGE) < 0) {
        g_test_skip("no hugetlbfs in this kernel");
        return;
    }
    refused(fd, HUGE_PAGE + RM_PAGE, 0, "multiples");
}

/* An empty pool is an answer, too. */
static void test_huge_short(void)
{
    g_autoptr(GError) error = NULL;
    if (!memory_huge_reserve(1))
        return;
    uint64_t size = (uint64_t)(memory_read_number(FREE_HUGEPAGES) + 64) * HUGE_PAGE;
    g_autoptr(RmBlock) block = memory_block(size, 0, MFD_HUGETLB);
    g_assert_false(rm_block_populate(block, 0, size, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
    g_assert_nonnull(strstr(error->message, "huge pages"));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/block/open", test_open);
    g_test_add_func("/block/refused", test_refused);
    g_test_add_func("/block/claim", test_claim);
    g_test_add_func("/block/half-built", test_half_built);
    g_test_add_func("/block/populated", test_populated);
    g_test_add_func("/block/populated-neighbours", test_populated_neighbours);
    g_test_add_func("/block/empty", test_empty);
    g_test_add_func("/block/zero", test_zero);
    g_test_add_func("/block/ranges", test_ranges);
    g_test_add_func("/block/populate", test_populate);
    g_test_add_func("/block/populate-full", test_populate_full);
    g_test_add_func("/block/stays-sparse", test_stays_sparse);
    g_test_add_func("/block/huge", test_huge);
    g_test_add_func("/block/huge-refused", test_huge_refused);
    g_test_add_func("/block/huge-short", test_huge_short);
    return g_test_run();
}
