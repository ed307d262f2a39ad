/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The journal's files and folders: rights, space, strangers, listing, pruning. */
#include "state-folder.h"

#include "common/fault.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void assert_refused(RmSide side, const char *session, const char *part)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(rm_journal_open(side, session, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_test_message("%s", error->message);
    g_assert_nonnull(strstr(error->message, part));
}

static void test_rights_and_space(void)
{
    char *folder = state_folder_new();
    g_autofree char *path = file_path(folder, "source", SESSION);
    g_autofree char *journal_path = g_build_filename(folder, "journal", NULL);
    g_autofree char *side_path = g_build_filename(journal_path, "source", NULL);
    mode_t mask = umask(0);
    RmJournal *journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY);
    umask(mask);
    struct stat info;
    g_assert_cmpint(stat(path, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 07777, ==, 0600);
    g_assert_cmpint(info.st_nlink, ==, 1);
    g_assert_cmpint(info.st_size, <, 1024);
    g_assert_cmpint(info.st_blocks * 512, >=, 64 * 1024);
    blkcnt_t reserved = info.st_blocks;
    /* A torn line is cut off, which must not give the reserve away. */
    int fd = open(path, O_WRONLY | O_APPEND);
    g_assert_cmpint(write(fd, "{\"st", 4), ==, 4);
    close(fd);
    move(journal, RM_STATE_BIT(PRECOPY), RM_STATE_SWITCHOVER, FALSE);
    g_assert_cmpint(stat(path, &info), ==, 0);
    g_assert_cmpint(info.st_blocks, ==, reserved);
    /* Nothing follows an end, and there may be ten thousand of them. */
    move(journal, ~0u, RM_STATE_DOUBTFUL, FALSE);
    g_assert_cmpint(stat(path, &info), ==, 0);
    g_assert_cmpint(info.st_blocks, ==, reserved);
    move(journal, ~0u, RM_STATE_FAILED, FALSE);
    g_assert_cmpint(stat(path, &info), ==, 0);
    g_assert_cmpint(info.st_blocks * 512, <=, 4096);
    g_assert_cmpint(latest(journal), ==, RM_STATE_FAILED);
    rm_journal_close(journal);
    g_assert_cmpint(stat(journal_path, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 07777, ==, 0700);
    g_assert_cmpint(stat(side_path, &info), ==, 0);
    g_assert_cmpint(info.st_mode & 07777, ==, 0700);
    state_folder_free(folder);
}

/* A disk that is full when the session is to end can't keep it from being recorded; one that is full at its
 * beginning refuses it. */
static void test_full_disk(void)
{
    char *folder = state_folder_new();
    g_autofree char *filler = g_build_filename(folder, "filler", NULL);
    if (mount("rdmamig-unit", folder, "tmpfs", 0, "size=256k,mode=700") < 0) {
        g_test_skip("cannot mount a small tmpfs: not root");
        state_folder_free(folder);
        return;
    }
    g_autoptr(GError) error = NULL;
    static char page[4096];
    RmJournal *journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY);
    int fd = open(filler, O_WRONLY | O_CREAT, 0600);
    while (write(fd, page, sizeof page) > 0)
        ;
    close(fd);
    static const RmState states[] = {RM_STATE_SWITCHOVER, RM_STATE_PREPARED, RM_STATE_DOUBTFUL};
    for (guint i = 0; i < G_N_ELEMENTS(states); i++)
        g_assert_cmpint(move(journal, ~0u, states[i], TRUE), ==, states[i]);
    /* Beyond the reserve it fails, and what was there stays. */
    gboolean ok = TRUE;
    for (guint i = 0; i < 2000 && ok; i++)
        ok = rm_journal_move(journal, ~0u, RM_STATE_DOUBTFUL, FALSE, NULL, TRUE, NULL, &error);
    g_assert_false(ok);
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_cmpint(latest(journal), ==, RM_STATE_DOUBTFUL);
    g_clear_error(&error);
    RmJournalFacts facts = {.session = (char *)"22222222-2222-4333-8444-555555555555",
                            .side = RM_SIDE_SOURCE};
    g_assert_null(rm_journal_create(&facts, RM_STATE_PRECOPY, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_autoptr(GPtrArray) left = rm_journal_list(RM_SIDE_SOURCE);
    g_assert_cmpuint(left->len, ==, 1);
    rm_journal_close(journal);
    umount(folder);
    state_folder_free(folder);
}

/* A record whose sync fails was never there, for its writer and for everybody else. */
static void test_failed_sync(void)
{
#if RM_FAULTS
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    RmJournal *journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_PREPARED);
    RmJournal *other = rm_journal_open(RM_SIDE_SOURCE, SESSION, NULL);
    g_assert_false(
        rm_journal_move(journal, RM_JOURNAL_OPEN, RM_STATE_COMMITTED, TRUE, NULL, TRUE, NULL, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_cmpint(latest(other), ==, RM_STATE_PREPARED);
    g_assert_cmpint(move(other, RM_JOURNAL_OPEN, RM_STATE_FAILED, TRUE), ==, RM_STATE_FAILED);
    g_assert_cmpint(latest(journal), ==, RM_STATE_FAILED);
    rm_journal_close(journal);
    rm_journal_close(other);
    state_folder_free(folder);
#else
    g_test_skip("fault points are not compiled in");
#endif
}

static void test_none(void)
{
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    static const char *const ids[] = {SESSION, "", "..", "../../etc/passwd", "x", ".new-" SESSION};
    for (int made = 0; made < 2; made++) {
        for (guint i = 0; i < G_N_ELEMENTS(ids); i++) {
            g_assert_null(rm_journal_open(RM_SIDE_DESTINATION, ids[i], &error));
            g_assert_no_error(error);
        }
        rm_journal_close(
            create("22222222-2222-4333-8444-555555555555", RM_SIDE_DESTINATION, RM_STATE_PRECOPY));
        g_autofree char *other = file_path(folder, "destination", "22222222-2222-4333-8444-555555555555");
        g_assert_cmpint(unlink(other), ==, 0);
    }
    state_folder_free(folder);
}

static void test_strangers(void)
{
    char *folder = state_folder_new();
    rm_journal_close(create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY));
    g_autofree char *path = file_path(folder, "source", SESSION);
    g_autofree char *aside = g_strconcat(path, ".aside", NULL);
    g_assert_cmpint(chmod(path, 0620), ==, 0);
    assert_refused(RM_SIDE_SOURCE, SESSION, "may be written by others");
    g_assert_cmpint(chmod(path, 0600), ==, 0);
    if (geteuid() == 0) {
        g_assert_cmpint(chown(path, 12345, 0), ==, 0);
        assert_refused(RM_SIDE_SOURCE, SESSION, "belongs to user 12345");
        g_assert_cmpint(chown(path, 0, 0), ==, 0);
    }
    g_assert_cmpint(truncate(path, RM_JOURNAL_BYTES + 1), ==, 0);
    assert_refused(RM_SIDE_SOURCE, SESSION, "larger");
    g_assert_cmpint(rename(path, aside), ==, 0);
    g_assert_cmpint(symlink(aside, path), ==, 0);
    assert_refused(RM_SIDE_SOURCE, SESSION, "symbolic link");
    unlink(path);
    g_assert_cmpint(mkdir(path, 0700), ==, 0);
    assert_refused(RM_SIDE_SOURCE, SESSION, path);
    rmdir(path);
    g_assert_cmpint(mkfifo(path, 0600), ==, 0);
    assert_refused(RM_SIDE_SOURCE, SESSION, "not a regular file");
    unlink(path);
    state_folder_free(folder);
}

/* One session's file under another's name. */
static void test_wrong_name(void)
{
    char *folder = state_folder_new();
    rm_journal_close(create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY));
    rm_journal_close(create("22222222-2222-4333-8444-555555555555", RM_SIDE_DESTINATION, RM_STATE_PRECOPY));
    g_autofree char *from = file_path(folder, "source", SESSION);
    g_autofree char *to = file_path(folder, "source", "33333333-2222-4333-8444-555555555555");
    g_autofree char *side = file_path(folder, "destination", SESSION);
    g_assert_cmpint(link(from, to), ==, 0);
    g_assert_cmpint(link(from, side), ==, 0);
    assert_refused(RM_SIDE_SOURCE, "33333333-2222-4333-8444-555555555555", "another session");
    assert_refused(RM_SIDE_DESTINATION, SESSION, "another session");
    state_folder_free(folder);
}

static void test_strange_folders(void)
{
    static const char *const names[] = {"journal", "journal/source"};
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        char *folder = state_folder_new();
        rm_journal_close(create(SESSION, RM_SIDE_SOURCE, RM_STATE_PRECOPY));
        g_autofree char *path = g_build_filename(folder, names[i], NULL);
        g_autofree char *aside = g_strconcat(path, ".aside", NULL);
        g_assert_cmpint(chmod(path, 0770), ==, 0);
        assert_refused(RM_SIDE_SOURCE, SESSION, "may be written by others");
        g_assert_cmpint(rename(path, aside), ==, 0);
        g_assert_cmpint(symlink(aside, path), ==, 0);
        assert_refused(RM_SIDE_SOURCE, SESSION, "not a folder");
        state_folder_free(folder);
    }
}

