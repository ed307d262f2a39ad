/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fates: commit and abort exclude each other, for good. */
#include "destination/fates.h"

static void test_commit_wins(void)
{
    RmFates *fates = rm_fates_new();
    g_assert_true(rm_fates_begin(fates, "a"));
    g_assert_false(rm_fates_begin(fates, "a"));
    g_assert_true(rm_fates_commit(fates, "a"));
    g_assert_cmpint(rm_fates_abort(fates, "a"), ==, RM_FATE_COMMITTED);
    g_assert_false(rm_fates_commit(fates, "a"));
    rm_fates_free(fates);
}

static void test_abort_wins(void)
{
    RmFates *fates = rm_fates_new();
    g_assert_true(rm_fates_begin(fates, "a"));
    g_assert_cmpint(rm_fates_abort(fates, "a"), ==, RM_FATE_ABORTED);
    g_assert_false(rm_fates_commit(fates, "a"));
    g_assert_false(rm_fates_begin(fates, "a"));
    rm_fates_free(fates);
}

/* A session that was never here is unknown, and stays so: nobody may conclude "aborted" from it. */
static void test_unknown(void)
{
    RmFates *fates = rm_fates_new();
    g_assert_cmpint(rm_fates_abort(fates, "a"), ==, RM_FATE_UNKNOWN);
    g_assert_false(rm_fates_commit(fates, "a"));
    rm_fates_free(fates);
}

static void test_old_ones_are_forgotten(void)
{
    RmFates *fates = rm_fates_new();
    for (int i = 0; i <= RM_FATES_KEPT; i++) {
        g_autofree char *id = g_strdup_printf("%d", i);
        rm_fates_begin(fates, id);
        rm_fates_commit(fates, id);
    }
    g_assert_cmpint(rm_fates_abort(fates, "0"), ==, RM_FATE_UNKNOWN);
    g_assert_cmpint(rm_fates_abort(fates, "1"), ==, RM_FATE_COMMITTED);
    rm_fates_free(fates);
}

static gpointer race(gpointer data)
{
    return GINT_TO_POINTER(rm_fates_commit(data, "a"));
}

static void test_race(void)
{
    for (int i = 0; i < 2000; i++) {
        RmFates *fates = rm_fates_new();
        rm_fates_begin(fates, "a");
        GThread *thread = g_thread_new("commit", race, fates);
        RmFate fate = rm_fates_abort(fates, "a");
        gboolean committed = GPOINTER_TO_INT(g_thread_join(thread));
        g_assert_true(committed == (fate == RM_FATE_COMMITTED));
        rm_fates_free(fates);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fates/commit-wins", test_commit_wins);
    g_test_add_func("/fates/abort-wins", test_abort_wins);
    g_test_add_func("/fates/unknown", test_unknown);
    g_test_add_func("/fates/forgotten", test_old_ones_are_forgotten);
    g_test_add_func("/fates/race", test_race);
    return g_test_run();
}
