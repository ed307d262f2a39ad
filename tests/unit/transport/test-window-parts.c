/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A window's parts: each enough, all together no more than the window. */
#include "transport/window.h"

#include "common/reason.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (1024 * MIB)

/* Random blocks, chunk sizes, channels and windows. */
static void test_parts(void)
{
    for (unsigned i = 0; i < 500; i++) {
        RmBlock blocks[3] = {{0}};
        g_autoptr(GPtrArray) all = g_ptr_array_new();
        unsigned n = (unsigned)g_test_rand_int_range(1, 4), channels = (unsigned)g_test_rand_int_range(1, 65);
        uint64_t chunk_size = MIB << g_test_rand_int_range(0, 11), sum = 0, total = 0;
        for (unsigned k = 0; k < n; k++) {
            blocks[k].size = RM_PAGE * (uint64_t)g_test_rand_int_range(1, 1 << 20);
            total += blocks[k].size;
            g_ptr_array_add(all, &blocks[k]);
        }
        gboolean whole = g_test_rand_bit();
        uint64_t window = channels * RM_WINDOW_CHANNEL_MIN +
                          (whole ? total : MIB * (uint64_t)g_test_rand_int_range(0, 4096));
        for (unsigned channel = 0; channel < channels; channel++) {
            uint64_t part = rm_window_part(window, all, chunk_size, channels, channel), share = 0;
            for (unsigned k = 0; k < n; k++)
                for (uint64_t chunk = 0; chunk < rm_chunk_count(&blocks[k], chunk_size); chunk++)
                    if (rm_chunk_channel(k, chunk, channels) == channel)
                        share += rm_chunk_length(&blocks[k], chunk_size, chunk);
            g_assert_cmpuint(part, >=, RM_WINDOW_CHANNEL_MIN);
            if (whole)
                g_assert_cmpuint(part, >=, share);
            sum += part;
        }
        g_assert_cmpuint(sum, <=, window);
    }
}

/* Sizes whose product does not fit in 64 bits. */
static void test_huge(void)
{
    RmBlock block = {.size = 64 * 1024 * GIB};
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    g_ptr_array_add(all, &block);
    uint64_t window = block.size + 2 * RM_WINDOW_CHANNEL_MIN;
    g_assert_cmpuint(rm_window_part(window, all, 1024 * MIB, 2, 0), ==, window / 2);
    g_assert_cmpuint(rm_window_for_all(all, 2), ==, block.size + 8 * MIB);
}

static void test_option(void)
{
    static const char *const bad[] = {"", "0", "-64M", "4095K", "64MB", "1e9", "18446744073709551616"};
    uint64_t bytes = 7;
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(rm_parse_pinned(bad[i], &bytes, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
        g_assert_true(g_str_has_prefix(error->message, "--max-pinned: "));
        g_assert_cmpuint(bytes, ==, 7);
    }
    g_assert_true(rm_parse_pinned("4M", &bytes, NULL));
    g_assert_cmpuint(bytes, ==, 4 * MIB);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/window/parts", test_parts);
    g_test_add_func("/window/huge", test_huge);
    g_test_add_func("/window/option", test_option);
    return g_test_run();
}
