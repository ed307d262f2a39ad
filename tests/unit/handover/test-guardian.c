/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guardian with a daemon that dies, hangs, or ends as it should. The daemons are children of this
 * program, which is the guardians', too: it is started again with the verb, and then "settling" is a record,
 * and what it has seen goes to a file.
 */
#include "state-folder.h"

#include "common/log.h"
#include "handover/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define VERB "guardian"
#define PATIENCE_S 60
#define STRAY_FD 77

/* ---- the guardian's side ---- */

static char *list_fds(void)
{
    GString *text = g_string_new(NULL);
    g_autoptr(GDir) dir = g_dir_open("/proc/self/fd", 0, NULL);
    for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *path = g_build_filename("/proc/self/fd", name, NULL);
        g_autofree char *target = g_file_read_link(path, NULL);
        g_string_append_printf(text, "%s=%s\n", name, target != NULL ? target : "?");
    }
    return g_string_free(text, FALSE);
}

static gboolean settle(RmJournal *journal, int qmp_fd, GError **error)
{
    g_autofree char *fds = list_fds();
    g_autofree char *path = g_build_filename(g_getenv("RDMAMIG_STATE_DIR"), "seen", NULL);
    g_autoptr(RmJournal) other = rm_journal_open(RM_SIDE_SOURCE, rm_journal_facts(journal)->session, error);
    gboolean free_for_others = rm_journal_take(other);
    g_autofree char *text = g_strdup_printf("%sqmp=%d\nlooked-after=%d\nsid=%d\n", fds, qmp_fd,
                                            !free_for_others, getsid(0) == getpid());
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
    return rm_journal_move(journal, RM_STATE_BIT(SWITCHOVER), RM_STATE_FAILED, FALSE, NULL, FALSE, NULL,
                           error);
}

/* ---- the daemon's side ---- */

typedef struct {
    char *folder;
    int qmp[2];
    pid_t daemon;
    int said; /* what the daemon prints: its guardian's id, then a letter for each step */
    pid_t guardian;
} Rig;

typedef void (*DaemonMain)(RmGuardian *guardian, int say);

static RmGuardian *start(Rig *rig, RmJournal *journal, uint64_t max_pause_ms)
{
    g_autoptr(GError) error = NULL;
    RmGuardianParams params = {
        .verb = VERB, .qmp_fd = rig->qmp[0], .journal = journal, .max_pause_ms = max_pause_ms};
    RmGuardian *guardian = rm_guardian_start(&params, &error);
    g_assert_no_error(error);
    g_assert_true(rm_guardian_ready(guardian, &error));
    g_assert_true(rm_guardian_ready(guardian, NULL));
    return guardian;
}

/* The guardian of process `parent`: its only child. */
static pid_t child_of(pid_t parent)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task/%d/children", (int)parent, (int)parent);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return (pid_t)atoi(text);
}

/* A daemon that starts a guardian, and then does as `run` says, until it is killed. */
static void rig_start(Rig *rig, uint64_t max_pause_ms, DaemonMain run)
{
    int out[2];
    char letter;
    rig->folder = state_folder_new();
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rig->qmp), ==, 0);
    g_assert_cmpint(pipe2(out, O_CLOEXEC), ==, 0);
    rig->daemon = fork();
    if (rig->daemon == 0) {
        RmJournal *journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_SWITCHOVER);
        g_assert_cmpint(fcntl(rig->qmp[1], F_DUPFD, STRAY_FD), ==, STRAY_FD); /* not close-on-exec */
        RmGuardian *guardian = start(rig, journal, max_pause_ms);
        run(guardian, out[1]);
        for (;;)
            pause();
    }
    close(out[1]);
    rig->said = out[0];
    g_assert_cmpint(read(rig->said, &letter, 1), ==, 1);
    rig->guardian = child_of(rig->daemon);
}

static void rig_end(Rig *rig)
{
    kill(rig->daemon, SIGKILL);
    waitpid(rig->daemon, NULL, 0);
    close(rig->said);
    close(rig->qmp[0]);
    close(rig->qmp[1]);
    state_folder_free(rig->folder);
}

