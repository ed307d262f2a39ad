/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Folders below STATEDIR, of files that are named after sessions. Reason journal throughout.
 *
 * STATEDIR is $RDMAMIG_STATE_DIR, /var/lib/rdmamig for root, else $XDG_STATE_HOME/rdmamig
 * (~/.local/state/rdmamig). It may itself be a symbolic link to wherever the disk is, as its owner likes;
 * what we make below it may not, and must be ours.
 */
#pragma once

#include <glib.h>
#include <sys/types.h>

/* Names of files that are still being written; no session's id begins so. */
#define RM_STATEDIR_UNFINISHED ".new-"

#define RM_STATEDIR_DAYS 30    /* files of ended sessions are kept for as long … */
#define RM_STATEDIR_KEPT 10000 /* … unless there are more than this many: then the oldest go */

char *rm_state_dir(void); /* caller frees */

/* STATEDIR/KIND or, with `name`, STATEDIR/KIND/NAME, for messages; caller frees. */
char *rm_statedir_path(const char *kind, const char *name);

/* That folder, to use with the *at() calls; -1 with the error. With `make`, it and its parents are made
 * (0700) and synced; without, a missing one is -1 without an error. */
int rm_statedir_open(const char *kind, const char *name, gboolean make, GError **error);

/* Refuses what is not a regular file or folder (`type`: S_IFREG, S_IFDIR) of ours that only we may write. */
gboolean rm_statedir_check_owner(int fd, mode_t type, const char *path, GError **error);

/* A file of a folder, SESSION or SESSION with a suffix. */
typedef struct {
    char session[37];     /* a UUID */
    struct timespec time; /* of its latest change */
} RmStatedirEntry;

/* Array of RmStatedirEntry, newest first; caller unrefs. `suffix` may be "". */
GArray *rm_statedir_list(int folder, const char *suffix);

/* Whether entry `index` of the list is to be removed, as old or as one too many. */
gboolean rm_statedir_is_old(const GArray *entries, guint index);

/* Removes what processes left behind that died in the middle of writing. */
void rm_statedir_prune_unfinished(int folder);
