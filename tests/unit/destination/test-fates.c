/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Queries: answered by the journal, whoever wrote it; asking aborts for good; nothing without the token. */
#include "destination/fates.h"

#include "../handover/altered-table.h"
#include "../handover/state-folder.h"

static RmFate query(const char *session, gboolean expect_done)
{
    g_autoptr(GError) error = NULL;
    RmFate fate;
    gboolean done;
    rm_fates_query(session, TOKEN, &fate, &done, &error);
    g_assert_no_error(error);
    g_assert_true(done == expect_done);
    return fate;
}

static void test_answers(void)
{
    static const struct {
        RmState state;
        RmFate fate;
        RmState afterwards;
    } cases[] = {
        {RM_STATE_PRECOPY, RM_FATE_ABORTED, RM_STATE_FAILED},
        {RM_STATE_SWITCHOVER, RM_FATE_ABORTED, RM_STATE_FAILED},
        {RM_STATE_FAILED, RM_FATE_ABORTED, RM_STATE_FAILED},
        {RM_STATE_CANCELLED, RM_FATE_ABORTED, RM_STATE_CANCELLED},
        {RM_STATE_COMMITTED, RM_FATE_COMMITTED, RM_STATE_COMMITTED},
        {RM_STATE_DONE, RM_FATE_COMMITTED, RM_STATE_DONE},
        {RM_STATE_DOUBTFUL, RM_FATE_UNKNOWN, RM_STATE_DOUBTFUL},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_DESTINATION, cases[i].state);
        for (int again = 0; again < 2; again++)
            g_assert_cmpint(query(SESSION, cases[i].state == RM_STATE_DONE), ==, cases[i].fate);
        g_assert_cmpint(latest(journal), ==, cases[i].afterwards);
        /* Who looked after it does not get it committed any more. */
        if (cases[i].fate == RM_FATE_ABORTED)
            g_assert_cmpint(move(journal, RM_JOURNAL_OPEN, RM_STATE_COMMITTED, TRUE), ==,
                            cases[i].afterwards);
        state_folder_free(folder);
    }
}

/* Nobody may conclude "aborted" from a session that was never here, or whose journal is lost. */
static void test_unknown(void)
{
    char *folder = state_folder_new();
    g_assert_cmpint(query(SESSION, FALSE), ==, RM_FATE_UNKNOWN);
    g_assert_cmpint(query("../../x", FALSE), ==, RM_FATE_UNKNOWN);
    g_assert_cmpint(query("", FALSE), ==, RM_FATE_UNKNOWN);
    g_autoptr(RmJournal) source = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PREPARED);
    g_assert_cmpint(query(SESSION, FALSE), ==, RM_FATE_UNKNOWN);
    g_assert_cmpint(latest(source), ==, RM_STATE_PREPARED);
    state_folder_free(folder);
}

static void test_wrong_token(void)
{
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PREPARED);
    g_autofree char *last_differs = g_strdup(TOKEN);
    last_differs[strlen(last_differs) - 1] = '0'; /* as well-formed as the right one */
    const char *wrong[] = {"", "0", last_differs, TOKEN "0", "xyz"};
    for (guint i = 0; i < G_N_ELEMENTS(wrong); i++) {
        g_autoptr(GError) error = NULL;
        RmFate fate;
        gboolean done;
        g_assert_false(rm_fates_query(SESSION, wrong[i], &fate, &done, &error));
        g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_TOKEN);
        g_assert_null(strstr(error->message, TOKEN));
        g_assert_cmpint(latest(journal), ==, RM_STATE_PREPARED);
    }
    state_folder_free(folder);
}

/* A journal that can't be understood gives no answer, rather than any. */
static void test_garbage(void)
{
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    rm_journal_close(create(SESSION, RM_SIDE_DESTINATION, RM_STATE_COMMITTED));
    g_autofree char *path = file_path(folder, "destination", SESSION);
    g_assert_true(g_file_set_contents(path, "{}\n", -1, NULL));
    g_assert_cmpint(g_chmod(path, 0600), ==, 0);
    RmFate fate;
    gboolean done;
    g_assert_false(rm_fates_query(SESSION, TOKEN, &fate, &done, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    state_folder_free(folder);
}

static void assert_altered(RmState state, Altered altered, RmFate fate, gboolean done, RmState afterwards)
{
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_DESTINATION, state);
    g_autoptr(GError) error = NULL;
    RmFate answer = RM_FATE_UNKNOWN;
    gboolean is_done = FALSE;
    gboolean ok = rm_fates_query(SESSION, TOKEN, &answer, &is_done, &error);
    put_right(altered);
    g_assert_true(ok == (fate != RM_FATE_UNKNOWN));
    g_assert_cmpint(answer, ==, fate);
    g_assert_cmpint(is_done, ==, done);
    g_assert_cmpint(latest(journal), ==, afterwards);
    state_folder_free(folder);
}

/* What is recorded and answered is what the table says, whatever it says; without a row, nothing. */
static void test_altered(void)
{
    const RmSide side = RM_SIDE_DESTINATION;
    const RmEvent query = RM_EVENT_QUERY;
    assert_altered(RM_STATE_SWITCHOVER,
                   alter(side, RM_STATE_SWITCHOVER, query, RM_STATE_SWITCHOVER, RM_DUTY(RECORD)),
                   RM_FATE_UNKNOWN, FALSE, RM_STATE_SWITCHOVER); /* no answer without that duty */
    assert_altered(
        RM_STATE_PRECOPY,
        alter(side, RM_STATE_PRECOPY, query, RM_STATE_CANCELLED, RM_DUTY(RECORD) | RM_DUTY(ANSWER)),
        RM_FATE_ABORTED, FALSE, RM_STATE_CANCELLED);
    assert_altered(RM_STATE_COMMITTED,
                   alter(side, RM_STATE_COMMITTED, query, RM_STATE_DONE, RM_DUTY(RECORD) | RM_DUTY(ANSWER)),
                   RM_FATE_COMMITTED, TRUE, RM_STATE_DONE);
    assert_altered(RM_STATE_COMMITTED, take_away(side, RM_STATE_COMMITTED, query), RM_FATE_UNKNOWN, FALSE,
                   RM_STATE_COMMITTED);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fates/answers", test_answers);
    g_test_add_func("/fates/unknown", test_unknown);
    g_test_add_func("/fates/wrong-token", test_wrong_token);
    g_test_add_func("/fates/garbage", test_garbage);
    g_test_add_func("/fates/altered-table", test_altered);
    return g_test_run();
}
