/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Parses /proc/PID/maps. A newline in a path is printed as \012 there, so a line is always one mapping. */
#include "common/mappings.h"

#include "common/autoptr.h"
#include "common/kernel.h"
#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

static void mapping_clear(RmMapping *mapping)
{
    g_free(mapping->path);
}

/* The kernel promises that addresses never go backwards; `floor` is where the mapping before ended. */
static gboolean parse_line(const char *line, uint64_t floor, RmMapping *mapping)
{
    char perms[5] = "";
    unsigned major_number, minor_number;
    uint64_t inode;
    int path_at = 0;
    if (sscanf(line,
               "%" G_GINT64_MODIFIER "x-%" G_GINT64_MODIFIER "x %4s %" G_GINT64_MODIFIER
               "x %x:%x %" G_GINT64_MODIFIER "u %n",
               &mapping->start, &mapping->end, perms, &mapping->offset, &major_number, &minor_number, &inode,
               &path_at) < 7 ||
        mapping->start < floor || mapping->end <= mapping->start)
        return FALSE;
    mapping->dev = makedev(major_number, minor_number);
    mapping->ino = inode;
    mapping->read = perms[0] == 'r';
    mapping->write = perms[1] == 'w';
    mapping->exec = perms[2] == 'x';
    mapping->shared = perms[3] == 's';
    mapping->path = g_strdup(path_at > 0 ? line + path_at : "");
    return TRUE;
}

/* Whole file; g_file_get_contents would do, but hides errno of a process that is gone (ESRCH) behind its own
 * codes. */
static GString *read_all(const char *path, int *ret_errno)
{
    rm_autofd fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        *ret_errno = errno;
        return NULL;
    }
    GString *text = g_string_new(NULL);
    char buffer[16384];
    ssize_t n;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        g_string_append_len(text, buffer, n);
    if (n == 0)
        return text;
    *ret_errno = errno;
    g_string_free(text, TRUE);
    return NULL;
}

GArray *rm_mappings_parse(char *text)
{
    GArray *mappings = g_array_new(FALSE, TRUE, sizeof(RmMapping));
    uint64_t floor = 0;
    g_array_set_clear_func(mappings, (GDestroyNotify)mapping_clear);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        RmMapping mapping = {0};
        *end = '\0';
        if (!parse_line(line, floor, &mapping))
            continue;
        floor = mapping.end;
        g_array_append_val(mappings, mapping);
    }
    return mappings;
}

GArray *rm_mappings_read(pid_t pid, GError **error)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/maps", (int)pid);
    int errno_value = 0;
    GString *text = read_all(path, &errno_value);
    if (text == NULL) {
        RmReason reason = errno_value == ENOENT || errno_value == ESRCH   ? RM_REASON_GUEST_GONE
                          : errno_value == EACCES || errno_value == EPERM ? RM_REASON_PRIVILEGE
                                                                          : RM_REASON_INTERNAL;
        rm_set_errno(error, reason, errno_value, "cannot read the mappings of process %d (%s)%s", (int)pid,
                     path, reason == RM_REASON_PRIVILEGE ? "; run as root, or with CAP_SYS_PTRACE" : "");
        return NULL;
    }
    GArray *mappings = rm_mappings_parse(text->str);
    g_string_free(text, TRUE);
    if (mappings->len > 0)
        return mappings;
    g_array_unref(mappings);
    rm_fail(error, RM_REASON_GUEST_GONE, "process %d has no memory any more: it is ending", (int)pid);
    return NULL;
}

gboolean rm_mappings_ask(int maps_fd, uint64_t address, RmMapping *ret_mapping)
{
    struct procmap_query query = {.size = sizeof query, .query_addr = address};
    if (ioctl(maps_fd, PROCMAP_QUERY, &query) < 0)
        return FALSE;
    *ret_mapping = (RmMapping){
        .start = query.vma_start,
        .end = query.vma_end,
        .offset = query.vma_offset,
        .dev = makedev(query.dev_major, query.dev_minor),
        .ino = query.inode,
        .shared = (query.vma_flags & PROCMAP_QUERY_VMA_SHARED) != 0,
    };
    return TRUE;
}

const RmMapping *rm_mappings_find(const GArray *mappings, uint64_t address)
{
    guint low = 0, high = mappings->len;
    while (low < high) {
        guint middle = low + (high - low) / 2;
        const RmMapping *mapping = &g_array_index(mappings, RmMapping, middle);
        if (address < mapping->start)
            high = middle;
        else if (address >= mapping->end)
            low = middle + 1;
        else
            return mapping;
    }
    return NULL;
}