static void test_unusable_state_dir(void)
{
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {.session = (char *)SESSION, .side = RM_SIDE_SOURCE};
    g_setenv("RDMAMIG_STATE_DIR", "/proc/no/such", TRUE);
    g_assert_null(rm_journal_create(&facts, RM_STATE_PRECOPY, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_nonnull(strstr(error->message, "/proc/no/such"));
    g_unsetenv("RDMAMIG_STATE_DIR");
}

/* A path that JSON can't hold would make a journal that nobody can read later. */
static void test_unrecordable(void)
{
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {
        .session = (char *)SESSION, .side = RM_SIDE_SOURCE, .qmp = (char *)"/run/\xff.qmp"};
    g_assert_null(rm_journal_create(&facts, RM_STATE_PRECOPY, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_autoptr(GPtrArray) left = rm_journal_list(RM_SIDE_SOURCE);
    g_assert_cmpuint(left->len, ==, 0);
    state_folder_free(folder);
}

static void set_age(const char *path, int64_t days)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - days * 24 * 60 * 60}};
    times[1] = times[0];
    g_assert_cmpint(utimensat(AT_FDCWD, path, times, 0), ==, 0);
}

static void test_list_and_prune(void)
{
    static const struct {
        const char *session;
        RmState state;
        int days;
        gboolean held, stays;
    } cases[] = {
        {"00000000-0000-4000-8000-000000000001", RM_STATE_DONE, 5, FALSE, TRUE},
        {"00000000-0000-4000-8000-000000000002", RM_STATE_FAILED, 29, FALSE, TRUE},
        {"00000000-0000-4000-8000-000000000003", RM_STATE_DONE, 31, FALSE, FALSE},
        {"00000000-0000-4000-8000-000000000004", RM_STATE_CANCELLED, 32, FALSE, FALSE},
        {"00000000-0000-4000-8000-000000000005", RM_STATE_DOUBTFUL, 33, FALSE,
         TRUE}, /* still to be settled */
        {"00000000-0000-4000-8000-000000000006", RM_STATE_COMMITTED, 34, FALSE, TRUE},
        {"00000000-0000-4000-8000-000000000007", RM_STATE_DONE, 35, TRUE, TRUE}, /* somebody is at it */
    };
    char *folder = state_folder_new();
    g_autoptr(RmJournal) held = NULL;
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        RmJournal *journal = create(cases[i].session, RM_SIDE_SOURCE, RM_STATE_PREPARED);
        g_autofree char *path = file_path(folder, "source", cases[i].session);
        move(journal, ~0u, cases[i].state, FALSE);
        set_age(path, cases[i].days);
        if (cases[i].held)
            held = journal;
        else
            rm_journal_close(journal);
    }
    g_autofree char *unfinished = file_path(folder, "source", ".new-" SESSION);
    g_autofree char *fresh = file_path(folder, "source", ".new-00000000-0000-4000-8000-000000000001");
    g_assert_true(g_file_set_contents(unfinished, "{", 1, NULL));
    g_assert_true(g_file_set_contents(fresh, "{", 1, NULL));
    set_age(unfinished, 2);

    g_autoptr(GPtrArray) list = rm_journal_list(RM_SIDE_SOURCE);
    g_assert_cmpuint(list->len, ==, G_N_ELEMENTS(cases));
    for (guint i = 0; i < list->len; i++)
        g_assert_cmpstr(list->pdata[i], ==, cases[i].session);
    rm_journal_prune(RM_SIDE_SOURCE);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *path = file_path(folder, "source", cases[i].session);
        g_assert_true(g_file_test(path, G_FILE_TEST_EXISTS) == cases[i].stays);
    }
    g_assert_false(g_file_test(unfinished, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(fresh, G_FILE_TEST_EXISTS));
    state_folder_free(folder);
}

