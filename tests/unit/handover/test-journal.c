/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The journal's records: written, read back, torn, raced for. */
#include "state-folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void test_facts(void)
{
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {.session = (char *)SESSION,
                            .side = RM_SIDE_SOURCE,
                            .guest = (char *)"näme\n\"x\"",
                            .qmp = (char *)"/run/a b.qmp",
                            .pid = getpid(),
                            .peer = (char *)"[::1]:24780",
                            .token = (char *)"00ff",
                            .tls_creds = (char *)"/etc/rdmamig/pki",
                            .tls_host = (char *)"dst.example.com",
                            .was_running = TRUE,
                            .keep_source = TRUE};
    rm_journal_facts_stamp(&facts);
    g_assert_true(rm_journal_vmm_lives(&facts));
    rm_journal_close(rm_journal_create(&facts, RM_STATE_PRECOPY, &error));
    g_assert_no_error(error);
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_SOURCE, SESSION, &error);
    g_assert_no_error(error);
    const RmJournalFacts *read = rm_journal_facts(journal);
    g_assert_cmpstr(read->session, ==, SESSION);
    g_assert_cmpstr(read->guest, ==, facts.guest);
    g_assert_cmpstr(read->qmp, ==, facts.qmp);
    g_assert_cmpstr(read->peer, ==, facts.peer);
    g_assert_cmpstr(read->token, ==, facts.token);
    g_assert_cmpstr(read->tls_creds, ==, facts.tls_creds);
    g_assert_cmpstr(read->tls_host, ==, facts.tls_host);
    g_assert_true(read->was_running && read->keep_source && !read->started);
    g_assert_cmpint(read->time_us, ==, facts.time_us);
    g_assert_true(rm_journal_vmm_lives(read));
    g_free(facts.host_boot);
    state_folder_free(folder);
}

static void test_vmm_gone(void)
{
    RmJournalFacts facts = {.pid = getpid()};
    rm_journal_facts_stamp(&facts);
    g_assert_true(rm_journal_vmm_lives(&facts));
    facts.pid_start++;
    g_assert_false(rm_journal_vmm_lives(&facts)); /* another process with its number */
    facts.pid_start--;
    g_free(facts.host_boot);
    facts.host_boot = g_strdup("another boot");
    g_assert_false(rm_journal_vmm_lives(&facts));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    facts.pid = child;
    rm_journal_facts_stamp(&facts);
    siginfo_t info;
    g_assert_cmpint(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), ==, 0);
    g_assert_false(rm_journal_vmm_lives(&facts)); /* a zombie is none */
    waitpid(child, NULL, 0);
    g_free(facts.host_boot);
}

static void test_moves(void)
{
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PRECOPY);
    g_auto(RmJournalRecord) record = {0};
    g_autoptr(GError) error = NULL;
    rm_autojson note = json_object_new_object();
    json_object_object_add(note, "key", json_object_new_string("value"));
    RmState state;
    g_assert_cmpint(move(journal, RM_STATE_BIT(PREPARED), RM_STATE_COMMITTED, TRUE), ==, RM_STATE_PRECOPY);
    g_assert_true(rm_journal_move(journal, RM_STATE_BIT(PRECOPY), RM_STATE_SWITCHOVER, FALSE, note, FALSE,
                                  &state, &error));
    g_assert_cmpint(state, ==, RM_STATE_SWITCHOVER);
    g_assert_true(
        rm_journal_move(journal, RM_JOURNAL_OPEN, RM_STATE_COMMITTED, TRUE, NULL, TRUE, NULL, &error));
    g_assert_true(rm_journal_read(journal, &record, &error));
    g_assert_cmpint(record.state, ==, RM_STATE_COMMITTED);
    g_assert_true(record.run);
    g_assert_cmpuint(record.past, ==,
                     RM_STATE_BIT(PRECOPY) | RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(COMMITTED));
    g_assert_cmpstr(json_object_get_string(json_object_object_get(record.note, "key")), ==, "value");
    g_assert_cmpint(move(journal, RM_JOURNAL_OPEN, RM_STATE_FAILED, TRUE), ==, RM_STATE_COMMITTED);
    state_folder_free(folder);
}

