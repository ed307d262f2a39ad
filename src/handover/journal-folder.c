/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folders of the journals: listed, pruned. */
#include "handover/journal-folder.h"

#include "common/autoptr.h"
#include "handover/statedir.h"
#include "handover/table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define HEAD_BYTES 8192 /* more than the facts take, as a rule */

char *rm_journal_folder_path(RmSide side)
{
    return rm_statedir_path("journal", rm_side_name(side));
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

int rm_journal_folder(RmSide side, gboolean make, GError **error)
{
    return rm_statedir_open("journal", rm_side_name(side), make, error);
}

/* ---- listing ---- */

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
    g_autoptr(GArray) entries = rm_statedir_list(folder, "");
    for (guint i = 0; i < entries->len; i++) {
        const char *name = g_array_index(entries, RmStatedirEntry, i).session;
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

void rm_journal_prune(RmSide side)
{
    rm_autofd folder = rm_journal_folder(side, FALSE, NULL);
    if (folder < 0)
        return;
    g_autoptr(GArray) entries = rm_statedir_list(folder, "");
    for (guint i = 0; i < entries->len; i++) {
        const RmStatedirEntry *entry = &g_array_index(entries, RmStatedirEntry, i);
        if (rm_statedir_is_old(entries, i) && has_ended(side, entry->session))
            unlinkat(folder, entry->session, 0);
    }
    rm_statedir_prune_unfinished(folder);
}
