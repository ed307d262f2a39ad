/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tracks writes with userfaultfd's asynchronous write-protection: the kernel itself resolves the fault of a
 * protected page and notes the page as written; nobody is asked, so neither the VMM nor the kernel ever waits
 * for us.
 *
 * The userfaultfd belongs to the VMM's address space and to this process (tracker/attach.c made the VMM
 * create it). The kernel takes all protection away when its last descriptor closes, however we end.
 *
 * Only what is populated in the backing file is protected and scanned: protecting a hole allocates page
 * tables in the VMM for it. A page that has no protection counts as written, so one that appears later is
 * reported by the first scan that is told of it. On hugetlbfs, where page tables cost nothing, the whole
 * block is protected when arming, because some kernels loop for ever when a scan is to protect a huge page
 * that is not mapped yet.
 *
 * What the kernel says of an address range is worth something only while that range maps the block: an
 * unmapped range, and that of a dead process, reads as clean. So the VMM's mappings are compared with the
 * block after each scan.
 */
#include "common/autoptr.h"
#include "common/kernel.h"
#include "common/mappings.h"
#include "common/reason.h"
#include "tracker/attach.h"
#include "tracker/pagemap.h"
#include "tracker/task-status.h"
#include "tracker/tracker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>

#define THREAD_TRIES 4                     /* threads tried, each for at most the bound in attach.c */
#define PROTECT_SLICE (UINT64_C(64) << 20) /* bytes per call that holds the VMM's mmap lock for reading */
#define RELEASE_SLICE (UINT64_C(32) << 20) /* the same, for writing: page faults of the VMM wait */

typedef struct {
    RmTracker base;
    pid_t pid;
    GPtrArray *blocks; /* of RmBlock, borrowed */
    int pidfd;         /* keeps `pid` ours: tells the VMM's end from another process with its number */
    int pagemap, maps;
    int uffd; /* -1 until attached */
} UffdAsync;