static void test_id_only_once(void)
{
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PRECOPY);
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {.session = (char *)SESSION, .side = RM_SIDE_DESTINATION};
    g_assert_null(rm_journal_create(&facts, RM_STATE_PRECOPY, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_PROTOCOL);
    g_autoptr(RmJournal) other = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY); /* one host, both sides */
    g_assert_cmpint(latest(journal), ==, RM_STATE_PRECOPY);
    state_folder_free(folder);
}

/* A crash in the middle of an append, at every byte of it: the state before counts, and the journal goes on.
 */
static void test_torn_at_every_byte(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = file_path(folder, "destination", SESSION);
    g_autofree char *whole = NULL;
    gsize length, before;
    g_autoptr(GError) error = NULL;
    RmJournal *journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PREPARED);
    struct stat info;
    g_assert_cmpint(stat(path, &info), ==, 0);
    before = (gsize)info.st_size;
    move(journal, RM_JOURNAL_OPEN, RM_STATE_COMMITTED, TRUE);
    rm_journal_close(journal);
    g_assert_true(g_file_get_contents(path, &whole, &length, NULL));
    for (gsize cut = before; cut < length; cut++) {
        int fd = open(path, O_WRONLY | O_TRUNC);
        g_assert_cmpint(write(fd, whole, cut), ==, (gssize)cut);
        close(fd);
        journal = rm_journal_open(RM_SIDE_DESTINATION, SESSION, &error);
        g_assert_no_error(error);
        g_assert_cmpint(latest(journal), ==, RM_STATE_PREPARED);
        g_assert_cmpint(move(journal, RM_JOURNAL_OPEN, RM_STATE_FAILED, TRUE), ==, RM_STATE_FAILED);
        g_assert_cmpint(latest(journal), ==, RM_STATE_FAILED);
        rm_journal_close(journal);
    }
    /* Its very beginning can't be torn: the file has no name before it is on disk. What is so is no journal.
     */
    for (gsize cut = 0; cut < before; cut++) {
        g_autoptr(GError) problem = NULL;
        int fd = open(path, O_WRONLY | O_TRUNC);
        g_assert_cmpint(write(fd, whole, cut), ==, (gssize)cut);
        close(fd);
        g_assert_null(rm_journal_open(RM_SIDE_DESTINATION, SESSION, &problem));
        g_assert_cmpint(rm_error_reason(problem), ==, RM_REASON_JOURNAL);
    }
    state_folder_free(folder);
}

/* Every single byte turned into any of some: an error or a journal, never a crash, and never a state that
 * was not there. */
static void test_garbage(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = file_path(folder, "source", SESSION);
    g_autofree char *whole = NULL;
    gsize length, bad = 0;
    rm_journal_close(create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY));
    g_assert_true(g_file_get_contents(path, &whole, &length, NULL));
    static const char bytes[] = {'\0', '\n', '"', '{', '}', '9', '-', '\xff', 'x'};
    for (gsize at = 0; at < length; at++) {
        for (gsize i = 0; i < sizeof bytes; i++) {
            g_autoptr(GError) error = NULL;
            char old = whole[at];
            whole[at] = bytes[i];
            int fd = open(path, O_WRONLY | O_TRUNC);
            g_assert_cmpint(write(fd, whole, length), ==, (gssize)length);
            close(fd);
            whole[at] = old;
            g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_SOURCE, SESSION, &error);
            if (journal == NULL) {
                g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
                g_assert_nonnull(strstr(error->message, path));
                bad++;
            } else {
                g_assert_cmpint(latest(journal), ==, RM_STATE_PRECOPY);
            }
        }
    }
    g_assert_cmpuint(bad, >, length);
    state_folder_free(folder);
}

/* ---- races ---- */

/* In a process of its own, started at the sign: tries to get the session to `to`; exits 1 if it did. */
static pid_t contender(const int pipes[2], RmState to)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    char c;
    close(pipes[1]); /* or its end would never come */
    RmJournal *journal = rm_journal_open(RM_SIDE_DESTINATION, SESSION, NULL);
    RmState state;
    if (journal == NULL || read(pipes[0], &c, 1) != 0 ||
        !rm_journal_move(journal, RM_JOURNAL_OPEN, to, TRUE, NULL, TRUE, &state, NULL))
        _exit(2);
    _exit(state == to ? 1 : 0);
}

