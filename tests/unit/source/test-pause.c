/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --max-pause: when it applies, and what becomes of a session that exceeds it. */
#include "rig.h"

static const char *const one[] = {"ram0"};
static const uint64_t sizes[] = {4 << 20};

static Rig *rig_in_precopy(uint64_t max_pause_ms)
{
    Rig *rig = rig_new(one, sizes, 1, 1);
    rig->options.max_pause_ms = max_pause_ms;
    rig->session->was_running = TRUE;
    rig->session->state = RM_STATE_PRECOPY;
    rig_round(rig, RM_ROUND_FIRST);
    return rig;
}

static void test_bound(void)
{
    static const struct {
        gboolean was_running, moved_stopped, given;
        uint64_t expected;
    } cases[] = {
        {TRUE, FALSE, FALSE, 700}, {TRUE, FALSE, TRUE, 700}, {TRUE, TRUE, FALSE, 0},
        {TRUE, TRUE, TRUE, 700},   {FALSE, FALSE, TRUE, 0},
    };
    RmSendOptions options = {.max_pause_ms = 700};
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        RmSession session = {.options = &options,
                             .was_running = cases[i].was_running,
                             .moved_stopped = cases[i].moved_stopped};
        options.max_pause_given = cases[i].given;
        g_assert_cmpuint(rm_pause_bound_ms(&session), ==, cases[i].expected);
    }
}

/* The save takes its time, in which the main loop's timer fires. */
static void wait_in_save(RmGuest *guest, const char *op, gpointer data)
{
    RmSession *session = data;
    while (strcmp(op, "save") == 0 && !g_atomic_int_get(&session->pause_exceeded))
        g_main_context_iteration(NULL, TRUE);
}

static void test_exceeded(void)
{
    Rig *rig = rig_in_precopy(50);
    g_autoptr(GError) error = NULL, why = NULL;
    rm_guest_fake_set_hook(rig->session->guest, wait_in_save, rig->session);
    g_assert_false(rm_switchover_run(rig->session, &error));
    g_assert_false(g_ptr_array_find_with_equal_func(rig->asked, RM_MSG_LOAD, g_str_equal, NULL));
    g_assert_false(rm_session_check(rig->session, &why));
    g_assert_cmpstr(rm_reason_name(rm_error_reason(why)), ==, "max-pause");
    g_clear_error(&error);
    g_assert_true(rm_switchover_roll_back(rig->session, &error));
    g_assert_cmpint(rm_guest_fake_run(rig->session->guest), ==, RM_GUEST_RUNNING);
    rig_free(rig);
}

/* The timer does not outlive the pause. */
static void test_in_time(void)
{
    Rig *rig = rig_in_precopy(3600 * 1000);
    g_autoptr(GError) error = NULL;
    rm_switchover_run(rig->session, &error);
    g_assert_no_error(error);
    g_assert_null(rig->session->pause_timer);
    rig_free(rig);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/pause/bound", test_bound);
    g_test_add_func("/pause/exceeded", test_exceeded);
    g_test_add_func("/pause/in-time", test_in_time);
    return g_test_run();
}
