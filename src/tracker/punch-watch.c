/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The mapping that tells of punched pages.
 *
 * Everything depends on hold() being the only one that maps a page. Three things would map others along with
 * it, and hide that these were punched a moment before:
 *  - fault-around, which maps what lies about the page, and
 *  - the rest of a large folio: neither is done in a mapping that is registered with a userfaultfd. Ours is,
 *    with one of our own; it is never armed, so nothing ever waits for it.
 *  - a huge page of tmpfs, mapped at once: the mapping lies where that is impossible, a page off.
 * And hugetlbfs shares page tables between processes: not in a registered mapping either.
 */
#include "tracker/punch-watch.h"

#include "common/autoptr.h"
#include "common/kernel.h"
#include "common/reason.h"
#include "tracker/pagemap.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* include/uapi/asm-generic/mman-common.h, Linux 5.14 */
#endif
#define HUGE_STEP (UINT64_C(2) << 20) /* of tmpfs' huge pages */

struct RmPunchWatch {
    const RmBlock *block;
    int uffd, pagemap;
    uint8_t *room; /* what was reserved, the mapping in it */
    uint64_t room_size;
    uint8_t *map;
};

static gboolean fail(const RmBlock *block, int errno_value, const char *what, GError **error)
{
    return rm_set_errno(
        error, RM_REASON_BALLOON, errno_value,
        "RAM block %s: pages that the guest gives back cannot be noticed: %s; start the guest without "
        "its balloon",
        block->name, what);
}

static gboolean map_block(RmPunchWatch *watch, GError **error)
{
    const RmBlock *block = watch->block;
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", block->fd);
    rm_autofd fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fail(block, errno, "its file cannot be opened", error);
    uint64_t step = block->hugetlb ? block->page_size : HUGE_STEP;
    watch->room_size = block->size + 2 * step;
    void *room = mmap(NULL, watch->room_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return fail(block, errno, "no address space", error);
    watch->room = room;
    uint64_t address = ((uintptr_t)room + step - 1) & ~(step - 1);
    if (!block->hugetlb) /* where an offset in the file and its address are equal modulo 2 MiB, and a page on
                          */
        address += block->file_offset % step + RM_PAGE;
    watch->map = mmap((void *)(uintptr_t)address, block->size, PROT_READ,
                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)block->file_offset);
    if (watch->map == MAP_FAILED)
        return fail(block, errno, "its file cannot be mapped", error);
    madvise(watch->map, block->size, MADV_DONTDUMP);
    return TRUE;
}

static gboolean register_map(RmPunchWatch *watch, GError **error)
{
    struct uffdio_register reg = {
        .range = {.start = (uintptr_t)watch->map, .len = watch->block->size},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    watch->uffd = rm_kernel_own_uffd();
    if (watch->uffd < 0)
        return fail(watch->block, -watch->uffd, "no userfaultfd", error);
    if (ioctl(watch->uffd, UFFDIO_REGISTER, &reg) < 0)
        return fail(watch->block, errno, "userfaultfd does not take it", error);
    watch->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (watch->pagemap < 0)
        return fail(watch->block, errno, "/proc/self/pagemap", error);
    return TRUE;
}

RmPunchWatch *rm_punch_watch_new(const RmBlock *block, GError **error)
{
    g_autoptr(RmPunchWatch) watch = g_new0(RmPunchWatch, 1);
    *watch = (RmPunchWatch){.block = block, .uffd = -1, .pagemap = -1};
    if (!map_block(watch, error) || !register_map(watch, error))
        return NULL;
    return g_steal_pointer(&watch);
}

void rm_punch_watch_free(RmPunchWatch *watch)
{
    if (watch == NULL)
        return;
    if (watch->room != NULL)
        munmap(watch->room, watch->room_size);
    rm_fd_clear(&watch->uffd);
    rm_fd_clear(&watch->pagemap);
    g_free(watch);
}

void rm_punch_watch_hold(RmPunchWatch *watch, uint64_t offset, uint64_t length)
{
    uint64_t size = watch->block->page_size;
    uint64_t start = offset & ~(size - 1), end = (offset + length + size - 1) & ~(size - 1);
    int result;
    do {
        result = madvise(watch->map + start, end - start, MADV_POPULATE_READ);
    } while (result < 0 && (errno == EAGAIN || errno == EINTR));
}

typedef struct {
    const RmPunchWatch *watch;
    const RmBitmap *among;
    RmBitmap *pages;
} Sink;

static int take_absent(uint64_t start, uint64_t end, void *data)
{
    Sink *sink = data;
    uint64_t base = (uintptr_t)sink->watch->map;
    rm_bitmap_foreach_run (sink->among, (start - base) >> RM_PAGE_SHIFT, (end - base) >> RM_PAGE_SHIFT, first,
                           last)
        rm_bitmap_set(sink->pages, first, last - first);
    return 0;
}

gboolean rm_punch_watch_collect(RmPunchWatch *watch, const GArray *extents, const RmBitmap *among,
                                RmBitmap *pages, GError **error)
{
    Sink sink = {watch, among, pages};
    int result = 0;
    for (guint i = 0; result == 0 && i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        uint64_t base = (uintptr_t)watch->map;
        result =
            rm_pagemap_absent(watch->pagemap, base + extent->start, base + extent->end, take_absent, &sink);
    }
    return result == 0 ||
           rm_set_errno(error, RM_REASON_TRACKER, -result,
                        "RAM block %s: cannot find out which pages the guest gave back", watch->block->name);
}
