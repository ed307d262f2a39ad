/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The switchover: what becomes of the guest here when it goes wrong at its last step. */
#include "rig.h"

static const char *const one[] = {"ram0"};
static const uint64_t sizes[] = {4 << 20};

static Rig *rig_in_precopy(void)
{
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig->session->was_running = TRUE;
    rig->session->accept->boot = g_strdup("this boot");
    for (int state = RM_STATE_PREFLIGHT; state <= RM_STATE_PRECOPY; state++)
        rm_session_set_state(rig->session, state);
    rig_write(rig, 0, 3, 1);
    rig_round(rig, RM_ROUND_FIRST);
    return rig;
}

static gboolean was_asked(Rig *rig, const char *type)
{
    return g_ptr_array_find_with_equal_func(rig->asked, type, g_str_equal, NULL);
}

/* ---- a daemon that is asked after a session ---- */

typedef struct {
    GSocketListener *listener;
    GThread *thread;
    const char *fate;
} Oracle;

static gpointer oracle_main(gpointer data)
{
    Oracle *oracle = data;
    g_autoptr(GSocketConnection) connection = g_socket_listener_accept(oracle->listener, NULL, NULL, NULL);
    RmControl *control = rm_control_new(G_IO_STREAM(connection), NULL, &(RmControlParams){0});
    json_object *message = NULL;
    g_assert_true(rm_control_receive(control, 0, NULL, &message, NULL));
    g_assert_cmpstr(rm_message_type(message), ==, RM_MSG_QUERY);
    json_object *reply = rm_json_message(RM_MSG_FATE);
    rm_json_add_string(reply, "fate", oracle->fate);
    rm_json_add_string(reply, "boot", "this boot");
    rm_control_reply(control, message, reply, NULL);
    json_object_put(message);
    rm_control_free(control);
    return NULL;
}

static Oracle *oracle_new(Rig *rig, const char *fate)
{
    Oracle *oracle = g_new0(Oracle, 1);
    oracle->fate = fate;
    oracle->listener = g_socket_listener_new();
    rig->options.host = (char *)"127.0.0.1";
    rig->options.port = g_socket_listener_add_any_inet_port(oracle->listener, NULL, NULL);
    oracle->thread = g_thread_new("oracle", oracle_main, oracle);
    return oracle;
}

static void oracle_free(Oracle *oracle)
{
    g_thread_join(oracle->thread);
    g_object_unref(oracle->listener);
    g_free(oracle);
}

/* ---- tests ---- */

static void test_all_is_well(void)
{
    Rig *rig = rig_in_precopy();
    g_autoptr(GError) error = NULL;
    rm_switchover_run(rig->session, &error);
    g_assert_no_error(error);
    g_assert_false(rig->session->unconfirmed);
    g_assert_cmpint(rig->session->state, ==, RM_STATE_COMMITTED);
    g_assert_cmpint(rm_guest_fake_run(rig->session->guest), ==, RM_GUEST_SAVED);
    g_assert_cmpint(rig_differs(rig, 0), ==, -1);
    rig_free(rig);
}

/* The destination owns the guest and says that it has lost it: nothing may end the one here. */
static void test_failed_commit_is_not_success(void)
{
    static const RmReason reasons[] = {RM_REASON_RESUME, RM_REASON_GUEST_GONE, RM_REASON_INTERNAL};
    for (guint i = 0; i < G_N_ELEMENTS(reasons); i++) {
        Rig *rig = rig_in_precopy();
        Oracle *oracle = oracle_new(rig, "committed");
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

/* Only the answer was lost: the guest moved, and the one here stays until somebody has looked. */
static void test_lost_answer_is_unconfirmed(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_new(rig, "committed");
    g_autoptr(GError) error = NULL;
    rig->no_commit = RM_REASON_PEER_LOST;
    g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*asking the destination*");
    rm_switchover_run(rig->session, &error);
    g_test_assert_expected_messages();
    g_assert_no_error(error);
    g_assert_true(rig->session->unconfirmed);
    oracle_free(oracle);
    rig_free(rig);
}

static void test_aborted_fails(void)
{
    Rig *rig = rig_in_precopy();
    Oracle *oracle = oracle_new(rig, "aborted");
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
    g_assert_true(was_asked(rig, RM_MSG_LOAD));
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

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/switchover/well", test_all_is_well);
    g_test_add_func("/switchover/failed-commit", test_failed_commit_is_not_success);
    g_test_add_func("/switchover/lost-answer", test_lost_answer_is_unconfirmed);
    g_test_add_func("/switchover/aborted", test_aborted_fails);
    g_test_add_func("/switchover/resumed-by-another", test_resumed_by_another);
    g_test_add_func("/switchover/event-before-commit", test_event_before_commit);
    return g_test_run();
}
