/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * RAM blocks: opening, mapping, and asking the backing file what is there.
 *
 * Nothing here may allocate a page unless it is asked to populate: a sparse guest has to stay sparse on both
 * sides. tmpfs tells what it holds by SEEK_DATA, and only that is touched through the mapping. hugetlbfs has
 * no holes to seek, and reading one through the mapping would take a huge page out of the pool; pread() gives
 * zeroes for it instead.
 *
 * SEEK_DATA and SEEK_HOLE take absolute positions and nobody reads at the position they leave behind, so
 * several threads may ask at once.
 */
#include "memory/block.h"

#include "common/reason.h"
#include "memory/zero.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* include/uapi/asm-generic/mman-common.h, Linux 5.14 */
#endif

/* How much of a huge page is read at a time: a page in use mostly shows it in the first step. */
#define PROBE_BYTES 65536u

RmBlock *rm_block_new(const char *name, uint64_t size)
{
    RmBlock *block = g_new0(RmBlock, 1);
    block->name = g_strdup(name);
    block->size = size;
    block->page_size = RM_PAGE;
    block->fd = -1;
    return block;
}

void rm_block_free(RmBlock *block)
{
    if (block == NULL)
        return;
    if (block->map != NULL)
        munmap(block->map, block->size);
    if (block->fd >= 0)
        close(block->fd);
    g_free(block->name);
    g_free(block);
}

/* Identity, kind and size of the file behind block->fd. */
static gboolean inspect(RmBlock *block, GError **error)
{
    struct stat status;
    struct statfs fs;
    if (fstat(block->fd, &status) < 0 || fstatfs(block->fd, &fs) < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot look at its file",
                            block->name);

    gboolean hugetlb = (uint64_t)fs.f_type == HUGETLBFS_MAGIC;
    if (!hugetlb && fs.f_type != TMPFS_MAGIC)
        return rm_fail(
            error, RM_REASON_RAM_BACKING,
            "RAM block %s: its file is on neither tmpfs nor hugetlbfs (file system type %#lx); give the "
            "guest "
            "a memory-backend-file with share=on and a mem-path below /dev/shm or a hugetlbfs mount",
            block->name, (unsigned long)fs.f_type);

    uint64_t page_size = hugetlb ? (uint64_t)fs.f_bsize : RM_PAGE;
    if (block->size == 0 || block->size % page_size != 0 || block->file_offset % page_size != 0)
        return rm_fail(error, RM_REASON_RAM_BACKING,
                       "RAM block %s: size %" G_GUINT64_FORMAT " and file offset %" G_GUINT64_FORMAT
                       " must be multiples of the file's page size, %" G_GUINT64_FORMAT
                       ", and the size not 0",
                       block->name, block->size, block->file_offset, page_size);
    uint64_t end;
    if (__builtin_add_overflow(block->file_offset, block->size, &end) || end > (uint64_t)status.st_size)
        return rm_fail(error, RM_REASON_RAM_BACKING,
                       "RAM block %s: its file has %" G_GUINT64_FORMAT
                       " bytes, too few for the block's %" G_GUINT64_FORMAT " at offset %" G_GUINT64_FORMAT
                       "; both ends need RAM blocks of one size",
                       block->name, (uint64_t)status.st_size, block->size, block->file_offset);
    block->dev = status.st_dev;
    block->ino = status.st_ino;
    block->hugetlb = hugetlb;
    block->page_size = page_size;
    return TRUE;
}

/* A core dump of ours is no place for the guest's secrets. */
static void keep_from_dumps(const RmBlock *block)
{
    madvise(block->map, block->size, MADV_DONTDUMP);
}

RmBlock *rm_block_new_anonymous(const char *name, uint64_t bytes)
{
    g_autoptr(RmBlock) block = rm_block_new(name, (bytes + RM_PAGE - 1) & ~(uint64_t)(RM_PAGE - 1));
    void *map = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    block->map = map;
    keep_from_dumps(block);
    return g_steal_pointer(&block);
}

gboolean rm_block_open(RmBlock *block, int fd, gboolean writable, GError **error)
{
    g_assert(block->fd < 0 && block->map == NULL);
    block->fd = fd; /* ours from here on, also if the rest fails */
    if (!inspect(block, error))
        return FALSE;
    void *map = mmap(NULL, block->size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | MAP_NORESERVE,
                     fd, (off_t)block->file_offset);
    if (map == MAP_FAILED)
        return rm_set_errno(
            error, errno == EACCES || errno == EPERM ? RM_REASON_PRIVILEGE : RM_REASON_INTERNAL, errno,
            "RAM block %s: cannot map %" G_GUINT64_FORMAT " bytes of its file", block->name, block->size);
    block->map = map;
    keep_from_dumps(block);
    return TRUE;
}

