/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One journal: its file, its two locks, its records.
 *
 * Two locks, for two things. flock(2) is held from reading the latest record until the next one is on disk,
 * so that moves exclude each other between processes; it belongs to the open file, hence the mutex for
 * threads that share an RmJournal. The lock on byte 0 (F_OFD_SETLK) says that somebody looks after the
 * session; it lasts for as long as any process has the open file, which is how a guardian takes it over.
 *
 * What a crash leaves:
 * - in rm_journal_create(): an unfinished file under another name, which nobody reads; or the whole file.
 * - in the middle of an append: a line without its newline. It does not count, nobody has acted on it, and
 *   the next append cuts it off. An append that fails cuts it off itself.
 * - between an append and its sync: a record that other processes see, but a reboot may take back. Who acts
 *   on a record of somebody else calls rm_journal_sync() first.
 */
#include "handover/journal.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/host.h"
#include "common/reason.h"
#include "handover/journal-folder.h"
#include "handover/journal-text.h"
#include "handover/statedir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define RESERVED_BYTES (64 * 1024) /* more than a session ever writes: facts, a note, a dozen records */
#define LOCK_WAIT_MS                                                                                         \
    30000 /* a move lasts as long as a sync; a process stopped within one must not                           \
             stop everybody */
#define LOCK_POLL_MS 5

struct RmJournal {
    GMutex lock;          /* of the threads that share the open file */
    int fd;               /* immutable */
    char *path;           /* immutable; for messages */
    RmJournalFacts facts; /* immutable */
};

/* ---- facts ---- */

void rm_journal_facts_stamp(RmJournalFacts *facts)
{
    facts->pid_start = rm_process_start(facts->pid);
    g_free(facts->host_boot);
    facts->host_boot = g_strdup(rm_boot_id());
    facts->time_us = g_get_real_time();
}

gboolean rm_journal_vmm_lives(const RmJournalFacts *facts)
{
    return facts->pid_start != 0 && g_strcmp0(facts->host_boot, rm_boot_id()) == 0 &&
           rm_process_start(facts->pid) == facts->pid_start;
}

/* ---- the file ---- */

