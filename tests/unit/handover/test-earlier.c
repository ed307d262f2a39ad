/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session does not begin with a VMM that an earlier one has left unsettled. */
#include "handover/earlier.h"
#include "state-folder.h"

/* create() takes pid 1 for the VMM's, which lives. */
static gboolean refused(pid_t pid)
{
    g_autoptr(GError) error = NULL;
    gboolean ok = rm_earlier_check(pid, &error);
    g_assert_true(ok == (error == NULL));
    if (!ok) {
        g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_BUSY);
        g_assert_nonnull(strstr(error->message, SESSION));
    }
    return !ok;
}

static const struct {
    const char *name;
    RmSide side;
    RmState states[3];
    gboolean refused;
} cases[] = {
    {"source-attaching", RM_SIDE_SOURCE, {RM_STATE_ATTACHING}, FALSE}, /* settled by the way */
    {"source-precopy", RM_SIDE_SOURCE, {RM_STATE_PRECOPY}, TRUE},
    {"source-switchover", RM_SIDE_SOURCE, {RM_STATE_PRECOPY, RM_STATE_SWITCHOVER}, TRUE},
    {"source-committed", RM_SIDE_SOURCE, {RM_STATE_SWITCHOVER, RM_STATE_COMMITTED}, TRUE},
    {"source-doubtful", RM_SIDE_SOURCE, {RM_STATE_COMMITTED, RM_STATE_DOUBTFUL}, TRUE},
    {"source-failed", RM_SIDE_SOURCE, {RM_STATE_SWITCHOVER, RM_STATE_FAILED}, FALSE},
    {"source-done", RM_SIDE_SOURCE, {RM_STATE_COMMITTED, RM_STATE_DONE}, FALSE},
    {"destination-committed", RM_SIDE_DESTINATION, {RM_STATE_SWITCHOVER, RM_STATE_COMMITTED}, TRUE},
    {"destination-done", RM_SIDE_DESTINATION, {RM_STATE_COMMITTED, RM_STATE_DONE}, FALSE},
    {"destination-untouched", RM_SIDE_DESTINATION, {RM_STATE_PRECOPY, RM_STATE_FAILED}, FALSE},
    {"destination-used-up",
     RM_SIDE_DESTINATION,
     {RM_STATE_PRECOPY, RM_STATE_SWITCHOVER, RM_STATE_FAILED},
     TRUE},
};

static void test_case(gconstpointer data)
{
    guint i = GPOINTER_TO_UINT(data);
    char *folder = state_folder_new();
    RmJournal *journal = create(SESSION, cases[i].side, cases[i].states[0]);
    for (guint k = 1; k < 3 && cases[i].states[k] != RM_STATE_CONNECTING; k++)
        move(journal, ~0u, cases[i].states[k], FALSE);
    rm_journal_close(journal);
    g_assert_true(refused(1) == cases[i].refused);
    g_assert_false(refused(getpid())); /* another VMM */
    state_folder_free(folder);
}

/* Its daemon is at work. */
static void test_looked_after(void)
{
    char *folder = state_folder_new();
    RmJournal *journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_ATTACHING);
    g_assert_true(refused(1));
    g_assert_cmpint(latest(journal), ==, RM_STATE_ATTACHING);
    rm_journal_close(journal);
    g_assert_false(refused(1));
    state_folder_free(folder);
}

static void test_no_sessions(void)
{
    char *folder = state_folder_new();
    g_assert_false(refused(1));
    state_folder_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/earlier/none", test_no_sessions);
    g_test_add_func("/earlier/looked-after", test_looked_after);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *name = g_strdup_printf("/earlier/%s", cases[i].name);
        g_test_add_data_func(name, GUINT_TO_POINTER(i), test_case);
    }
    return g_test_run();
}