static gboolean gone(const UffdAsync *self)
{
    struct pollfd poll_fd = {.fd = self->pidfd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

static gboolean fail_gone(const UffdAsync *self, GError **error)
{
    return rm_fail(error, RM_REASON_GUEST_GONE, "the VMM (process %d) has ended", (int)self->pid);
}

/* ---- does the range still map the block? ---- */

/* `mappings`: NULL to ask the kernel for that one mapping, which takes microseconds. */
static gboolean mapping_at(const UffdAsync *self, const GArray *mappings, uint64_t at, RmMapping *ret_mapping)
{
    if (mappings == NULL)
        return rm_mappings_ask(self->maps, at, ret_mapping);
    const RmMapping *mapping = rm_mappings_find(mappings, at);
    if (mapping != NULL)
        *ret_mapping = *mapping;
    return mapping != NULL;
}

static gboolean maps_block(const UffdAsync *self, const GArray *mappings, const RmBlock *block)
{
    for (uint64_t at = block->hva, end = block->hva + block->size; at < end;) {
        RmMapping mapping;
        if (!mapping_at(self, mappings, at, &mapping) || !mapping.shared || mapping.dev != block->dev ||
            mapping.ino != block->ino ||
            mapping.offset + (at - mapping.start) != block->file_offset + (at - block->hva))
            return FALSE;
        at = mapping.end;
    }
    return TRUE;
}

/* All blocks, or one if `only` is not NULL; the first that is not mapped as it should be. */
static const RmBlock *find_unmapped(const UffdAsync *self, const GArray *mappings, const RmBlock *only)
{
    for (guint i = 0; i < self->blocks->len; i++) {
        const RmBlock *block = g_ptr_array_index(self->blocks, i);
        if ((only == NULL || only == block) && !maps_block(self, mappings, block))
            return block;
    }
    return NULL;
}

/* A no of the quick way may also mean that this kernel lacks it: then all mappings are read. */
static gboolean check_mapped(const UffdAsync *self, const RmBlock *only, GError **error)
{
    g_autoptr(GError) unread = NULL;
    g_autoptr(GArray) mappings = NULL;
    gboolean quickly = find_unmapped(self, NULL, only) == NULL;
    if (!quickly)
        mappings = rm_mappings_read(self->pid, &unread);
    /* Asked after reading: as long as it lives its number is not another's. A dying process loses its memory
     * first. */
    if (gone(self))
        return fail_gone(self, error);
    if (quickly)
        return TRUE;
    if (mappings == NULL) {
        g_propagate_error(error, g_steal_pointer(&unread));
        return FALSE;
    }
    const RmBlock *block = find_unmapped(self, mappings, only);
    return block == NULL || rm_fail(error, RM_REASON_GUEST_CHANGED,
                                    "RAM block %s is no longer at address %#" G_GINT64_MODIFIER
                                    "x of the VMM (process %d): unplugged or resized? Start over",
                                    block->name, block->hva, (int)self->pid);
}

/* ---- arming ---- */

static gboolean open_process(UffdAsync *self, GError **error)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/pagemap", (int)self->pid);
    g_autofree char *maps = g_strdup_printf("/proc/%d/maps", (int)self->pid);
    self->pidfd = (int)syscall(SYS_pidfd_open, self->pid, 0);
    if (self->pidfd < 0)
        return errno == ESRCH
                   ? fail_gone(self, error)
                   : rm_set_errno(error, RM_REASON_TRACKER, errno, "pidfd_open(%d)", (int)self->pid);
    self->pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (self->pagemap < 0)
        return errno == ENOENT || errno == ESRCH
                   ? fail_gone(self, error)
                   : rm_set_errno(error, RM_REASON_PRIVILEGE, errno,
                                  "cannot open %s: run rdmamig as root, or as the VMM's user", path);
    self->maps = open(maps, O_RDONLY | O_CLOEXEC); /* without it, check_mapped() says what is wrong */
    return TRUE;
}

/* Any thread will do, for all share the address space; the main thread sleeps in poll most of the time. */
static gboolean attach(UffdAsync *self, GError **error)
{
    g_autoptr(GError) first = NULL;
    g_autoptr(GArray) tids = rm_task_list(self->pid, error);
    if (tids == NULL)
        return FALSE;
    for (guint i = 0; i < MIN(tids->len, THREAD_TRIES); i++) {
        g_autoptr(GError) failure = NULL;
        RmAttachStats stats = {0};
        pid_t tid = g_array_index(tids, pid_t, i);
        self->uffd = rm_attach_userfaultfd(self->pid, tid, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY,
                                           &stats, &failure);
        if (self->uffd >= 0) {
            g_debug("attached to thread %d of process %d, which stood still for %" G_GINT64_FORMAT " us",
                    (int)tid, (int)self->pid, stats.stopped_us);
            return TRUE;
        }
        if (first == NULL)
            first = g_error_copy(failure);
        if (gone(self))
            return fail_gone(self, error);
        if (rm_error_reason(failure) == RM_REASON_PRIVILEGE)
            break;
    }
    g_propagate_error(error, g_steal_pointer(&first));
    return FALSE;
}

static gboolean enable(UffdAsync *self, GError **error)
{
    struct uffdio_api api = {
        .api = UFFD_API,
        .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM |
                    UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC,
    };
    if (ioctl(self->uffd, UFFDIO_API, &api) < 0)
        return rm_set_errno(
            error, RM_REASON_KERNEL, errno,
            "this kernel's userfaultfd cannot write-protect shared memory asynchronously (Linux 6.7 "
            "or newer is needed)");
    return TRUE;
}

static gboolean register_block(UffdAsync *self, const RmBlock *block, GError **error)
{
    struct uffdio_register reg = {
        .range = {.start = block->hva, .len = block->size},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    if (ioctl(self->uffd, UFFDIO_REGISTER, &reg) == 0)
        return TRUE;
    int errno_value = errno;
    if (errno_value == ESRCH || gone(self))
        return fail_gone(self, error);
    const char *hint =
        errno_value == EBUSY   ? "another userfaultfd has it: a second migration, post-copy, or a "
                                 "background snapshot; end that first"
        : errno_value == EPERM ? "the VMM may not write to it (sealed or read-only?)"
        : errno_value == EINVAL
            ? "its backing cannot be write-protected: use memory-backend-file on tmpfs or hugetlbfs"
            : "unexpected";
    return rm_set_errno(error, RM_REASON_TRACKER, errno_value, "RAM block %s cannot be tracked (%s)",
                        block->name, hint);
}

/* Protects [start, end) of the VMM, slice by slice. 0 or a negative errno. */
static int protect_range(const UffdAsync *self, uint64_t start, uint64_t end, uint64_t slice)
{
    for (uint64_t at = start; at < end; at += slice) {
        struct uffdio_writeprotect arg = {
            .range = {.start = at, .len = MIN(slice, end - at)},
            .mode = UFFDIO_WRITEPROTECT_MODE_WP,
        };
        while (ioctl(self->uffd, UFFDIO_WRITEPROTECT, &arg) < 0)
            if (errno != EINTR && errno != EAGAIN)
                return -errno;
    }
    return 0;
}

static gboolean protect_block(UffdAsync *self, const RmBlock *block, GError **error)
{
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    RmExtent whole = {0, block->size};
    if (block->hugetlb)
        g_array_append_val(extents, whole);
    else if (!rm_block_populated(block, extents, error))
        return FALSE;
    uint64_t slice = MAX(PROTECT_SLICE, block->page_size);
    for (guint i = 0; i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        int result = protect_range(self, block->hva + extent->start, block->hva + extent->end, slice);
        if (result == -ESRCH || (result < 0 && gone(self)))
            return fail_gone(self, error);
        if (result < 0)
            return rm_set_errno(error, RM_REASON_TRACKER, -result, "cannot write-protect RAM block %s",
                                block->name);
    }
    return TRUE;
}

static gboolean uffd_async_arm(RmTracker *tracker, GError **error)
{
    UffdAsync *self = (UffdAsync *)tracker;
    RmKernel kernel;
    g_assert(self->uffd < 0);
    if (!rm_kernel_probe(&kernel, error) || !rm_kernel_require_uffd_async(&kernel, error) ||
        !open_process(self, error) || !check_mapped(self, NULL, error) || !attach(self, error) ||
        !enable(self, error))
        return FALSE;
    for (guint i = 0; i < self->blocks->len; i++)
        if (!register_block(self, g_ptr_array_index(self->blocks, i), error))
            return FALSE;
    for (guint i = 0; i < self->blocks->len; i++)
        if (!protect_block(self, g_ptr_array_index(self->blocks, i), error))
            return FALSE;
    return check_mapped(self, NULL, error);
}

/* ---- scanning ---- */

struct sink {
    const RmBlock *block;
    RmBitmap *dirty;
};

static int mark(uint64_t start, uint64_t end, void *data)
{
    struct sink *sink = data;
    uint64_t first = (start - sink->block->hva) >> RM_PAGE_SHIFT;
    rm_bitmap_set(sink->dirty, first, (end - start) >> RM_PAGE_SHIFT);
    return 0;
}

/* Extents may begin or end inside a huge page, which is protected as a whole or not at all. */
static RmExtent whole_pages(const RmBlock *block, RmExtent extent)
{
    uint64_t size = block->hugetlb ? block->page_size : RM_PAGE;
    extent.start -= extent.start % size;
    extent.end += (size - extent.end % size) % size;
    extent.end = MIN(extent.end, block->size);
    return extent;
}

static gboolean read_written(UffdAsync *self, unsigned index, const GArray *extents, RmBitmap *dirty,
                             gboolean protect, GError **error)
{
    g_assert(self->uffd >= 0 && index < self->blocks->len);
    struct sink sink = {.block = g_ptr_array_index(self->blocks, index), .dirty = dirty};
    const RmBlock *block = sink.block;
    int result = 0;
    for (guint i = 0; result == 0 && i < extents->len; i++) {
        RmExtent extent = whole_pages(block, g_array_index(extents, RmExtent, i));
        uint64_t start = block->hva + extent.start, end = block->hva + extent.end;
        result = protect ? rm_pagemap_collect(self->pagemap, start, end, block->page_size, mark, &sink)
                         : rm_pagemap_scan(self->pagemap, start, end, FALSE, mark, &sink);
    }
    /* Also after a failure: that the guest is gone, or its RAM elsewhere, is the better explanation. */
    if (!check_mapped(self, block, error))
        return FALSE;
    if (result == -EPERM)
        return rm_fail(
            error, RM_REASON_GUEST_CHANGED,
            "part of RAM block %s is no longer tracked: the VMM (process %d) mapped it anew. Start over",
            block->name, (int)self->pid);
    if (result < 0)
        return rm_set_errno(error, RM_REASON_TRACKER, -result, "cannot scan RAM block %s for written pages",
                            block->name);
    return TRUE;
}

static gboolean uffd_async_scan(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                                GError **error)
{
    return read_written((UffdAsync *)tracker, index, extents, dirty, TRUE, error);
}

static gboolean uffd_async_peek(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                                GError **error)
{
    return read_written((UffdAsync *)tracker, index, extents, dirty, FALSE, error);
}

/* ---- letting go ---- */

/* The last close would do all of it at once, with the VMM's page faults waiting: about 25 ms for a GiB. So do
 * it slice by slice. To take the protection away first, which needs no such lock, doesn't help: to unregister
 * walks the page tables anyway, and takes as long. Failures don't matter: close() finishes whatever is left.
 */
static void release_block(const UffdAsync *self, const RmBlock *block)
{
    uint64_t slice = MAX(RELEASE_SLICE, block->page_size), end = block->hva + block->size;
    for (uint64_t at = block->hva; at < end; at += slice) {
        struct uffdio_range range = {.start = at, .len = MIN(slice, end - at)};
        if (ioctl(self->uffd, UFFDIO_UNREGISTER, &range) < 0)
            return;
    }
}

static void uffd_async_free(RmTracker *tracker)
{
    UffdAsync *self = (UffdAsync *)tracker;
    for (guint i = 0; self->uffd >= 0 && i < self->blocks->len; i++)
        release_block(self, g_ptr_array_index(self->blocks, i));
    rm_fd_clear(&self->uffd);
    rm_fd_clear(&self->pagemap);
    rm_fd_clear(&self->maps);
    rm_fd_clear(&self->pidfd);
    g_free(self);
}

static const RmTrackerOps uffd_async_ops = {
    .name = "uffd-async",
    .arm = uffd_async_arm,
    .scan = uffd_async_scan,
    .peek = uffd_async_peek,
    .free = uffd_async_free,
};

RmTracker *rm_tracker_uffd_async_new(pid_t pid, GPtrArray *blocks)
{
    UffdAsync *self = g_new0(UffdAsync, 1);
    *self = (UffdAsync){
        .base.ops = &uffd_async_ops,
        .pid = pid,
        .blocks = blocks,
        .pidfd = -1,
        .pagemap = -1,
        .maps = -1,
        .uffd = -1,
    };
    return &self->base;
}
