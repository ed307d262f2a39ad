/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Digests: alike for alike bytes whatever is populated, unlike for any difference, and no hole is touched. */
#include "memory-file.h"

#include "memory/digest.h"

#include <fcntl.h>

#define SIZE (UINT64_C(1) << 20)
#define PAGES(n) ((uint64_t)(n)*RM_PAGE)

static RmDigest digest(const RmBlock *block, uint64_t offset, uint64_t length)
{
    g_autoptr(GArray) extents = memory_extents(block);
    return rm_digest_range(block, extents, offset, length);
}

static gboolean alike(RmDigest a, RmDigest b)
{
    return a.low == b.low && a.high == b.high;
}

static void test_sparse_and_full(void)
{
    g_autoptr(RmBlock) sparse = memory_block(SIZE, 0, 0), full = memory_block(SIZE, PAGES(1), 0);
    memset(full->map, 0, SIZE);
    g_assert_true(alike(digest(sparse, 0, SIZE), digest(full, 0, SIZE)));
    sparse->map[PAGES(5) + 1] = full->map[PAGES(5) + 1] = 3;
    sparse->map[SIZE - 1] = full->map[SIZE - 1] = 4;
    g_assert_true(alike(digest(sparse, 0, SIZE), digest(full, 0, SIZE)));
    g_assert_cmpuint(memory_allocated(sparse), ==, PAGES(2));
}

static void test_differences(void)
{
    g_autoptr(RmBlock) a = memory_block(SIZE, 0, 0), b = memory_block(SIZE, 0, 0);
    a->map[PAGES(5)] = 3;
    b->map[PAGES(6)] = 3; /* the same page elsewhere */
    g_assert_false(alike(digest(a, 0, SIZE), digest(b, 0, SIZE)));
    b->map[PAGES(6)] = 0;
    b->map[PAGES(5)] = 2; /* one bit */
    g_assert_false(alike(digest(a, 0, SIZE), digest(b, 0, SIZE)));
    b->map[PAGES(5)] = 3;
    g_assert_true(alike(digest(a, 0, SIZE), digest(b, 0, SIZE)));
    b->map[PAGES(5) + 4095] = 1;
    g_assert_false(alike(digest(a, 0, SIZE), digest(b, 0, SIZE)));
}

/* A range sees its own pages only, also where an extent spans its borders. */
static void test_range(void)
{
    g_autoptr(RmBlock) a = memory_block(SIZE, 0, 0), b = memory_block(SIZE, 0, 0);
    memset(a->map + PAGES(10), 1, PAGES(20));
    memset(b->map + PAGES(10), 1, PAGES(20));
    memset(a->map + PAGES(100), 1, PAGES(1));
    a->map[PAGES(10)] = 2;
    a->map[PAGES(30) - 1] = 2;
    g_assert_true(alike(digest(a, PAGES(11), PAGES(18)), digest(b, PAGES(11), PAGES(18))));
    g_assert_false(alike(digest(a, PAGES(10), PAGES(19)), digest(b, PAGES(10), PAGES(19))));
    g_assert_false(alike(digest(a, PAGES(11), PAGES(19)), digest(b, PAGES(11), PAGES(19))));
    g_assert_true(
        alike(digest(a, PAGES(40), PAGES(10)), digest(b, PAGES(60), PAGES(20)))); /* nothing there */
}

static void test_text(void)
{
    char text[33];
    RmDigest parsed, value = {.low = UINT64_C(0x0123456789abcdef), .high = UINT64_C(0xfedcba9876543210)};
    rm_digest_format(value, text);
    g_assert_cmpstr(text, ==, "fedcba98765432100123456789abcdef");
    g_assert_true(rm_digest_parse(text, &parsed));
    g_assert_true(alike(value, parsed));
    g_assert_false(rm_digest_parse("", &parsed));
    g_assert_false(rm_digest_parse("fedcba98765432100123456789abcde", &parsed));
    g_assert_false(rm_digest_parse("fedcba98765432100123456789abcdef0", &parsed));
    g_assert_false(rm_digest_parse("fedcba98765432100123456789abcdeg", &parsed));
    g_assert_false(rm_digest_parse("+edcba98765432100123456789abcdef", &parsed));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/digest/sparse-and-full", test_sparse_and_full);
    g_test_add_func("/digest/differences", test_differences);
    g_test_add_func("/digest/range", test_range);
    g_test_add_func("/digest/text", test_text);
    return g_test_run();
}