static gboolean check_range(const RmBlock *block, uint64_t offset, uint64_t length, GError **error)
{
    if (offset % RM_PAGE == 0 && length % RM_PAGE == 0 && offset <= block->size &&
        length <= block->size - offset)
        return TRUE;
    return rm_fail(error, RM_REASON_INTERNAL,
                   "RAM block %s: offset %" G_GUINT64_FORMAT ", length %" G_GUINT64_FORMAT
                   " is not a page-aligned range of its %" G_GUINT64_FORMAT " bytes",
                   block->name, offset, length, block->size);
}

static void append_extent(GArray *extents, uint64_t start, uint64_t end)
{
    RmExtent *last = extents->len > 0 ? &g_array_index(extents, RmExtent, extents->len - 1) : NULL;
    if (last != NULL && last->end == start) {
        last->end = end;
    } else {
        RmExtent extent = {start, end};
        g_array_append_val(extents, extent);
    }
}

/* What tmpfs holds of [from, to). */
static gboolean seek_data(const RmBlock *block, uint64_t from, uint64_t to, GArray *extents, GError **error)
{
    uint64_t base = block->file_offset;
    while (from < to) {
        off_t data = lseek(block->fd, (off_t)(base + from), SEEK_DATA);
        off_t hole = data < 0 ? data : lseek(block->fd, data, SEEK_HOLE);
        if (hole < 0 && errno == ENXIO)
            return TRUE; /* no data from here to the end */
        if (hole < 0)
            return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot seek for data",
                                block->name);
        uint64_t start = ((uint64_t)data - base) & ~(uint64_t)(RM_PAGE - 1);
        uint64_t end = MIN(((uint64_t)hole - base + RM_PAGE - 1) & ~(uint64_t)(RM_PAGE - 1), to);
        if (start >= to)
            return TRUE;
        if (end > start)
            append_extent(extents, start, end);
        /* Punched between the two calls: the data is gone, go on behind it. */
        from = MAX(end, start + RM_PAGE);
    }
    return TRUE;
}

int rm_block_read(const RmBlock *block, uint64_t offset, void *to, size_t length)
{
    if (block->fd < 0) {
        memcpy(to, block->map + offset, length);
        return 0;
    }
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(block->fd, (uint8_t *)to + done, length - done,
                          (off_t)(block->file_offset + offset + done));
        if (n == 0)
            return -EFAULT;
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static gboolean probe(const RmBlock *block, uint64_t offset, uint8_t *buffer, size_t length, GError **error)
{
    int code = rm_block_read(block, offset, buffer, length);
    if (code == -EFAULT)
        return rm_fail(error, RM_REASON_INTERNAL, "RAM block %s: its file has become shorter than the block",
                       block->name);
    return code == 0 ||
           rm_set_errno(error, RM_REASON_INTERNAL, -code,
                        "RAM block %s: cannot read its file at %" G_GUINT64_FORMAT, block->name, offset);
}

/* An untouched hugetlbfs file, in one look; a large one takes seconds to read otherwise. */
static gboolean huge_file_is_empty(const RmBlock *block)
{
    struct stat status;
    return fstat(block->fd, &status) == 0 && status.st_blocks == 0;
}

static gboolean huge_populated(const RmBlock *block, GArray *extents, GError **error)
{
    _Alignas(64) uint8_t buffer[PROBE_BYTES];
    if (huge_file_is_empty(block))
        return TRUE;
    for (uint64_t page = 0; page < block->size; page += block->page_size) {
        for (uint64_t at = page; at < page + block->page_size; at += PROBE_BYTES) {
            if (!probe(block, at, buffer, PROBE_BYTES, error))
                return FALSE;
            if (!rm_is_zero(buffer, PROBE_BYTES)) {
                append_extent(extents, page, page + block->page_size);
                break;
            }
        }
    }
    return TRUE;
}

gboolean rm_block_populated(const RmBlock *block, GArray *extents, GError **error)
{
    g_assert(block->fd >= 0);
    if (block->hugetlb)
        return huge_populated(block, extents, error);
    return seek_data(block, 0, block->size, extents, error);
}

gboolean rm_block_allocated(const RmBlock *block, uint64_t *ret_bytes, GError **error)
{
    struct stat status;
    if (fstat(block->fd, &status) < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot look at its file",
                            block->name);
    *ret_bytes = (uint64_t)status.st_blocks * 512; /* stat(2): units of 512 bytes, whatever the file system */
    return TRUE;
}

static gboolean punch_hole(RmBlock *block, uint64_t offset, uint64_t length, GError **error)
{
    int result;
    do {
        result = fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                           (off_t)(block->file_offset + offset), (off_t)length);
    } while (result < 0 && errno == EINTR);
    if (result < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot punch a hole",
                            block->name);
    return TRUE;
}

