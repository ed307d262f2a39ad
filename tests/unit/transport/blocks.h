/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* RAM blocks for tests of transports, over nameless files. */
#pragma once

#include "memory/block.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define PAGES(n) ((uint64_t)(n)*RM_PAGE)

static inline RmBlock *blocks_one(const char *name, uint64_t size, gboolean fill)
{
    g_autoptr(GError) error = NULL;
    RmBlock *block = rm_block_new(name, size);
    int fd = memfd_create(name, MFD_CLOEXEC);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    rm_block_open(block, fd, TRUE, &error);
    g_assert_no_error(error);
    if (fill) /* what fallocate() only reserves is still a hole to SEEK_HOLE */
        memset(block->map, 0, size);
    return block;
}

/* One of each size; `sizes` ends with 0. Holes, or filled with zero bytes. */
static inline GPtrArray *blocks_new(const char *name, const uint64_t *sizes, gboolean fill)
{
    GPtrArray *blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    for (unsigned i = 0; sizes[i] != 0; i++)
        g_ptr_array_add(blocks, blocks_one(name, sizes[i], fill));
    return blocks;
}

static inline void blocks_random(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)g_test_rand_int();
}

/* Of the pairs and rigs, which have them as `from` and `to`. */
#define blocks_assert_equal(ends, index)                                                                     \
    do {                                                                                                     \
        const RmBlock *from_ = g_ptr_array_index((ends)->from, index);                                       \
        const RmBlock *to_ = g_ptr_array_index((ends)->to, index);                                           \
        g_assert_true(memcmp(from_->map, to_->map, from_->size) == 0);                                       \
    } while (0)