/* At the destination nothing can be done about a doubtful one; it goes as the others do, and no earlier. What
 * its source hears is the same before and after. */
static void test_prune_doubtful(void)
{
    static const char *const sessions[] = {"00000000-0000-4000-8000-000000000001",
                                           "00000000-0000-4000-8000-000000000002"};
    char *folder = state_folder_new();
    for (guint i = 0; i < 2; i++) {
        g_autoptr(RmJournal) journal = create(sessions[i], RM_SIDE_DESTINATION, RM_STATE_COMMITTED);
        g_autofree char *path = file_path(folder, "destination", sessions[i]);
        move(journal, ~0u, RM_STATE_DOUBTFUL, FALSE);
        set_age(path, RM_STATEDIR_DAYS - 1 + 2 * (int)i);
    }
    rm_journal_prune(RM_SIDE_DESTINATION);
    g_autoptr(GPtrArray) list = rm_journal_list(RM_SIDE_DESTINATION);
    g_assert_cmpuint(list->len, ==, 1);
    g_assert_cmpstr(list->pdata[0], ==, sessions[0]);
    state_folder_free(folder);
}

static gboolean lists(pid_t pid, const char *session)
{
    g_autoptr(GPtrArray) list = rm_journal_list_of(RM_SIDE_SOURCE, pid);
    for (guint i = 0; i < list->len; i++) {
        if (strcmp(list->pdata[i], session) == 0)
            return TRUE;
    }
    return FALSE;
}