static gboolean huge_zero(RmBlock *block, uint64_t from, uint64_t to, GError **error)
{
    _Alignas(64) uint8_t buffer[PROBE_BYTES];
    if (huge_file_is_empty(block))
        return TRUE;
    for (uint64_t at = from; at < to; at += PROBE_BYTES) {
        size_t length = MIN(PROBE_BYTES, to - at);
        if (!probe(block, at, buffer, length, error))
            return FALSE;
        /* A byte other than zero proves that the huge page is there, so writing to it takes none from the
         * pool. */
        for (size_t i = 0; i < length; i += RM_PAGE)
            if (!rm_is_zero(buffer + i, RM_PAGE))
                memset(block->map + at + i, 0, RM_PAGE);
    }
    return TRUE;
}

static gboolean short_zero(RmBlock *block, uint64_t from, uint64_t to, GError **error)
{
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    if (!seek_data(block, from, to, extents, error))
        return FALSE;
    for (unsigned i = 0; i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        for (uint64_t at = extent->start; at < extent->end; at += RM_PAGE)
            if (!rm_is_zero(block->map + at, RM_PAGE))
                memset(block->map + at, 0, RM_PAGE);
    }
    return TRUE;
}

gboolean rm_block_zero(RmBlock *block, uint64_t offset, uint64_t length, gboolean punch, GError **error)
{
    g_assert(block->map != NULL);
    if (!check_range(block, offset, length, error))
        return FALSE;
    if (length == 0)
        return TRUE;
    if (block->hugetlb)
        return huge_zero(block, offset, offset + length, error);
    if (punch)
        return punch_hole(block, offset, length, error);
    return short_zero(block, offset, offset + length, error);
}

/* Several blocks may lie in one file, of which only one can have the lock. */
static gboolean is_claimed(GPtrArray *blocks, guint n, const RmBlock *block)
{
    for (guint i = 0; i < n; i++) {
        const RmBlock *other = blocks->pdata[i];
        if (other->dev == block->dev && other->ino == block->ino)
            return TRUE;
    }
    return FALSE;
}

gboolean rm_blocks_claim(GPtrArray *blocks, GError **error)
{
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = blocks->pdata[i];
        if (is_claimed(blocks, i, block) || flock(block->fd, LOCK_EX | LOCK_NB) == 0)
            continue;
        if (errno == EWOULDBLOCK)
            return rm_fail(
                error, RM_REASON_GUEST_BUSY,
                "RAM block %s: another session receives into its file; start a QEMU for each guest",
                block->name);
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "RAM block %s: cannot lock its file",
                            block->name);
    }
    return TRUE;
}

gboolean rm_block_empty(RmBlock *block, GError **error)
{
    return rm_block_zero(block, 0, block->size, TRUE, error);
}

gboolean rm_block_populate(RmBlock *block, uint64_t offset, uint64_t length, GError **error)
{
    g_assert(block->map != NULL);
    if (!check_range(block, offset, length, error))
        return FALSE;
    /* madvise() rounds to the mapping's own page size and refuses a start that isn't aligned to it. */
    uint64_t start = offset & ~(block->page_size - 1);
    uint64_t end = (offset + length + block->page_size - 1) & ~(block->page_size - 1);
    if (length == 0)
        return TRUE;
    int result;
    do {
        result = madvise(block->map + start, end - start, MADV_POPULATE_WRITE);
    } while (result < 0 && (errno == EAGAIN || errno == EINTR));
    if (result == 0)
        return TRUE;
    if (errno == ENOMEM || errno == EFAULT)
        return rm_fail(
            error, RM_REASON_MEMORY_SHORT,
            "RAM block %s: no memory for %" G_GUINT64_FORMAT " bytes at %" G_GUINT64_FORMAT "; %s",
            block->name, end - start, start,
            block->hugetlb
                ? "reserve more huge pages (vm.nr_hugepages)"
                : "free memory on this host, or raise the tmpfs size or the cgroup's memory limit");
    return rm_set_errno(error, RM_REASON_INTERNAL, errno,
                        "RAM block %s: cannot populate it ahead (needs Linux 5.14)", block->name);
}
