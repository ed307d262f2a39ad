/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transition table: what must never be possible. */
#include "handover/states.h"

static void test_ends_are_final(void)
{
    for (int from = 0; from < RM_STATE_COUNT; from++) {
        for (int to = 0; to < RM_STATE_COUNT; to++)
            g_assert_false(rm_state_is_end(from) && rm_state_may_follow(from, to));
    }
}

/* A guest that the destination may run is never cancelled, and fails only on the destination's word. */
static void test_nothing_undoes_commit(void)
{
    g_assert_false(rm_state_may_follow(RM_STATE_COMMITTED, RM_STATE_CANCELLED));
    g_assert_false(rm_state_may_follow(RM_STATE_COMMITTED, RM_STATE_REFUSED));
    g_assert_cmpint(rm_state_owner(RM_STATE_COMMITTED), ==, RM_OWNER_DESTINATION);
    g_assert_cmpint(rm_state_owner(RM_STATE_DOUBTFUL), ==, RM_OWNER_UNKNOWN);
}

static void test_only_prepared_commits(void)
{
    for (int from = 0; from < RM_STATE_COUNT; from++)
        g_assert_true(rm_state_may_follow(from, RM_STATE_COMMITTED) == (from == RM_STATE_PREPARED));
}

static void test_no_way_back(void)
{
    for (int from = 0; from <= RM_STATE_DONE; from++) {
        for (int to = 0; to <= from; to++)
            g_assert_false(rm_state_may_follow(from, to));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/states/ends-are-final", test_ends_are_final);
    g_test_add_func("/states/commit", test_nothing_undoes_commit);
    g_test_add_func("/states/only-prepared-commits", test_only_prepared_commits);
    g_test_add_func("/states/no-way-back", test_no_way_back);
    return g_test_run();
}