/* All of it, for it is small. One that isn't is none of ours. */
static gboolean read_text(const RmJournal *journal, char **ret_text, gsize *ret_length, GError **error)
{
    struct stat info;
    if (fstat(journal->fd, &info) < 0)
        return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot look at %s", journal->path);
    if (info.st_size > RM_JOURNAL_BYTES)
        return rm_fail(error, RM_REASON_JOURNAL, "%s is larger than any journal: move it away",
                       journal->path);
    gsize length = 0;
    g_autofree char *text = g_malloc((gsize)info.st_size + 1);
    while (length < (gsize)info.st_size) {
        ssize_t n = pread(journal->fd, text + length, (gsize)info.st_size - length, (off_t)length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot read %s", journal->path);
        if (n == 0)
            break;
        length += (gsize)n;
    }
    *ret_text = g_steal_pointer(&text);
    *ret_length = length;
    return TRUE;
}

static gboolean read_latest(const RmJournal *journal, RmJournalFacts *ret_facts, RmJournalRecord *ret_record,
                            gsize *ret_used, GError **error)
{
    g_autofree char *text = NULL;
    gsize length = 0;
    if (!read_text(journal, &text, &length, error))
        return FALSE;
    if (rm_journal_text_parse(text, length, ret_facts, ret_record, ret_used, error))
        return TRUE;
    g_prefix_error(error, "%s cannot be understood, and nothing is done on its word: ", journal->path);
    return FALSE;
}

static gboolean write_at(int fd, const char *text, gsize length, off_t at)
{
    for (gsize done = 0; done < length;) {
        ssize_t n = pwrite(fd, text + done, length - done, at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return FALSE;
        done += (gsize)n;
    }
    return TRUE;
}

static gboolean lock_file(RmJournal *journal, GError **error)
{
    g_mutex_lock(&journal->lock);
    gint64 deadline = g_get_monotonic_time() + LOCK_WAIT_MS * 1000;
    while (flock(journal->fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot lock %s", journal->path);
            g_mutex_unlock(&journal->lock);
            return FALSE;
        }
        if (g_get_monotonic_time() > deadline) {
            g_mutex_unlock(&journal->lock);
            return rm_fail(error, RM_REASON_JOURNAL,
                           "%s has been locked for %d s: is a process of rdmamig stopped, or the disk stuck?",
                           journal->path, LOCK_WAIT_MS / 1000);
        }
        g_usleep(LOCK_POLL_MS * 1000);
    }
    return TRUE;
}

static void unlock_file(RmJournal *journal)
{
    flock(journal->fd, LOCK_UN);
    g_mutex_unlock(&journal->lock);
}

/* ---- opening ---- */

static RmJournal *journal_new(int fd, char *path)
{
    RmJournal *journal = g_new0(RmJournal, 1);
    g_mutex_init(&journal->lock);
    journal->fd = fd;
    journal->path = path;
    return journal;
}

void rm_journal_close(RmJournal *journal)
{
    if (journal == NULL)
        return;
    rm_fd_clear(&journal->fd);
    rm_journal_facts_clear(&journal->facts);
    g_mutex_clear(&journal->lock);
    g_free(journal->path);
    g_free(journal);
}

gboolean rm_journal_take(RmJournal *journal)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(journal->fd, F_OFD_SETLK, &lock) == 0;
}

gboolean rm_journal_is_taken(const RmJournal *journal)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(journal->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* The text that a journal begins with. It must read back as it was, or nobody could settle the session later:
 * a path that is not UTF-8 doesn't. */
static char *first_lines(const RmJournalFacts *facts, RmState first, GError **error)
{
    g_autofree char *head = rm_journal_text_facts(facts);
    g_autofree char *record = rm_journal_text_record(first, FALSE, NULL, facts->time_us);
    g_autofree char *text = g_strconcat(head, record, NULL);
    g_auto(RmJournalFacts) read = {0};
    g_auto(RmJournalRecord) latest = {0};
    gsize used;
    if (!rm_journal_text_parse(text, strlen(text), &read, &latest, &used, error)) {
        g_prefix_error(error, "the session cannot be recorded: ");
        return NULL;
    }
    if (g_strcmp0(read.qmp, facts->qmp) != 0 || g_strcmp0(read.peer, facts->peer) != 0) {
        rm_fail(error, RM_REASON_JOURNAL,
                "the session cannot be recorded: the path of its QMP socket is not UTF-8; give another path");
        return NULL;
    }
    return g_steal_pointer(&text);
}

/* Everything that makes the file whole, before it has its name. */
static gboolean fill_new(RmJournal *journal, const char *text, GError **error)
{
    if (fallocate(journal->fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) < 0 && errno != EOPNOTSUPP)
        return rm_set_errno(error, RM_REASON_JOURNAL, errno,
                            "cannot reserve %d KiB for %s, where the session is to be recorded",
                            RESERVED_BYTES / 1024, journal->path);
    if (!write_at(journal->fd, text, strlen(text), 0) || fdatasync(journal->fd) < 0)
        return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot write %s", journal->path);
    return rm_journal_take(journal) ||
           rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot lock %s", journal->path);
}

/* link(2) fails if the name is taken, so of two sessions with one id only one is ever here. */
static gboolean give_name(RmJournal *journal, int folder, const char *unfinished, const char *name,
                          GError **error)
{
    int failed = linkat(folder, unfinished, folder, name, 0) < 0 ? errno : 0;
    unlinkat(folder, unfinished, 0);
    if (failed == EEXIST)
        return rm_fail(error, RM_REASON_PROTOCOL, "session %s has been here before", name);
    if (failed != 0)
        return rm_set_errno(error, RM_REASON_JOURNAL, failed, "cannot make %s", journal->path);
    if (fsync(folder) == 0)
        return TRUE;
    failed = errno;
    unlinkat(folder, name, 0);
    return rm_set_errno(error, RM_REASON_JOURNAL, failed, "cannot sync the folder of %s", journal->path);
}

RmJournal *rm_journal_create(const RmJournalFacts *facts, RmState first, GError **error)
{
    rm_autofd folder = rm_journal_folder(facts->side, TRUE, error);
    g_autofree char *folder_path = rm_journal_folder_path(facts->side);
    g_autofree char *unfinished = g_strdup_printf("%s%s", RM_STATEDIR_UNFINISHED, facts->session);
    g_autofree char *text = folder >= 0 ? first_lines(facts, first, error) : NULL;
    if (text == NULL)
        return NULL;
    unlinkat(folder, unfinished, 0); /* of an attempt that died; ids are never used by two at a time */
    int fd = openat(folder, unfinished, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    g_autoptr(RmJournal) journal = journal_new(fd, g_build_filename(folder_path, facts->session, NULL));
    if (fd < 0) {
        rm_set_errno(error, RM_REASON_JOURNAL, errno,
                     "cannot make a file in %s, where sessions are recorded; RDMAMIG_STATE_DIR names another "
                     "place",
                     folder_path);
        return NULL;
    }
    if (!fill_new(journal, text, error)) {
        unlinkat(folder, unfinished, 0);
        return NULL;
    }
    g_auto(RmJournalRecord) record = {0};
    gsize used;
    if (!give_name(journal, folder, unfinished, facts->session, error) ||
        !read_latest(journal, &journal->facts, &record, &used, error))
        return NULL;
    return g_steal_pointer(&journal);
}

/* Takes `fd`. */
static RmJournal *open_fd(int fd, char *path, GError **error)
{
    g_autoptr(RmJournal) journal = journal_new(fd, path);
    g_auto(RmJournalRecord) record = {0};
    gsize used;
    if (!rm_statedir_check_owner(fd, S_IFREG, path, error) ||
        !read_latest(journal, &journal->facts, &record, &used, error))
        return NULL;
    return g_steal_pointer(&journal);
}

RmJournal *rm_journal_open(RmSide side, const char *session, GError **error)
{
    if (!g_uuid_string_is_valid(session)) /* nor would it be a file's name */
        return NULL;
    g_autoptr(GError) problem = NULL;
    rm_autofd folder = rm_journal_folder(side, FALSE, &problem);
    if (folder < 0) {
        if (problem != NULL)
            g_propagate_error(error, g_steal_pointer(&problem));
        return NULL;
    }
    g_autofree char *folder_path = rm_journal_folder_path(side);
    g_autofree char *path = g_build_filename(folder_path, session, NULL);
    /* O_NONBLOCK: opening a FIFO would wait */
    int fd = openat(folder, session, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno == ELOOP)
            rm_fail(error, RM_REASON_JOURNAL, "%s is a symbolic link: move it away", path);
        else if (errno != ENOENT)
            rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot open %s", path);
        return NULL;
    }
    g_autoptr(RmJournal) journal = open_fd(fd, g_steal_pointer(&path), error);
    if (journal != NULL && (journal->facts.side != side || strcmp(journal->facts.session, session) != 0)) {
        rm_fail(error, RM_REASON_JOURNAL, "%s is about another session: move it away", journal->path);
        return NULL;
    }
    return g_steal_pointer(&journal);
}

RmJournal *rm_journal_adopt(int fd, GError **error)
{
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        rm_set_errno(error, RM_REASON_JOURNAL, errno, "descriptor %d is no journal", fd);
        return NULL;
    }
    return open_fd(fd, g_strdup_printf("the inherited journal (descriptor %d)", fd), error);
}

int rm_journal_fd(const RmJournal *journal)
{
    return journal->fd;
}

const RmJournalFacts *rm_journal_facts(const RmJournal *journal)
{
    return &journal->facts;
}

/* ---- records ---- */

gboolean rm_journal_read(RmJournal *journal, RmJournalRecord *ret_record, GError **error)
{
    gsize used;
    if (!lock_file(journal, error))
        return FALSE;
    gboolean ok = read_latest(journal, NULL, ret_record, &used, error);
    unlock_file(journal);
    return ok;
}

/* Cuts off what does not count. Truncating gives the reserved space back, even to the same size: so never
 * without need, and it is reserved anew (as well as a full disk allows). */
static gboolean cut(const RmJournal *journal, gsize used)
{
    struct stat info;
    if (fstat(journal->fd, &info) < 0)
        return FALSE;
    if (info.st_size == (off_t)used)
        return TRUE;
    if (ftruncate(journal->fd, (off_t)used) < 0)
        return FALSE;
    if (fallocate(journal->fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) < 0)
        g_debug("%s: no space reserved: %s", journal->path, g_strerror(errno));
    return TRUE;
}

/* The fault stands for a disk that fails just then. */
static gboolean sync_record(const RmJournal *journal, RmState to)
{
    if (g_strcmp0(rm_fault_value("journal-sync"), rm_state_name(to)) == 0) {
        errno = EIO;
        return FALSE;
    }
    return fdatasync(journal->fd) == 0;
}

/* Puts the record `text` of state `to` behind the `used` bytes that count. If it fails, the file is as if it
 * had never been tried; if even that fails, later readers take the record for true, though its writer does
 * not act on it: so a record is never more than a permission that may have gone unused. */
static gboolean append(RmJournal *journal, gsize used, RmState to, const char *text, gboolean synced,
                       GError **error)
{
    if (used + strlen(text) > RM_JOURNAL_BYTES)
        return rm_fail(error, RM_REASON_JOURNAL, "%s would become larger than any journal", journal->path);
    if (cut(journal, used) && write_at(journal->fd, text, strlen(text), (off_t)used) &&
        (!synced || sync_record(journal, to))) {
        if (rm_state_is_end(to) && to != RM_STATE_DOUBTFUL &&
            ftruncate(journal->fd, (off_t)(used + strlen(text))) <
                0) /* nothing follows: the reserve can go */
            g_debug("%s: %s", journal->path, g_strerror(errno));
        return TRUE;
    }
    int cause = errno;
    if (!cut(journal, used) || fdatasync(journal->fd) < 0)
        g_debug("%s: could not take a record back: %s", journal->path, g_strerror(errno));
    return rm_set_errno(error, RM_REASON_JOURNAL, cause, "cannot write %s", journal->path);
}

gboolean rm_journal_move(RmJournal *journal, unsigned from, RmState to, gboolean run, json_object *note,
                         gboolean synced, RmState *ret_state, GError **error)
{
    g_auto(RmJournalRecord) latest = {0};
    gsize used;
    if (!lock_file(journal, error))
        return FALSE;
    gboolean ok = read_latest(journal, NULL, &latest, &used, error);
    if (ok && (from & (1u << latest.state)) != 0) {
        g_autofree char *text = rm_journal_text_record(to, run, note, g_get_real_time());
        ok = append(journal, used, to, text, synced, error);
        latest.state = to;
    }
    unlock_file(journal);
    if (ok && ret_state != NULL)
        *ret_state = latest.state;
    return ok;
}

gboolean rm_journal_sync(RmJournal *journal, GError **error)
{
    return fdatasync(journal->fd) == 0 ||
           rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot sync %s", journal->path);
}
