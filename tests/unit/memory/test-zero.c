/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The zero test: one byte anywhere is seen, and bytes around the range are not. */
#include "memory/zero.h"

#include <stdint.h>
#include <string.h>

static void every_byte(RmZeroFunc is_zero)
{
    g_autofree uint8_t *space = g_malloc0(4096 + 64 + 512);
    uint8_t *page = (uint8_t *)(((uintptr_t)space + 256) & ~(uintptr_t)63);
    g_assert_true(is_zero(page, 4096));
    for (unsigned i = 0; i < 4096; i++) {
        page[i] = (uint8_t)(1u << (i % 8));
        g_assert_false(is_zero(page, 4096));
        page[i] = 0;
    }
    g_assert_true(is_zero(page, 4096));
}

static void test_every_byte(void)
{
    every_byte(rm_is_zero);
    for (unsigned i = 0; rm_zero_variant(i) != NULL; i++)
        every_byte(rm_zero_variant(i));
}

static void test_neighbours(void)
{
    g_autofree uint8_t *space = g_malloc(4096);
    memset(space, 0xff, 4096);
    uint8_t *middle = (uint8_t *)(((uintptr_t)space + 512) & ~(uintptr_t)63);
    memset(middle, 0, 1024);
    g_assert_true(rm_is_zero(middle, 1024));
    g_assert_true(rm_is_zero(middle, 256));
    g_assert_false(rm_is_zero(middle, 1280));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/zero/every-byte", test_every_byte);
    g_test_add_func("/zero/neighbours", test_neighbours);
    return g_test_run();
}
