/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The folders of the journals: made, listed, pruned.
 *
 * STATEDIR itself may be a symbolic link to wherever the disk is, as its owner likes; what we make below it
 * may not, and must be ours.
 */
#include "handover/journal-folder.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define DAY_S (24 * 60 * 60)
#define FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define HEAD_BYTES 8192 /* more than the facts take, as a rule */

static const char *side_name(RmSide side)
{
    return side == RM_SIDE_SOURCE ? "source" : "destination";
}

char *rm_state_dir(void)
{
    const char *dir = g_getenv("RDMAMIG_STATE_DIR");
    if (dir != NULL && *dir != '\0')
        return g_strdup(dir);
    return geteuid() == 0 ? g_strdup("/var/lib/rdmamig")
                          : g_build_filename(g_get_user_state_dir(), "rdmamig", NULL);
}

char *rm_journal_folder_path(RmSide side)
{
    g_autofree char *state = rm_state_dir();
    return g_build_filename(state, "journal", side_name(side), NULL);
}

gboolean rm_journal_check_owner(int fd, mode_t type, const char *path, GError **error)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot look at %s", path);
    if ((info.st_mode & S_IFMT) != type)
        return rm_fail(error, RM_REASON_JOURNAL, "%s is not a %s: move it away", path,
                       type == S_IFDIR ? "folder" : "regular file");
    if (info.st_uid != geteuid())
        return rm_fail(error, RM_REASON_JOURNAL,
                       "%s belongs to user %u, not to the one that runs this (%u): look who made it, and "
                       "chown it or move it away",
                       path, (unsigned)info.st_uid, (unsigned)geteuid());
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return rm_fail(error, RM_REASON_JOURNAL, "%s may be written by others: chmod go-rwx it", path);
    return TRUE;
}

/* The folder itself may not be there yet. */
char *rm_journal_volatile(void)
{
    g_autofree char *state = rm_state_dir();
    g_autofree char *path = g_canonicalize_filename(state, NULL);
    struct statfs info;
    while (statfs(path, &info) < 0 && errno == ENOENT && strcmp(path, "/") != 0) {
        char *parent = g_path_get_dirname(path);
        g_free(path);
        path = parent;
    }
    if (statfs(path, &info) < 0 || (info.f_type != TMPFS_MAGIC && info.f_type != RAMFS_MAGIC))
        return NULL;
    return g_strdup_printf("sessions are recorded in %s, which is in memory: after a reboot nobody here can "
                           "tell what became of one; let RDMAMIG_STATE_DIR name a folder on a disk",
                           state);
}

/* ---- making ---- */

/* A folder's own name is on disk once its parent is synced. */
static gboolean sync_folder(int fd, const char *path, GError **error)
{
    return fsync(fd) == 0 || rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot sync the folder %s", path);
}

static int open_state_dir(const char *path, gboolean make, GError **error)
{
    if (make && g_mkdir_with_parents(path, 0700) < 0) {
        rm_set_errno(error, RM_REASON_JOURNAL, errno,
                     "cannot make %s, where sessions are recorded; RDMAMIG_STATE_DIR names another place",
                     path);
        return -1;
    }
    rm_autofd fd = open(path, FOLDER_FLAGS);
    if (fd < 0) {
        if (make || errno != ENOENT)
            rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot open %s, where sessions are recorded",
                         path);
        return -1;
    }
    if (!make)
        return rm_fd_steal(&fd);
    g_autofree char *parent_path = g_path_get_dirname(path);
    rm_autofd parent = open(parent_path, FOLDER_FLAGS);
    if (parent >= 0 && !sync_folder(parent, parent_path, error))
        return -1;
    return rm_fd_steal(&fd);
}

static int open_below(int parent, const char *name, const char *path, gboolean make, GError **error)
{
    if (make && mkdirat(parent, name, 0700) < 0 && errno != EEXIST) {
        rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot make %s, where sessions are recorded", path);
        return -1;
    }
    rm_autofd fd = openat(parent, name, FOLDER_FLAGS | O_NOFOLLOW);
    if (fd < 0) {
        if (errno == ENOTDIR || errno == ELOOP)
            rm_fail(error, RM_REASON_JOURNAL, "%s is not a folder: move it away", path);
        else if (make || errno != ENOENT)
            rm_set_errno(error, RM_REASON_JOURNAL, errno, "cannot open %s", path);
        return -1;
    }
    if (!rm_journal_check_owner(fd, S_IFDIR, path, error) || (make && !sync_folder(parent, path, error)))
        return -1;
    return rm_fd_steal(&fd);
}

