/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Token buckets, and warnings that somebody else decides the number of. */
#include "common/log-rate.h"

static void test_bucket(void)
{
    gint64 full_at = 0;
    gint64 now = 5000; /* a fresh one is full whatever the clock says */
    for (int i = 0; i < 3; i++)
        g_assert_true(rm_bucket_take(&full_at, now, 3, 10));
    g_assert_false(rm_bucket_take(&full_at, now, 3, 10));
    g_assert_false(rm_bucket_take(&full_at, now + 9, 3, 10)); /* what was refused has cost nothing */
    g_assert_true(rm_bucket_take(&full_at, now + 10, 3, 10));
    g_assert_false(rm_bucket_take(&full_at, now + 10, 3, 10));
    for (int i = 0; i < 3; i++) /* full again, and no fuller than full */
        g_assert_true(rm_bucket_take(&full_at, now + 1000000, 3, 10));
    g_assert_false(rm_bucket_take(&full_at, now + 1000000, 3, 10));
    for (int i = 0; i < 1000; i++) /* one each interval, for ever */
        g_assert_true(rm_bucket_take(&full_at, now + 1000010 + 10 * i, 3, 10));
}

static void test_lines(void)
{
    RmLogRate rate = {0};
    guint64 dropped = 77;
    guint lines = 0;
    for (int i = 0; i < 1000; i++)
        lines += rm_log_rate_take(&rate, 1, &dropped) ? 1 : 0;
    g_assert_cmpuint(lines, >=, 5);
    g_assert_cmpuint(lines, <=, 50);
    g_assert_cmpuint(dropped, ==, 0);
    g_assert_true(rm_log_rate_take(&rate, 1 + G_GINT64_CONSTANT(3600000000), &dropped));
    g_assert_cmpuint(dropped, ==, 1000 - lines);
    g_assert_true(rm_log_rate_take(&rate, 1 + G_GINT64_CONSTANT(3600000000), &dropped));
    g_assert_cmpuint(dropped, ==, 0); /* said once */
}

/* The first lines as they are; then none; GLib's test log holds what was written. */
static void test_warnings(void)
{
    RmLogRate rate = {0};
    for (int i = 0; i < 20; i++) {
        g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*peer is wrong*");
        rm_log_rate_warn(&rate, "peer is %s", "wrong");
        g_test_assert_expected_messages();
    }
    for (int i = 0; i < 100; i++)
        rm_log_rate_warn(&rate, "peer is %s", "wrong"); /* would be fatal here */
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log-rate/bucket", test_bucket);
    g_test_add_func("/log-rate/lines", test_lines);
    g_test_add_func("/log-rate/warnings", test_warnings);
    return g_test_run();
}