/* One that can't be told must not be left out. */
static void test_list_of(void)
{
    const char *odd = "00000000-0000-4000-8000-000000000002";
    char *folder = state_folder_new();
    rm_journal_close(create(SESSION, RM_SIDE_SOURCE, RM_STATE_SWITCHOVER)); /* of pid 1 */
    g_assert_true(lists(1, SESSION));
    g_assert_false(lists(11, SESSION));
    g_assert_false(lists(getpid(), SESSION));
    g_autofree char *path = file_path(folder, "source", odd);
    g_autofree char *long_name = g_strnfill(10000, 'n');
    const char *contents[] = {"", "no end of line", long_name};
    for (guint i = 0; i < G_N_ELEMENTS(contents); i++) {
        g_assert_true(g_file_set_contents(path, contents[i], -1, NULL));
        g_assert_true(lists(getpid(), odd));
    }
    state_folder_free(folder);
}

static void test_volatile(void)
{
    g_setenv("RDMAMIG_STATE_DIR", "/dev/shm/rdmamig-unit-not-there/nor/this", TRUE);
    g_autofree char *warning = rm_journal_volatile();
    g_assert_nonnull(strstr(warning, "/dev/shm/rdmamig-unit-not-there/nor/this"));
    g_setenv("RDMAMIG_STATE_DIR", "/sys/rdmamig", TRUE); /* not a disk, but not memory either */
    g_assert_null(rm_journal_volatile());
    g_unsetenv("RDMAMIG_STATE_DIR");
}

int main(int argc, char **argv)
{
    g_setenv("RDMAMIG_FAULT", "journal-sync=committed", TRUE);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/journal-files/rights-and-space", test_rights_and_space);
    g_test_add_func("/journal-files/full-disk", test_full_disk);
    g_test_add_func("/journal-files/failed-sync", test_failed_sync);
    g_test_add_func("/journal-files/none", test_none);
    g_test_add_func("/journal-files/strangers", test_strangers);
    g_test_add_func("/journal-files/wrong-name", test_wrong_name);
    g_test_add_func("/journal-files/strange-folders", test_strange_folders);
    g_test_add_func("/journal-files/unusable-state-dir", test_unusable_state_dir);
    g_test_add_func("/journal-files/unrecordable", test_unrecordable);
    g_test_add_func("/journal-files/list-and-prune", test_list_and_prune);
    g_test_add_func("/journal-files/prune-doubtful", test_prune_doubtful);
    g_test_add_func("/journal-files/list-of", test_list_of);
    g_test_add_func("/journal-files/volatile", test_volatile);
    return g_test_run();
}
