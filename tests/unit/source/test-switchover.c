/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The switchover: what becomes of the guest here when it goes wrong at its last step. */
#include "oracle.h"
#include "rig.h"

static const char *const one[] = {"ram0"};
static const uint64_t sizes[] = {4 << 20};

static Rig *rig_in_precopy(void)
{
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig->session->was_running = TRUE;
    rig->session->state = RM_STATE_PRECOPY;
    rig_write(rig, 0, 3, 1);
    rig_round(rig, RM_ROUND_FIRST);
    return rig;
}

static gboolean was_asked(Rig *rig, const char *type)
{
    g_mutex_lock(&rig->asked_lock);
    gboolean asked = g_ptr_array_find_with_equal_func(rig->asked, type, g_str_equal, NULL);
    g_mutex_unlock(&rig->asked_lock);
    return asked;
}

/* Of what was sent without waiting for an answer, which the far end may yet have to take in. */
static void wait_asked(Rig *rig, const char *type)
{
    for (unsigned i = 0; i < 2000 && !was_asked(rig, type); i++)
        g_usleep(10000);
    g_assert_true(was_asked(rig, type));
}

static Oracle *oracle_for(Rig *rig, const char *fate, gboolean done)
{
    Oracle *oracle = oracle_new(fate, done);
    rig->options.host = (char *)"127.0.0.1";
    rig->options.port = oracle->port;
    return oracle;
}

/* ---- tests ---- */

static void test_all_is_well(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_switchover_run(rig->session, &error);
    g_assert_no_error(error);
    g_assert_cmpint(rig->session->verdict, !=, RM_EVENT_FATE_COMMITTED);
    g_assert_cmpint(rig->session->state, ==, RM_STATE_COMMITTED);
    g_assert_cmpint(rm_guest_fake_run(rig->session->guest), ==, RM_GUEST_SAVED);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    /* It was on record before it was sent, with all that came before, and what the VMM's settings had been.
     */
    g_auto(RmJournalRecord) record = {0};
    g_assert_cmpint(rig->at_commit, ==, RM_STATE_COMMITTED);
    g_assert_true(rm_journal_read(rig->session->journal, &record, &error));
    g_assert_cmpuint(record.past, ==,
                     RM_STATE_BIT(PRECOPY) | RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(COMMITTED));
    g_assert_true(record.run);
    g_assert_cmpstr(json_object_to_json_string_ext(record.note, JSON_C_TO_STRING_PLAIN), ==,
                    RM_GUEST_FAKE_NOTE);
    rig_free(rig);
}

/* The destination owns the guest and says that it has lost it: nothing may end the one here. */
static void test_failed_commit_is_not_success(void)
{
    static const RmReason reasons[] = {RM_REASON_RESUME, RM_REASON_GUEST_GONE, RM_REASON_INTERNAL};
    for (guint i = 0; i < G_N_ELEMENTS(reasons); i++) {
        Rig *rig = rig_in_precopy();
        Oracle *oracle = oracle_for(rig, "committed", FALSE);
        g_autoptr(GError) error = NULL;
        rig->no_commit = reasons[i];
        g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
        g_assert_false(rm_switchover_run(rig->session, &error));
        g_test_assert_expected_messages();
        g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_RESUME); /* ends as doubtful: session.c */
        oracle_free(oracle);
        rig_free(rig);
    }
}

/* The answer was lost, and the destination says that all is as it should be: as good as the answer. */
static void test_lost_answer_and_done(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_for(rig, "committed", TRUE);
    g_autoptr(GError) error = NULL;
    rig->no_commit = RM_REASON_PEER_LOST;
    g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
    rm_switchover_run(rig->session, &error);
    g_test_assert_expected_messages();
    g_assert_no_error(error);
    g_assert_cmpint(rig->session->verdict, !=, RM_EVENT_FATE_COMMITTED);
    oracle_free(oracle);
    rig_free(rig);
}

