/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transition table: what must never be possible. */
#include "handover/table.h"

/* Nothing follows an end but what cleans up after it, or resolves a doubt. */
static void test_ends_are_final(void)
{
    for (unsigned i = 0; i < rm_table_rows; i++) {
        const RmTransition *row = &rm_table[i];
        if (rm_state_is_end(row->from) && row->from != RM_STATE_DOUBTFUL) {
            g_assert_cmpint(row->to, ==, row->from);
            g_assert_cmpuint(row->duties & (RM_DUTY(RESUME) | RM_DUTY(RUN) | RM_DUTY(RECORD)), ==, 0);
        }
    }
}

/* A guest that the destination may run is never cancelled, and fails only on the destination's word. */
static void test_nothing_undoes_commit(void)
{
    g_assert_false(rm_state_may_follow(RM_SIDE_SOURCE, RM_STATE_COMMITTED, RM_STATE_CANCELLED));
    g_assert_false(rm_state_may_follow(RM_SIDE_SOURCE, RM_STATE_COMMITTED, RM_STATE_REFUSED));
    for (int to = 0; to < RM_STATE_COUNT; to++)
        g_assert_true(rm_state_may_follow(RM_SIDE_DESTINATION, RM_STATE_COMMITTED, to) ==
                      (to == RM_STATE_COMMITTED || to == RM_STATE_DONE || to == RM_STATE_DOUBTFUL));
    g_assert_cmpint(rm_state_owner(RM_STATE_COMMITTED), ==, RM_OWNER_DESTINATION);
    g_assert_cmpint(rm_state_owner(RM_STATE_DOUBTFUL), ==, RM_OWNER_UNKNOWN);
}

static void test_only_prepared_commits(void)
{
    for (int from = 0; from < RM_STATE_COUNT; from++) {
        for (int side = 0; side < 2 && from != RM_STATE_COMMITTED; side++)
            g_assert_true(rm_state_may_follow(side, from, RM_STATE_COMMITTED) == (from == RM_STATE_PREPARED));
    }
}

static void test_no_way_back(void)
{
    for (unsigned i = 0; i < rm_table_rows; i++)
        g_assert_true(rm_table[i].to >= rm_table[i].from || rm_table[i].from == RM_STATE_DOUBTFUL);
}

/* What a journal may show: the last state that was recorded on the way. */
static void test_recorded(void)
{
    g_assert_cmphex(rm_table_recorded(RM_SIDE_DESTINATION, RM_STATE_PREPARED), ==,
                    RM_STATE_BIT(PREPARED) | RM_STATE_BIT(SWITCHOVER));
    g_assert_cmphex(rm_table_recorded(RM_SIDE_SOURCE, RM_STATE_PRECOPY), ==,
                    RM_STATE_BIT(PRECOPY) | RM_STATE_BIT(ATTACHING));
    g_assert_cmphex(rm_table_recorded(RM_SIDE_SOURCE, RM_STATE_COMMITTED), ==, RM_STATE_BIT(COMMITTED));
}

/* The owner that is shown for a state is the source's view of it. */
static void test_owners(void)
{
    for (unsigned i = 0; i < rm_table_facts_count; i++) {
        if (rm_table_facts[i].side == RM_SIDE_SOURCE)
            g_assert_cmpint(rm_table_facts[i].owner, ==, rm_state_owner(rm_table_facts[i].state));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/states/ends-are-final", test_ends_are_final);
    g_test_add_func("/states/commit", test_nothing_undoes_commit);
    g_test_add_func("/states/only-prepared-commits", test_only_prepared_commits);
    g_test_add_func("/states/no-way-back", test_no_way_back);
    g_test_add_func("/states/recorded", test_recorded);
    g_test_add_func("/states/owners", test_owners);
    return g_test_run();
}