int rm_journal_folder(RmSide side, gboolean make, GError **error)
{
    g_autofree char *state_path = rm_state_dir();
    g_autofree char *journal_path = g_build_filename(state_path, "journal", NULL);
    g_autofree char *side_path = g_build_filename(journal_path, side_name(side), NULL);
    rm_autofd state = open_state_dir(state_path, make, error);
    if (state < 0)
        return -1;
    rm_autofd journal = open_below(state, "journal", journal_path, make, error);
    return journal < 0 ? -1 : open_below(journal, side_name(side), side_path, make, error);
}

/* ---- listing ---- */

typedef struct {
    char name[37]; /* a UUID */
    struct timespec time;
} Entry;

static int newest_first(gconstpointer a, gconstpointer b)
{
    const Entry *x = a, *y = b;
    if (x->time.tv_sec != y->time.tv_sec)
        return x->time.tv_sec > y->time.tv_sec ? -1 : 1;
    if (x->time.tv_nsec != y->time.tv_nsec)
        return x->time.tv_nsec > y->time.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* By the time of their latest records. */
static GArray *list_entries(int folder)
{
    GArray *entries = g_array_new(FALSE, FALSE, sizeof(Entry));
    rm_autofd fd = openat(folder, ".", FOLDER_FLAGS); /* a position of its own */
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *item;
    struct stat info;
    if (dir == NULL)
        return entries;
    rm_fd_steal(&fd);
    while ((item = readdir(dir)) != NULL) {
        Entry entry = {0};
        if (!g_uuid_string_is_valid(item->d_name) ||
            fstatat(folder, item->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        g_strlcpy(entry.name, item->d_name, sizeof entry.name);
        entry.time = info.st_mtim;
        g_array_append_val(entries, entry);
    }
    closedir(dir);
    g_array_sort(entries, newest_first);
    return entries;
}

/* Whether the facts, which are the first line, may have `words` in them: where that can't be told, they may.
 */
static gboolean may_say(int folder, const char *name, const char *words)
{
    char head[HEAD_BYTES];
    rm_autofd fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? pread(fd, head, sizeof head, 0) : -1;
    const char *end = n > 0 ? memchr(head, '\n', (size_t)n) : NULL;
    return end == NULL || g_strstr_len(head, end - head, words) != NULL;
}

static GPtrArray *list(RmSide side, const char *words)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    rm_autofd folder = rm_journal_folder(side, FALSE, NULL);
    if (folder < 0)
        return names;
    g_autoptr(GArray) entries = list_entries(folder);
    for (guint i = 0; i < entries->len; i++) {
        const char *name = g_array_index(entries, Entry, i).name;
        if (words == NULL || may_say(folder, name, words))
            g_ptr_array_add(names, g_strdup(name));
    }
    return names;
}

GPtrArray *rm_journal_list(RmSide side)
{
    return list(side, NULL);
}

GPtrArray *rm_journal_list_of(RmSide side, pid_t pid)
{
    g_autofree char *words =
        g_strdup_printf("\"pid\":%d,", (int)pid); /* as rm_journal_text_facts() does it */
    return list(side, words);
}

/* Doubtful is none at the source: somebody will have to settle it. At the destination it is, for nothing can
 * be done about it there; and who asks after it hears "unknown", with its journal or without. */
static gboolean has_ended(RmSide side, const char *session)
{
    g_autoptr(RmJournal) journal = rm_journal_open(side, session, NULL);
    g_auto(RmJournalRecord) record = {0};
    return journal != NULL && rm_journal_take(journal) && rm_journal_read(journal, &record, NULL) &&
           rm_state_is_end(record.state) &&
           (side == RM_SIDE_DESTINATION || record.state != RM_STATE_DOUBTFUL);
}

/* What a process left behind that died in the middle of rm_journal_create(). */
static void prune_unfinished(int folder)
{
    rm_autofd fd = openat(folder, ".", FOLDER_FLAGS);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *item;
    struct stat info;
    if (dir == NULL)
        return;
    rm_fd_steal(&fd);
    while ((item = readdir(dir)) != NULL) {
        if (g_str_has_prefix(item->d_name, RM_JOURNAL_UNFINISHED) &&
            fstatat(folder, item->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
            info.st_mtim.tv_sec < g_get_real_time() / G_USEC_PER_SEC - DAY_S)
            unlinkat(folder, item->d_name, 0);
    }
    closedir(dir);
}

void rm_journal_prune(RmSide side)
{
    rm_autofd folder = rm_journal_folder(side, FALSE, NULL);
    if (folder < 0)
        return;
    int64_t oldest = g_get_real_time() / G_USEC_PER_SEC - (int64_t)RM_JOURNAL_DAYS * DAY_S;
    g_autoptr(GArray) entries = list_entries(folder);
    for (guint i = 0; i < entries->len; i++) {
        const Entry *entry = &g_array_index(entries, Entry, i);
        if ((i >= RM_JOURNAL_KEPT || entry->time.tv_sec < oldest) && has_ended(side, entry->name))
            unlinkat(folder, entry->name, 0);
    }
    prune_unfinished(folder);
}