/* A destination that lives and never heard of `commit`: it is asked after some seconds, and aborts. */
static void test_swallowed_commit(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_for(rig, "aborted", FALSE);
    g_autoptr(GError) error = NULL;
    rig->swallow_commit = TRUE;
    int64_t begin = g_get_monotonic_time();
    for (int i = 0; i < 2; i++)
        g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_test_assert_expected_messages();
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_PEER_TIMEOUT);     /* ends as failed: session.c */
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 60 * G_USEC_PER_SEC); /* not the 120 s of `running` */
    oracle_free(oracle);
    rig_free(rig);
}

/* What can't be recorded is not done: the commit isn't sent, and before it the guest isn't stopped. */
static void spoil_journal(RmGuest *guest, const char *op, gpointer data)
{
    const char *when = data;
    g_autofree char *path = file_path(g_getenv("RDMAMIG_STATE_DIR"), "source", SESSION);
    if (strcmp(op, when) == 0)
        g_assert_cmpint(truncate(path, 10), ==, 0);
}

static void test_unrecorded_commit_is_not_sent(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_guest_fake_set_hook(rig->session->guest, spoil_journal, (gpointer) "run_state");
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_true(was_asked(rig, RM_MSG_LOAD));
    g_assert_false(was_asked(rig, RM_MSG_COMMIT));
    g_assert_cmpint(rig->session->state, ==, RM_STATE_PREPARED); /* hence rolled back */
    rig_free(rig);
}

static void test_unrecorded_switchover_stops_nothing(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    spoil_journal(NULL, "now", (gpointer) "now");
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_null(strstr(rm_guest_fake_calls(rig->session->guest), "stop"));
    rig_free(rig);
}

/* Only the answer was lost: the guest moved, and the one here stays until somebody has looked. */
static void test_lost_answer_is_unconfirmed(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_for(rig, "committed", FALSE);
    g_autoptr(GError) error = NULL;
    rig->no_commit = RM_REASON_PEER_LOST;
    g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
    rm_switchover_run(rig->session, &error);
    g_test_assert_expected_messages();
    g_assert_no_error(error);
    g_assert_cmpint(rig->session->verdict, ==, RM_EVENT_FATE_COMMITTED);
    oracle_free(oracle);
    rig_free(rig);
}

static void test_aborted_fails(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_for(rig, "aborted", FALSE);
    g_autoptr(GError) error = NULL;
    rig->no_commit = RM_REASON_PEER_LOST;
    g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_test_assert_expected_messages();
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_PEER_LOST);
    oracle_free(oracle);
    rig_free(rig);
}

/* Somebody sends `cont` to the saved guest: it runs here, so it must not run there. */
static void resume_in_poll(RmGuest *guest, const char *op, gpointer data)
{
    g_autoptr(GError) error = NULL;
    if (strcmp(op, "poll") != 0 || rm_guest_fake_run(guest) != RM_GUEST_SAVED)
        return;
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
}

static void test_resumed_by_another(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_guest_fake_set_hook(rig->session->guest, resume_in_poll, NULL);
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_STATE);
    wait_asked(rig, RM_MSG_LOAD);
    g_assert_false(was_asked(rig, RM_MSG_COMMIT));
    rig_free(rig);
}

static void test_event_before_commit(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_guest_fake_fail(rig->session->guest, "poll", RM_REASON_GUEST_RESET);
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_RESET);
    g_assert_false(was_asked(rig, RM_MSG_COMMIT));
    rig_free(rig);
}

/* The preflight's checks are made again while the destination loads, and count: nothing is committed. */
static void test_recheck_while_loading(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_guest_fake_fail(rig->session->guest, "recheck", RM_REASON_RAM_WRITERS);
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_RAM_WRITERS);
    wait_asked(rig, RM_MSG_LOAD);
    g_assert_false(was_asked(rig, RM_MSG_COMMIT));
    g_assert_cmpint(rig->session->state, ==, RM_STATE_SWITCHOVER); /* hence rolled back */
    g_clear_error(&error);
    g_assert_true(rm_switchover_roll_back(rig->session, &error));
    g_assert_cmpint(rm_guest_fake_run(rig->session->guest), ==, RM_GUEST_RUNNING);
    rig_free(rig);
}