static gboolean is_gone(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", (int)pid);
    g_autofree char *text = NULL;
    return !g_file_get_contents(path, &text, NULL, NULL) || strstr(text, ") Z ") != NULL;
}

static void assert_gone(pid_t pid)
{
    for (int i = 0; i < PATIENCE_S * 100 && !is_gone(pid); i++)
        g_usleep(10000);
    g_assert_true(is_gone(pid));
}

static void assert_settled(Rig *rig, gboolean settled)
{
    g_autoptr(GError) error = NULL;
    assert_gone(rig->guardian);
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_SOURCE, SESSION, &error);
    g_assert_no_error(error);
    g_assert_cmpint(latest(journal), ==, settled ? RM_STATE_FAILED : RM_STATE_SWITCHOVER);
}

static char *seen(Rig *rig)
{
    g_autofree char *path = g_build_filename(rig->folder, "seen", NULL);
    char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return text;
}

static void say(int fd)
{
    g_assert_cmpint(write(fd, "x", 1), ==, 1);
}

/* ---- what daemons do ---- */

static void idle(RmGuardian *guardian, int out)
{
    say(out);
}

static void pause_guest(RmGuardian *guardian, int out)
{
    rm_guardian_paused(guardian, TRUE);
    say(out);
}

static void pause_and_go_on(RmGuardian *guardian, int out)
{
    rm_guardian_paused(guardian, TRUE);
    rm_guardian_paused(guardian, FALSE);
    say(out);
}

static void lose_socket(RmGuardian *guardian, int out)
{
    say(out);
    for (int fd = 3; fd < STRAY_FD; fd++)
        close(fd);
}

/* ---- tests ---- */

static void test_daemon_killed(void)
{
    Rig rig;
    rig_start(&rig, 0, idle);
    for (int i = 1; i <= 3; i++) { /* meant for the daemon, and sent to all */
        static const int signals[] = {0, SIGTERM, SIGINT, SIGHUP};
        kill(rig.guardian, signals[i]);
    }
    g_usleep(100000);
    g_assert_false(is_gone(rig.guardian));
    g_autofree char *comm_path = g_strdup_printf("/proc/%d/comm", (int)rig.guardian);
    g_autofree char *comm = NULL;
    g_assert_true(g_file_get_contents(comm_path, &comm, NULL, NULL));
    g_assert_cmpstr(comm, ==, "rdmamig-guard\n");
    kill(rig.daemon, SIGKILL);
    assert_settled(&rig, TRUE);
    g_autofree char *text = seen(&rig);
    g_test_message("%s", text);
    g_assert_nonnull(strstr(text, "qmp=3\n"));
    g_assert_nonnull(strstr(text, "looked-after=1\n"));
    g_assert_nonnull(strstr(text, "sid=1\n"));
    g_assert_null(strstr(text, "77="));
    g_assert_nonnull(strstr(text, "\n1=/dev/null\n"));
    g_auto(GStrv) sockets = g_strsplit(text, "=socket:", -1);
    g_assert_cmpuint(g_strv_length(sockets), ==, 3); /* QMP's and the daemon's */
    rig_end(&rig);
}

static void test_hung(void)
{
    Rig rig;
    int status;
    rig_start(&rig, 300, pause_guest);
    g_assert_cmpint(waitpid(rig.daemon, &status, 0), ==, rig.daemon); /* by the guardian's hand */
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_settled(&rig, TRUE);
    rig_end(&rig);
}

static void test_stopped_and_hung(void)
{
    Rig rig;
    int status;
    rig_start(&rig, 1000, pause_guest);
    kill(rig.daemon, SIGSTOP);
    g_assert_cmpint(waitpid(rig.daemon, &status, 0), ==, rig.daemon);
    assert_settled(&rig, TRUE);
    rig_end(&rig);
}

static void assert_not_killed(uint64_t max_pause_ms, DaemonMain run)
{
    Rig rig;
    rig_start(&rig, max_pause_ms, run);
    g_usleep(2500000); /* with its grace the bound is long over */
    g_assert_cmpint(waitpid(rig.daemon, NULL, WNOHANG), ==, 0);
    g_assert_false(is_gone(rig.guardian));
    kill(rig.daemon, SIGKILL);
    assert_settled(&rig, TRUE);
    rig_end(&rig);
}