static void test_commit_against_abort(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = file_path(folder, "destination", SESSION);
    unsigned commits = 0;
    for (unsigned i = 0; i < 1000; i++) {
        RmJournal *journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PREPARED);
        int pipes[2], status[2];
        pid_t pids[2];
        g_assert_cmpint(pipe(pipes), ==, 0);
        for (unsigned k = 0; k < 2; k++)
            pids[k] = contender(pipes, (i + k) % 2 != 0 ? RM_STATE_COMMITTED : RM_STATE_FAILED);
        close(pipes[0]);
        close(pipes[1]);
        for (unsigned k = 0; k < 2; k++) {
            waitpid(pids[k], &status[k], 0);
            g_assert_true(WIFEXITED(status[k]));
        }
        unsigned winner = WEXITSTATUS(status[0]) == 1 ? 0 : 1;
        g_assert_cmpint(WEXITSTATUS(status[winner]), ==, 1);
        g_assert_cmpint(WEXITSTATUS(status[!winner]), ==, 0);
        RmState won = (i + winner) % 2 != 0 ? RM_STATE_COMMITTED : RM_STATE_FAILED;
        g_assert_cmpint(latest(journal), ==, won);
        commits += won == RM_STATE_COMMITTED;
        rm_journal_close(journal);
        unlink(path);
    }
    g_test_message("%u of 1000 committed", commits);
    state_folder_free(folder);
}

static gpointer move_in_thread(gpointer data)
{
    return GINT_TO_POINTER(move(data, RM_JOURNAL_OPEN, RM_STATE_COMMITTED, FALSE));
}

/* Threads that share one RmJournal, whose flock(2) is one and the same. */
static void test_threads(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = file_path(folder, "destination", SESSION);
    for (unsigned i = 0; i < 1000; i++) {
        RmJournal *journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PREPARED);
        GThread *thread = g_thread_new("commit", move_in_thread, journal);
        RmState here = move(journal, RM_JOURNAL_OPEN, RM_STATE_FAILED, FALSE);
        RmState there = GPOINTER_TO_INT(g_thread_join(thread));
        g_assert_cmpint(here, ==, there);
        rm_journal_close(journal);
        unlink(path);
    }
    state_folder_free(folder);
}

/* Who looks after it: seen by others, inherited by a child, free again after the last of them. */
static void test_lock(void)
{
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    RmJournal *mine = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY);
    RmJournal *other = rm_journal_open(RM_SIDE_SOURCE, SESSION, &error);
    int pipes[2];
    g_assert_cmpint(pipe(pipes), ==, 0);
    g_assert_true(rm_journal_take(mine)); /* again: still its own */
    g_assert_false(rm_journal_take(other));
    pid_t child = fork();
    if (child == 0) { /* as a guardian: adopts the descriptor, and holds it until told */
        char c;
        close(pipes[1]);
        RmJournal *adopted = rm_journal_adopt(rm_journal_fd(mine), NULL);
        if (adopted == NULL || !rm_journal_take(adopted))
            _exit(2);
        _exit(read(pipes[0], &c, 1) == 0 ? (int)latest(adopted) : 3);
    }
    close(pipes[0]);
    move(mine, RM_JOURNAL_OPEN, RM_STATE_SWITCHOVER, FALSE);
    rm_journal_close(mine);
    g_assert_false(rm_journal_take(other)); /* the child looks after it */
    int status;
    close(pipes[1]);
    waitpid(child, &status, 0);
    g_assert_cmpint(WEXITSTATUS(status), ==, RM_STATE_SWITCHOVER);
    g_assert_true(rm_journal_take(other));
    rm_journal_close(other);
    state_folder_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/journal/facts", test_facts);
    g_test_add_func("/journal/vmm-gone", test_vmm_gone);
    g_test_add_func("/journal/moves", test_moves);
    g_test_add_func("/journal/id-only-once", test_id_only_once);
    g_test_add_func("/journal/torn-at-every-byte", test_torn_at_every_byte);
    g_test_add_func("/journal/garbage", test_garbage);
    g_test_add_func("/journal/commit-against-abort", test_commit_against_abort);
    g_test_add_func("/journal/threads", test_threads);
    g_test_add_func("/journal/lock", test_lock);
    return g_test_run();
}
