/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reports: their text, two sides in one file, settled ones, rights, strangers, pruning. */
#include "state-folder.h"

#include "control/json.h"
#include "handover/reports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <utime.h>

#define DAY_S (24 * 60 * 60)

static RmReport sample(RmSide side, RmState state)
{
    return (RmReport){.session = SESSION,
                      .guest = "a \"guest\"\n",
                      .side = side,
                      .peer = "host:24780",
                      .start_us = G_GINT64_CONSTANT(1700000000000001),
                      .end_us = G_GINT64_CONSTANT(1700000001500000),
                      .state = state,
                      .reason = state == RM_STATE_DONE ? RM_REASON_NONE : RM_REASON_PEER_LOST,
                      .owner = rm_state_owner(state),
                      .where = "guest runs on \x1b[31mhost",
                      .detail = state == RM_STATE_DONE ? NULL : "the line was cut",
                      .transport = "tcp",
                      .by = RM_REPORT_BY_DAEMON,
                      .metrics = json_object_new_object(),
                      .rounds = json_object_new_array()};
}

static void write_report(RmSide side, RmState state)
{
    RmReport report = sample(side, state);
    rm_json_add_uint(report.metrics, "rounds", side == RM_SIDE_SOURCE ? 7 : 8);
    rm_autojson object = rm_report_object(&report);
    rm_reports_write(object);
}

static char *report_path(const char *folder, const char *session)
{
    g_autofree char *name = g_strconcat(session, ".json", NULL);
    return g_build_filename(folder, "reports", name, NULL);
}

static const char *text_of(json_object *object, const char *key)
{
    const char *text = NULL;
    rm_json_string_opt(object, key, &text, NULL);
    return text;
}

static void assert_says(RmSide side, const char *key, const char *expected)
{
    rm_autojson report = rm_reports_read_side(SESSION, side);
    g_assert_nonnull(report);
    g_assert_cmpstr(text_of(report, key), ==, expected);
}

static void test_text(void)
{
    char *folder = state_folder_new();
    write_report(RM_SIDE_SOURCE, RM_STATE_FAILED);
    assert_says(RM_SIDE_SOURCE, "session", SESSION);
    assert_says(RM_SIDE_SOURCE, "guest", "a \"guest\"\n");
    assert_says(RM_SIDE_SOURCE, "side", "source");
    assert_says(RM_SIDE_SOURCE, "state", "failed");
    assert_says(RM_SIDE_SOURCE, "reason", "peer-lost");
    assert_says(RM_SIDE_SOURCE, "owner", "source");
    assert_says(RM_SIDE_SOURCE, "start", "2023-11-14T22:13:20.000001Z");
    assert_says(RM_SIDE_SOURCE, "end", "2023-11-14T22:13:21.500000Z");
    assert_says(RM_SIDE_SOURCE, "where", "guest runs on \\x1b[31mhost"); /* no terminal is moved by it */
    assert_says(RM_SIDE_SOURCE, "peer", "host:24780");
    rm_autojson report = rm_reports_read_side(SESSION, RM_SIDE_SOURCE);
    g_assert_true(json_object_object_get_ex(report, "next", NULL)); /* null, but there */
    g_assert_null(rm_reports_read_side(SESSION, RM_SIDE_DESTINATION));
    state_folder_free(folder);
}

