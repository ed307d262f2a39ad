/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Incremental look at what is populated. */
#include "memory/populated.h"

#include "common/reason.h"

#include <errno.h>
#include <unistd.h>

RmPopulated *rm_populated_new(void)
{
    RmPopulated *populated = g_new0(RmPopulated, 1);
    populated->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    return populated;
}

void rm_populated_free(RmPopulated *populated)
{
    if (populated == NULL)
        return;
    g_array_unref(populated->extents);
    g_free(populated);
}

static void append(GArray *extents, uint64_t start, uint64_t end)
{
    RmExtent *last = extents->len > 0 ? &g_array_index(extents, RmExtent, extents->len - 1) : NULL;
    RmExtent extent = {start, end};
    if (last != NULL && last->end == start)
        last->end = end;
    else
        g_array_append_val(extents, extent);
}

static void add_up(RmPopulated *populated)
{
    populated->bytes = 0;
    for (guint i = 0; i < populated->extents->len; i++) {
        const RmExtent *extent = &g_array_index(populated->extents, RmExtent, i);
        populated->bytes += extent->end - extent->start;
    }
}

/* Appends the pages that have appeared in [from, end). One seek a page: SEEK_HOLE would walk on through all that is
 * populated behind the gap. */
static gboolean search_gap(const RmBlock *block, uint64_t from, uint64_t end, GArray *found, GError **error)
{
    while (from < end) {
        off_t at = lseek(block->fd, (off_t)(block->file_offset + from), SEEK_DATA);
        if (at < 0 && errno == ENXIO)
            return TRUE;
        if (at < 0)
            return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot seek for data", block->name);
        uint64_t data = ((uint64_t)at - block->file_offset) & ~(uint64_t)(RM_PAGE - 1);
        if (data >= end)
            return TRUE;
        append(found, data, data + RM_PAGE);
        from = data + RM_PAGE;
    }
    return TRUE;
}

static gboolean search_gaps(RmPopulated *populated, const RmBlock *block, GError **error)
{
    g_autoptr(GArray) merged = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    uint64_t position = 0;
    for (guint i = 0; i < populated->extents->len; i++) {
        RmExtent extent = g_array_index(populated->extents, RmExtent, i);
        if (!search_gap(block, position, extent.start, merged, error))
            return FALSE;
        append(merged, extent.start, extent.end);
        position = extent.end;
    }
    if (!search_gap(block, position, block->size, merged, error))
        return FALSE;
    g_array_unref(populated->extents);
    populated->extents = g_steal_pointer(&merged);
    add_up(populated);
    return TRUE;
}

static gboolean ask_all(RmPopulated *populated, const RmBlock *block, GError **error)
{
    g_array_set_size(populated->extents, 0);
    populated->asked = TRUE;
    if (!rm_block_populated(block, populated->extents, error))
        return FALSE;
    add_up(populated);
    return TRUE;
}

gboolean rm_populated_refresh(RmPopulated *populated, const RmBlock *block, gboolean still, GError **error)
{
    uint64_t allocated;
    if (!populated->asked)
        return ask_all(populated, block, error);
    if (block->hugetlb) {
        g_array_set_size(populated->extents, 0);
        append(populated->extents, 0, block->size);
        add_up(populated);
        return TRUE;
    }
    if (!search_gaps(populated, block, error) || !rm_block_allocated(block, &allocated, error))
        return FALSE;
    /* Other blocks in the same file, and pages allocated but never written, make the count larger: never equal, always
     * asked anew; slow, and right. */
    gboolean settled = still ? allocated == populated->bytes : allocated >= populated->bytes;
    return settled || ask_all(populated, block, error);
}
