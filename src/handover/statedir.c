/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Folders below STATEDIR: made, checked, listed. */
#include "handover/statedir.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define DAY_S (24 * 60 * 60)
#define FOLDER_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

char *rm_state_dir(void)
{
    const char *dir = g_getenv("RDMAMIG_STATE_DIR");
    if (dir != NULL && *dir != '\0')
        return g_strdup(dir);
    return geteuid() == 0 ? g_strdup("/var/lib/rdmamig")
                          : g_build_filename(g_get_user_state_dir(), "rdmamig", NULL);
}

char *rm_statedir_path(const char *kind, const char *name)
{
    g_autofree char *state = rm_state_dir();
    return g_build_filename(state, kind, name, NULL);
}

gboolean rm_statedir_check_owner(int fd, mode_t type, const char *path, GError **error)
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
    if (!rm_statedir_check_owner(fd, S_IFDIR, path, error) || (make && !sync_folder(parent, path, error)))
        return -1;
    return rm_fd_steal(&fd);
}

int rm_statedir_open(const char *kind, const char *name, gboolean make, GError **error)
{
    g_autofree char *state_path = rm_state_dir();
    g_autofree char *kind_path = rm_statedir_path(kind, NULL);
    g_autofree char *path = rm_statedir_path(kind, name);
    rm_autofd state = open_state_dir(state_path, make, error);
    if (state < 0)
        return -1;
    rm_autofd folder = open_below(state, kind, kind_path, make, error);
    if (folder < 0 || name == NULL)
        return rm_fd_steal(&folder);
    return open_below(folder, name, path, make, error);
}

/* ---- listing ---- */

static int newest_first(gconstpointer a, gconstpointer b)
{
    const RmStatedirEntry *x = a, *y = b;
    if (x->time.tv_sec != y->time.tv_sec)
        return x->time.tv_sec > y->time.tv_sec ? -1 : 1;
    if (x->time.tv_nsec != y->time.tv_nsec)
        return x->time.tv_nsec > y->time.tv_nsec ? -1 : 1;
    return strcmp(x->session, y->session);
}

static gboolean take_name(const char *name, const char *suffix, RmStatedirEntry *entry)
{
    gsize length = sizeof entry->session - 1;
    if (strlen(name) < length || strcmp(name + length, suffix) != 0)
        return FALSE;
    memcpy(entry->session, name, length);
    return g_uuid_string_is_valid(entry->session);
}

GArray *rm_statedir_list(int folder, const char *suffix)
{
    GArray *entries = g_array_new(FALSE, FALSE, sizeof(RmStatedirEntry));
    rm_autofd fd = openat(folder, ".", FOLDER_FLAGS); /* a position of its own */
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *item;
    struct stat info;
    if (dir == NULL)
        return entries;
    rm_fd_steal(&fd);
    while ((item = readdir(dir)) != NULL) {
        RmStatedirEntry entry = {0};
        if (!take_name(item->d_name, suffix, &entry) ||
            fstatat(folder, item->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        entry.time = info.st_mtim;
        g_array_append_val(entries, entry);
    }
    closedir(dir);
    g_array_sort(entries, newest_first);
    return entries;
}

gboolean rm_statedir_is_old(const GArray *entries, guint index)
{
    int64_t oldest = g_get_real_time() / G_USEC_PER_SEC - (int64_t)RM_STATEDIR_DAYS * DAY_S;
    return index >= RM_STATEDIR_KEPT || g_array_index(entries, RmStatedirEntry, index).time.tv_sec < oldest;
}

void rm_statedir_prune_unfinished(int folder)
{
    rm_autofd fd = openat(folder, ".", FOLDER_FLAGS);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *item;
    struct stat info;
    if (dir == NULL)
        return;
    rm_fd_steal(&fd);
    while ((item = readdir(dir)) != NULL) {
        if (g_str_has_prefix(item->d_name, RM_STATEDIR_UNFINISHED) &&
            fstatat(folder, item->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
            info.st_mtim.tv_sec < g_get_real_time() / G_USEC_PER_SEC - DAY_S)
            unlinkat(folder, item->d_name, 0);
    }
    closedir(dir);
}