/* The VMM's settings are changed while the guest runs, and noted: it is rolled back though it was not
 * stopped.
 */
static void test_prepared_while_running(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    g_auto(RmJournalRecord) record = {0};
    rm_guest_fake_fail(rig->session->guest, "stop", RM_REASON_QMP_UNREACHABLE);
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_nonnull(strstr(rm_guest_fake_calls(rig->session->guest), "prepare-save stop"));
    g_assert_true(rm_journal_read(rig->session->journal, &record, NULL));
    g_assert_cmpint(record.state, ==, RM_STATE_SWITCHOVER);
    g_assert_cmpstr(json_object_to_json_string_ext(record.note, JSON_C_TO_STRING_PLAIN), ==,
                    RM_GUEST_FAKE_NOTE);
    g_clear_error(&error);
    g_assert_true(rm_switchover_roll_back(rig->session, &error));
    g_assert_true(g_str_has_suffix(rm_guest_fake_calls(rig->session->guest), "resume"));
    rig_free(rig);
}

/* Whoever keeps the source's VMM after `commit` finds its settings as they were. */
static void test_put_back_before_commit(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_switchover_run(rig->session, &error);
    g_assert_no_error(error);
    g_assert_true(
        g_str_has_suffix(rm_guest_fake_calls(rig->session->guest), "stop check-save save put-back recheck"));
    rig_free(rig);
}

/* What the guest wrote last is on its way while the state is saved, however little it is: not behind it. */
static void wait_for_writes(RmGuest *guest, const char *op, gpointer data)
{
    const Rig *rig = data;
    int64_t deadline = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;
    while (strcmp(op, "save") == 0) {
        g_autoptr(GArray) posts = rm_fake_posts(rig->session->tx);
        if (posts->len > 0 && g_array_index(posts, RmFakePost, posts->len - 1).round == 2)
            return;
        g_assert_cmpint(g_get_monotonic_time(), <, deadline);
        g_usleep(1000);
    }
}

static void test_writes_while_saving(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rig_write(rig, 0, 5, 2);
    rm_guest_fake_set_hook(rig->session->guest, wait_for_writes, rig);
    rm_switchover_run(rig->session, &error);
    g_assert_no_error(error);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

int main(int argc, char **argv)
{
    g_setenv("RDMAMIG_FAULT", "query-for=1200", TRUE); /* without fault points it takes half a minute */
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/switchover/well", test_all_is_well);
    g_test_add_func("/switchover/failed-commit", test_failed_commit_is_not_success);
    g_test_add_func("/switchover/lost-answer", test_lost_answer_is_unconfirmed);
    g_test_add_func("/switchover/lost-answer-and-done", test_lost_answer_and_done);
    g_test_add_func("/switchover/swallowed-commit", test_swallowed_commit);
    g_test_add_func("/switchover/unrecorded-commit", test_unrecorded_commit_is_not_sent);
    g_test_add_func("/switchover/unrecorded-switchover", test_unrecorded_switchover_stops_nothing);
    g_test_add_func("/switchover/aborted", test_aborted_fails);
    g_test_add_func("/switchover/resumed-by-another", test_resumed_by_another);
    g_test_add_func("/switchover/event-before-commit", test_event_before_commit);
    g_test_add_func("/switchover/writes-while-saving", test_writes_while_saving);
    g_test_add_func("/switchover/recheck-while-loading", test_recheck_while_loading);
    g_test_add_func("/switchover/prepared-while-running", test_prepared_while_running);
    g_test_add_func("/switchover/put-back-before-commit", test_put_back_before_commit);
    return g_test_run();
}