static void test_not_hung(void)
{
    assert_not_killed(300, pause_and_go_on);
    assert_not_killed(0, pause_guest);
}

/* A daemon that lives is never settled for, whatever became of its end of the socket. */
static void test_lost_socket(void)
{
    assert_not_killed(0, lose_socket);
}

/* In this process: the orderly end, and guardians that are stopped or dead. */
static void test_end(void)
{
    for (int i = 0; i < 3; i++) {
        static const int signals[] = {0, SIGSTOP, SIGKILL};
        Rig rig = {.folder = state_folder_new()};
        g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, rig.qmp), ==, 0);
        g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_SWITCHOVER);
        RmGuardian *guardian = start(&rig, journal, 0);
        rig.guardian = child_of(getpid());
        g_assert_cmpint(rig.guardian, >, 0);
        if (signals[i] != 0)
            kill(rig.guardian, signals[i]);
        if (signals[i] == SIGKILL) {
            assert_gone(rig.guardian);
            g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*guardian*has ended*");
        }
        rm_guardian_paused(guardian, TRUE);
        rm_guardian_paused(guardian, FALSE);
        rm_guardian_end(guardian);
        if (signals[i] == SIGKILL)
            g_test_assert_expected_messages();
        g_assert_cmpint(waitpid(-1, NULL, WNOHANG), ==, -1); /* no child is left */
        assert_settled(&rig, FALSE);
        g_assert_cmpint(send(rig.qmp[0], "x", 1, MSG_NOSIGNAL), ==, 1); /* still ours */
        close(rig.qmp[0]);
        close(rig.qmp[1]);
        state_folder_free(rig.folder);
    }
    g_assert_true(rm_guardian_ready(NULL, NULL));
    rm_guardian_paused(NULL, TRUE);
    rm_guardian_end(NULL);
}

/* A guardian that can't begin is an error of the daemon's, not a session without one. */
static void test_no_start(void)
{
    g_autoptr(GError) error = NULL;
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_SWITCHOVER);
    RmGuardianParams params = {.verb = "no-such-verb", .qmp_fd = STDERR_FILENO, .journal = journal};
    RmGuardian *guardian = rm_guardian_start(&params, &error);
    g_assert_no_error(error);
    g_assert_false(rm_guardian_ready(guardian, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_INTERNAL);
    g_test_expect_message(G_LOG_DOMAIN, G_LOG_LEVEL_WARNING, "*has ended: nobody looks after the guest*");
    rm_guardian_end(guardian);
    g_test_assert_expected_messages();
    g_assert_cmpint(waitpid(-1, NULL, WNOHANG), ==, -1);
    state_folder_free(folder);
}

/* Called by hand, it does nothing. */
static void test_by_hand(void)
{
    const char *argv[] = {"/proc/self/exe", VERB, "1", "0", SESSION, NULL};
    int status = 0;
    g_assert_true(g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, NULL, NULL,
                               &status, NULL));
    g_assert_true(WIFEXITED(status));
    g_assert_cmpint(WEXITSTATUS(status), ==, 2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], VERB) == 0) {
        rm_log_init("test-guardian", 0);
        return rm_guardian_main(argc, argv, settle);
    }
    if (argc > 1 && strcmp(argv[1], "no-such-verb") == 0)
        return 2;
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/handover/guardian/daemon-killed", test_daemon_killed);
    g_test_add_func("/handover/guardian/hung", test_hung);
    g_test_add_func("/handover/guardian/stopped-and-hung", test_stopped_and_hung);
    g_test_add_func("/handover/guardian/not-hung", test_not_hung);
    g_test_add_func("/handover/guardian/lost-socket", test_lost_socket);
    g_test_add_func("/handover/guardian/end", test_end);
    g_test_add_func("/handover/guardian/no-start", test_no_start);
    g_test_add_func("/handover/guardian/by-hand", test_by_hand);
    return g_test_run();
}
