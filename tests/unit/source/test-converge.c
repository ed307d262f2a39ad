/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The switchover policy, as a table. */
#include "source/session.h"

#define MIB ((uint64_t)1 << 20)

static const struct {
    const char *name;
    RmConvergence state;
    RmNext next;
} cases[] = {
    {"idle", {.rate = 1e9, .overhead_ms = 40, .downtime_limit_ms = 300}, RM_NEXT_SWITCHOVER},
    {"idle, rate unknown", {.overhead_ms = 40, .downtime_limit_ms = 300}, RM_NEXT_SWITCHOVER},
    {"dirty, rate unknown",
     {.dirty_bytes = 4096, .overhead_ms = 40, .downtime_limit_ms = 300},
     RM_NEXT_ROUND},
    {"fits",
     {.rate = 1000 * MIB, .dirty_bytes = 200 * MIB, .overhead_ms = 40, .downtime_limit_ms = 300},
     RM_NEXT_SWITCHOVER},
    {"too much",
     {.rate = 1000 * MIB, .dirty_bytes = 300 * MIB, .overhead_ms = 40, .downtime_limit_ms = 300},
     RM_NEXT_ROUND},
    {"suspects count",
     {.rate = 1000 * MIB,
      .dirty_bytes = 100 * MIB,
      .suspect_bytes = 200 * MIB,
      .overhead_ms = 40,
      .downtime_limit_ms = 300},
     RM_NEXT_ROUND},
    {"limit under the overhead",
     {.rate = 1000 * MIB, .dirty_bytes = MIB, .overhead_ms = 40, .downtime_limit_ms = 20},
     RM_NEXT_SWITCHOVER},
    {"rounds used up",
     {.rate = MIB, .dirty_bytes = 300 * MIB, .rounds = 5, .max_rounds = 5, .downtime_limit_ms = 300},
     RM_NEXT_GIVE_UP},
    {"time used up",
     {.rate = MIB,
      .dirty_bytes = 300 * MIB,
      .elapsed_ms = 1000,
      .timeout_ms = 1000,
      .downtime_limit_ms = 300},
     RM_NEXT_GIVE_UP},
    {"time used up, suspend",
     {.rate = MIB,
      .dirty_bytes = 300 * MIB,
      .elapsed_ms = 1000,
      .timeout_ms = 1000,
      .downtime_limit_ms = 300,
      .on_timeout_suspend = TRUE},
     RM_NEXT_SUSPEND},
    {"converged at the limit",
     {.rate = 1000 * MIB,
      .dirty_bytes = MIB,
      .rounds = 5,
      .max_rounds = 5,
      .overhead_ms = 40,
      .downtime_limit_ms = 300},
     RM_NEXT_SWITCHOVER},
};

static void test_table(void)
{
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        double expected_ms = -1;
        RmNext next = rm_converge_decide(&cases[i].state, &expected_ms);
        if (next != cases[i].next)
            g_error("%s: %d, not %d", cases[i].name, next, cases[i].next);
        g_assert_cmpfloat(expected_ms, >=, cases[i].state.overhead_ms);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/converge/table", test_table);
    return g_test_run();
}
