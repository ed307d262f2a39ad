/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A RAM block: one of the guest's memory regions, found in the VMM and opened by us through its backing file.
 *
 * A block is one shared file on tmpfs or hugetlbfs. We map it once, whole, so that the number of our mappings
 * is the number of blocks. Offsets into a block are bytes from its start; pages are always 4096 bytes
 * (RM_PAGE), also where the backing uses huge pages (page_size says so).
 *
 * A hole is a zero page. Reading a hole of tmpfs through the mapping would allocate it, so readers first ask
 * rm_block_populated() and touch nothing else.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

#define RM_PAGE 4096u
#define RM_PAGE_SHIFT 12u

typedef struct {
    char *name;           /* QEMU's block id, for example "ram0" or "/objects/ram0" as it prints it */
    uint64_t size;        /* bytes, a multiple of page_size */
    uint64_t page_size;   /* of the backing: 4096, or the huge page's size */
    uint64_t hva;         /* address of the block in the VMM; 0 if there is no VMM */
    uint64_t file_offset; /* where the block starts in its file */
    dev_t dev;            /* identity of the backing file */
    ino_t ino;
    gboolean hugetlb; /* on hugetlbfs: no SEEK_DATA, no short pages */
    int fd;           /* the backing file; -1 while unopened */
    uint8_t *map;     /* our mapping of the whole block; NULL while unmapped */
} RmBlock;

static inline uint64_t rm_block_pages(const RmBlock *block)
{
    return block->size >> RM_PAGE_SHIFT;
}

typedef struct {
    uint64_t start; /* bytes from the block's start, page-aligned */
    uint64_t end;   /* exclusive */
} RmExtent;

RmBlock *rm_block_new(const char *name, uint64_t size);
void rm_block_free(RmBlock *block); /* unmaps, closes; accepts NULL and half-built blocks */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmBlock, rm_block_free)

/* Takes `fd` (open for read, or read-write if `writable`), fills dev, ino, hugetlb and page_size from it,
 * maps the block MAP_SHARED | MAP_NORESERVE (and MADV_DONTDUMP). Reason ram-backing if it is neither tmpfs
 * nor hugetlbfs, or is shorter than file_offset + size. */
gboolean rm_block_open(RmBlock *block, int fd, gboolean writable, GError **error);

/* A block of memory of our own, zeroed, of whole pages; in no core dump. NULL if there is none to be had. */
RmBlock *rm_block_new_anonymous(const char *name, uint64_t bytes);

/* Appends to `extents` (of RmExtent) what is populated in the file, in order, merged. tmpfs: SEEK_DATA.
 * hugetlbfs: the huge pages that hold a byte other than zero, found with pread, which allocates nothing; a
 * huge page of zeroes counts as a hole. Thread-safe (pread and lseek on a description of its own: SEEK_DATA
 * moves the file position, so one thread a block at a time). Reason internal. */
gboolean rm_block_populated(const RmBlock *block, GArray *extents, GError **error);

/* Copies [offset, offset + length) to `to`, by pread: a hole reads as zeroes and is not allocated. Any
 * thread. Returns 0 or a negative errno, -EFAULT if the file has become too short. A block without a file is
 * copied from memory. */
int rm_block_read(const RmBlock *block, uint64_t offset, void *to, size_t length);

/* Bytes allocated to the file (st_blocks). */
gboolean rm_block_allocated(const RmBlock *block, uint64_t *ret_bytes, GError **error);

/* Claims the blocks' files for writing until the blocks are freed, against every process that claims them so.
 * The claim is on the file, since one QEMU can be reached by several sockets, and from several daemons.
 * Reason guest-busy. */
gboolean rm_blocks_claim(GPtrArray *blocks, GError **error);

/* Makes every byte of the block zero: by punching on tmpfs; on hugetlbfs by zeroing what is populated and not
 * zero, since preallocated huge pages given back might not be had again. Reason internal. */
gboolean rm_block_empty(RmBlock *block, GError **error);

/* Makes [offset, offset + length) zero and allocates nothing. `punch` gives the pages back (never inside a
 * registered chunk, never on hugetlbfs, where it is ignored); else what is populated in the range is
 * overwritten. */
gboolean rm_block_zero(RmBlock *block, uint64_t offset, uint64_t length, gboolean punch, GError **error);

/* Populates [offset, offset + length) for writing, ahead of the writes (MADV_POPULATE_WRITE; contents stay).
 * Thread-safe. Reason memory-short for ENOMEM and for EFAULT (SIGBUS of a full tmpfs or an empty huge page
 * pool). */
gboolean rm_block_populate(RmBlock *block, uint64_t offset, uint64_t length, GError **error);
