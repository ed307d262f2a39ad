/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The incremental look agrees with the full one, whatever appears and goes in between. */
#include "memory/populated.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 4096

static RmBlock *block_new(void)
{
    g_autoptr(GError) error = NULL;
    int fd = memfd_create("test-populated", MFD_CLOEXEC);
    g_assert_cmpint(ftruncate(fd, PAGES * RM_PAGE), ==, 0);
    RmBlock *block = rm_block_new("ram", PAGES * RM_PAGE);
    rm_block_open(block, fd, TRUE, &error);
    g_assert_no_error(error);
    return block;
}

static void punch(RmBlock *block, uint64_t page, uint64_t count)
{
    g_assert_cmpint(fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(page * RM_PAGE),
                              (off_t)(count * RM_PAGE)),
                    ==, 0);
}

static void assert_exact(RmPopulated *populated, RmBlock *block)
{
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_assert_true(rm_block_populated(block, all, NULL));
    g_assert_cmpuint(populated->extents->len, ==, all->len);
    g_assert_cmpint(memcmp(populated->extents->data, all->data, all->len * sizeof(RmExtent)), ==, 0);
}

static void test_random(void)
{
    RmBlock *block = block_new();
    RmPopulated *populated = rm_populated_new();
    g_autoptr(GRand) random = g_rand_new_with_seed(7);
    for (int step = 0; step < 300; step++) {
        for (int i = g_rand_int_range(random, 0, 12); i > 0; i--) {
            uint64_t page = (uint64_t)g_rand_int_range(random, 0, PAGES - 64);
            uint64_t count = (uint64_t)g_rand_int_range(random, 1, 64);
            if (g_rand_int_range(random, 0, 3) == 0)
                punch(block, page, count);
            else
                memset(block->map + page * RM_PAGE, 1, count * RM_PAGE);
        }
        g_assert_true(rm_populated_refresh(populated, block, g_rand_boolean(random), NULL));
        assert_exact(populated, block);
    }
    rm_populated_free(populated);
    rm_block_free(block);
}

/* One page goes as another comes: the count alone would not tell. */
static void test_swap(void)
{
    RmBlock *block = block_new();
    RmPopulated *populated = rm_populated_new();
    memset(block->map, 1, 8 * RM_PAGE);
    g_assert_true(rm_populated_refresh(populated, block, TRUE, NULL));
    punch(block, 3, 1);
    memset(block->map + 100 * RM_PAGE, 1, RM_PAGE);
    g_assert_true(rm_populated_refresh(populated, block, TRUE, NULL));
    assert_exact(populated, block);
    rm_populated_free(populated);
    rm_block_free(block);
}

static void test_looking_allocates_nothing(void)
{
    RmBlock *block = block_new();
    RmPopulated *populated = rm_populated_new();
    uint64_t allocated;
    for (int i = 0; i < 3; i++)
        g_assert_true(rm_populated_refresh(populated, block, TRUE, NULL));
    g_assert_true(rm_block_allocated(block, &allocated, NULL));
    g_assert_cmpuint(allocated, ==, 0);
    g_assert_cmpuint(populated->bytes, ==, 0);
    rm_populated_free(populated);
    rm_block_free(block);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/populated/random", test_random);
    g_test_add_func("/populated/swap", test_swap);
    g_test_add_func("/populated/nothing", test_looking_allocates_nothing);
    return g_test_run();
}