static void test_rights(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = report_path(folder, SESSION);
    g_autofree char *parent = g_path_get_dirname(path);
    struct stat info;
    mode_t mask = umask(0);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    umask(mask);
    g_assert_cmpint(stat(path, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 07777, ==, 0600);
    g_assert_cmpint(stat(parent, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 07777, ==, 0700);
    g_autoptr(GPtrArray) sessions = rm_reports_list();
    g_assert_cmpint(sessions->len, ==, 1);
    g_assert_cmpstr(sessions->pdata[0], ==, SESSION);
    state_folder_free(folder);
}

/* Each side replaces its own, and the file is one for both. */
static void test_two_sides(void)
{
    char *folder = state_folder_new();
    write_report(RM_SIDE_SOURCE, RM_STATE_DOUBTFUL);
    write_report(RM_SIDE_DESTINATION, RM_STATE_DONE);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_autoptr(GPtrArray) reports = rm_reports_read(SESSION, NULL);
    g_assert_cmpint(reports->len, ==, 2);
    assert_says(RM_SIDE_SOURCE, "state", "done");
    assert_says(RM_SIDE_DESTINATION, "state", "done");
    state_folder_free(folder);
}

/* What the daemon knew of the session's course stays; what became of it is the settler's word. */
static void test_settled(void)
{
    char *folder = state_folder_new();
    write_report(RM_SIDE_SOURCE, RM_STATE_DOUBTFUL);
    RmJournalFacts facts = {.session = (char *)SESSION, .guest = (char *)"g", .side = RM_SIDE_SOURCE};
    RmSettled settled = {
        .state = RM_STATE_DONE, .owner = RM_OWNER_DESTINATION, .where = (char *)"guest g runs on there"};
    rm_reports_settled(&facts, &settled, NULL, RM_REPORT_BY_RESOLVE);
    assert_says(RM_SIDE_SOURCE, "state", "done");
    assert_says(RM_SIDE_SOURCE, "reason", "none");
    assert_says(RM_SIDE_SOURCE, "by", "resolve");
    assert_says(RM_SIDE_SOURCE, "where", "guest g runs on there");
    assert_says(RM_SIDE_SOURCE, "start", "2023-11-14T22:13:20.000001Z");
    assert_says(RM_SIDE_SOURCE, "transport", "tcp");
    rm_autojson report = rm_reports_read_side(SESSION, RM_SIDE_SOURCE);
    json_object *metrics;
    uint64_t rounds = 0;
    g_assert_true(rm_json_object(report, "metrics", &metrics, NULL));
    g_assert_true(rm_json_uint(metrics, "rounds", &rounds, NULL));
    g_assert_cmpuint(rounds, ==, 7);
    /* Nothing new: the file stays as it is. */
    rm_reports_settled(&facts, &settled, NULL, RM_REPORT_BY_GUARDIAN);
    assert_says(RM_SIDE_SOURCE, "by", "resolve");
    state_folder_free(folder);
}

/* A daemon that was killed left none; and why it failed can't be told. */
static void test_settled_without(void)
{
    char *folder = state_folder_new();
    RmJournalFacts facts = {.session = (char *)SESSION,
                            .guest = (char *)"g",
                            .side = RM_SIDE_DESTINATION,
                            .peer = (char *)"10.0.0.1:4711",
                            .time_us = G_GINT64_CONSTANT(1700000000000001)};
    rm_reports_settled_here(&facts, NULL, RM_STATE_FAILED, NULL, RM_REPORT_BY_SWEEP);
    assert_says(RM_SIDE_DESTINATION, "state", "failed");
    assert_says(RM_SIDE_DESTINATION, "reason", "internal");
    assert_says(RM_SIDE_DESTINATION, "owner", "source");
    assert_says(RM_SIDE_DESTINATION, "peer", "10.0.0.1:4711");
    assert_says(RM_SIDE_DESTINATION, "start", "2023-11-14T22:13:20.000001Z");
    state_folder_free(folder);
}

/* A warning, nothing else; and nothing is written through what others may have put there. */
static void assert_not_written(const char *part)
{
    g_test_expect_message("rdmamig", G_LOG_LEVEL_WARNING, part);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_test_assert_expected_messages();
}

static void test_strangers(void)
{
    char *folder = state_folder_new();
    g_autofree char *reports = g_build_filename(folder, "reports", NULL);
    g_autofree char *elsewhere = g_build_filename(folder, "elsewhere", NULL);
    g_autofree char *path = report_path(folder, SESSION);
    g_assert_cmpint(g_mkdir(elsewhere, 0700), ==, 0);
    g_assert_cmpint(symlink("elsewhere", reports), ==, 0);
    assert_not_written("*has no report*is not a folder*");
    g_assert_cmpint(g_rmdir(elsewhere), ==, 0); /* is empty */
    g_assert_cmpint(unlink(reports), ==, 0);
    g_assert_cmpint(g_mkdir(reports, 0700), ==, 0);
    g_assert_cmpint(chmod(reports, 0777), ==, 0);
    assert_not_written("*has no report*may be written by others*");
    g_assert_cmpint(chmod(reports, 0700), ==, 0);
    /* A link in the file's place is replaced, not followed. */
    g_autofree char *victim = g_build_filename(folder, "victim", NULL);
    g_assert_true(g_file_set_contents(victim, "precious", -1, NULL));
    g_assert_cmpint(symlink(victim, path), ==, 0);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(victim, &text, NULL, NULL));
    g_assert_cmpstr(text, ==, "precious");
    assert_says(RM_SIDE_SOURCE, "state", "done");
    state_folder_free(folder);
}

static void test_unreadable(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = report_path(folder, SESSION);
    g_autoptr(GError) error = NULL;
    write_report(RM_SIDE_DESTINATION, RM_STATE_DONE);
    g_assert_true(g_file_set_contents(path, "{\"side\":\"destination\",", -1, NULL));
    g_assert_null(rm_reports_read(SESSION, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE); /* makes it whole again */
    g_autoptr(GPtrArray) reports = rm_reports_read(SESSION, NULL);
    g_assert_cmpint(reports->len, ==, 1);
    state_folder_free(folder);
}

static void set_age(const char *path, int days)
{
    time_t then = g_get_real_time() / G_USEC_PER_SEC - (time_t)days * DAY_S;
    struct utimbuf times = {then, then};
    g_assert_cmpint(utime(path, &times), ==, 0);
}

static void make_empty(const char *path, int days)
{
    g_assert_true(g_file_set_contents(path, "{}\n", -1, NULL));
    set_age(path, days);
}

static void test_prune_by_days(void)
{
    char *folder = state_folder_new();
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_autofree char *young = report_path(folder, "00000000-0000-4000-8000-000000000001");
    g_autofree char *old = report_path(folder, "00000000-0000-4000-8000-000000000002");
    g_autofree char *torn = g_build_filename(folder, "reports", ".new-torn", NULL);
    g_autofree char *other = g_build_filename(folder, "reports", "notes.json", NULL);
    make_empty(young, RM_STATEDIR_DAYS - 1);
    make_empty(old, RM_STATEDIR_DAYS + 1);
    make_empty(torn, 2);
    make_empty(other, RM_STATEDIR_DAYS + 1);
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_assert_true(g_file_test(young, G_FILE_TEST_EXISTS));
    g_assert_false(g_file_test(old, G_FILE_TEST_EXISTS));
    g_assert_false(g_file_test(torn, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(other, G_FILE_TEST_EXISTS)); /* none of ours */
    state_folder_free(folder);
}

static void test_prune_by_count(void)
{
    char *folder = state_folder_new();
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    for (int i = 0; i < RM_STATEDIR_KEPT; i++) {
        g_autofree char *session = g_strdup_printf("00000000-0000-4000-8000-%012x", (unsigned)i);
        g_autofree char *path = report_path(folder, session);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        g_assert_cmpint(fd, >=, 0);
        close(fd);
        set_age(path, i == 4711 ? 2 : 1);
    }
    write_report(RM_SIDE_SOURCE, RM_STATE_DONE);
    g_autofree char *oldest = report_path(folder, "00000000-0000-4000-8000-000000001267"); /* 4711 */
    g_autoptr(GPtrArray) sessions = rm_reports_list();
    g_assert_cmpint(sessions->len, ==, RM_STATEDIR_KEPT);
    g_assert_cmpstr(sessions->pdata[0], ==, SESSION);
    g_assert_false(g_file_test(oldest, G_FILE_TEST_EXISTS));
    state_folder_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/reports/text", test_text);
    g_test_add_func("/reports/rights", test_rights);
    g_test_add_func("/reports/two-sides", test_two_sides);
    g_test_add_func("/reports/settled", test_settled);
    g_test_add_func("/reports/settled-without", test_settled_without);
    g_test_add_func("/reports/strangers", test_strangers);
    g_test_add_func("/reports/unreadable", test_unreadable);
    g_test_add_func("/reports/prune-by-days", test_prune_by_days);
    g_test_add_func("/reports/prune-by-count", test_prune_by_count);
    return g_test_run();
}
