/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The search for other holders of guest RAM.
 *
 * A reader counts as well: what is open or mapped read-only now is one call away from being writable, and
 * nothing that is known to be harmless keeps a guest's RAM open. The search runs while the guest stands
 * still, too, so a maps file is searched as text for "MAJOR:MINOR INODE " and parsed only inside QEMU.
 */
#include "guest/qemu/writers.h"

#include "common/reason.h"
#include "guest/qemu/vmm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define HOW_TO " if this is known to be harmless, pass --allow-untracked-writers"

/* The block whose file is (dev, ino); NULL if none is. */
static const RmBlock *block_of(GPtrArray *blocks, dev_t dev, ino_t ino)
{
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = g_ptr_array_index(blocks, i);
        if (block->dev == dev && block->ino == ino)
            return block;
    }
    return NULL;
}

/* A process may end while we look: then there is nothing to see. */
static gboolean has_ended(int errno_value)
{
    return errno_value == ENOENT || errno_value == ESRCH;
}

/* Whether this process may look at any other, as far as capabilities go. */
static gboolean may_ptrace(void)
{
    g_autofree char *text = NULL;
    const char *line =
        g_file_get_contents("/proc/self/status", &text, NULL, NULL) ? strstr(text, "\nCapEff:") : NULL;
    return line != NULL &&
           (g_ascii_strtoull(line + strlen("\nCapEff:\t"), NULL, 16) & (1u << CAP_SYS_PTRACE)) != 0;
}

/* A process that cannot be looked at. If that is for want of a capability it is the operator's to mend. If a
 * security module hides some process even from CAP_SYS_PTRACE, no call of ours can see it; refusing every
 * guest on such a host would only teach operators to switch the whole search off, and the usual writers,
 * vhost-user and ivshmem, are refused by their devices anyway. */
static gboolean pass_hidden(pid_t pid, int errno_value, GError **error)
{
    g_autofree char *comm = rm_vmm_comm(pid);
    if (has_ended(errno_value))
        return TRUE;
    if ((errno_value == EACCES || errno_value == EPERM) && may_ptrace()) {
        g_debug("cannot see whether process %d (%s) has the guest's RAM: %s", (int)pid, comm,
                g_strerror(errno_value));
        return TRUE;
    }
    return rm_set_errno(
        error, RM_REASON_PRIVILEGE, errno_value,
        "cannot see whether process %d (%s) has the guest's RAM; run as root, or with CAP_SYS_PTRACE",
        (int)pid, comm);
}

static gboolean fail_holder(pid_t pid, const char *how, const RmBlock *block, GError **error)
{
    g_autofree char *comm = rm_vmm_comm(pid);
    if (g_str_has_prefix(comm, "qemu"))
        return rm_fail(
            error, RM_REASON_SAME_MEMORY,
            "another QEMU, process %d (%s), has RAM block %s %s: one that waits for this guest needs a "
            "mem-path of its own;" HOW_TO,
            (int)pid, comm, block->name, how);
    return rm_fail(error, RM_REASON_RAM_WRITERS,
                   "process %d (%s) has RAM block %s %s, and could write it unseen: end it;" HOW_TO, (int)pid,
                   comm, block->name, how);
}

/* The whole of a /proc file in `text`. Returns 0 or an errno. */
static int slurp(const char *path, GString *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    ssize_t n;
    int saved = 0;
    g_string_truncate(text, 0);
    do {
        char buffer[16384];
        n = read(fd, buffer, sizeof buffer);
        if (n > 0)
            g_string_append_len(text, buffer, n);
        else if (n < 0)
            saved = errno;
    } while (n > 0);
    close(fd);
    return saved;
}

static gboolean check_maps(pid_t pid, GPtrArray *blocks, GString *text, GError **error)
{
    char path[64], key[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    int failed = slurp(path, text);
    if (failed != 0)
        return pass_hidden(pid, failed, error);
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = g_ptr_array_index(blocks, i);
        snprintf(key, sizeof key, " %02x:%02x %lu ", major(block->dev), minor(block->dev),
                 (unsigned long)block->ino);
        if (strstr(text->str, key) != NULL)
            return fail_holder(pid, "mapped", block, error);
    }
    return TRUE;
}

static gboolean check_fds(pid_t pid, GPtrArray *blocks, GError **error)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return pass_hidden(pid, errno, error);
    const RmBlock *block = NULL;
    for (struct dirent *entry; block == NULL && (entry = readdir(directory)) != NULL;) {
        struct statx status;
        /* What the kernel knows, without asking a file server that may be dead: the guest may stand still
         * now.
         */
        if (statx(dirfd(directory), entry->d_name, AT_STATX_DONT_SYNC, STATX_INO, &status) == 0)
            block = block_of(blocks, makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino);
    }
    closedir(directory);
    return block == NULL || fail_holder(pid, "open", block, error);
}

/* Inside QEMU each mapping of a RAM file must lie within a block of that file. */
static gboolean check_inside(pid_t pid, GPtrArray *blocks, GError **error)
{
    g_autoptr(GArray) vmas = rm_mappings_read(pid, error);
    if (vmas == NULL)
        return FALSE;
    for (guint i = 0; i < vmas->len; i++) {
        const RmMapping *vma = &g_array_index(vmas, RmMapping, i);
        const RmBlock *block = block_of(blocks, vma->dev, vma->ino);
        gboolean known = block == NULL;
        for (guint j = 0; j < blocks->len && !known; j++) {
            const RmBlock *other = g_ptr_array_index(blocks, j);
            /* two mappings side by side may have been merged into one that holds both blocks */
            known = other->dev == vma->dev && other->ino == vma->ino &&
                    vma->start < other->hva + other->size && vma->end > other->hva;
        }
        if (!known)
            return rm_fail(
                error, RM_REASON_RAM_WRITERS,
                "QEMU itself has RAM block %s mapped a second time, and could write it unseen there;" HOW_TO,
                block->name);
    }
    return TRUE;
}

gboolean rm_writers_check(pid_t pid, GPtrArray *blocks, GError **error)
{
    if (!check_inside(pid, blocks, error))
        return FALSE;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot read /proc");
    g_autoptr(GString) text = g_string_new(NULL);
    gboolean ok = TRUE;
    for (struct dirent *entry; ok && (entry = readdir(proc)) != NULL;) {
        pid_t other = (pid_t)strtol(entry->d_name, NULL, 10);
        if (other > 0 && other != pid && other != getpid())
            ok = check_maps(other, blocks, text, error) && check_fds(other, blocks, error);
    }
    closedir(proc);
    return ok;
}
