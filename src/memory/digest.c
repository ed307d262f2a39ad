/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Digests of ranges of a block, one XXH3 stream over (page number, page) pairs. */
#include "memory/digest.h"

#include "memory/zero.h"

#include <string.h>
#include <xxhash.h>

#define READ_BYTES 65536u

/* The first extent that ends behind `offset`; a large guest has many, and each chunk asks. */
static unsigned first_extent(const GArray *extents, uint64_t offset)
{
    unsigned low = 0, high = extents->len;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (g_array_index(extents, RmExtent, middle).end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What can't be read (the file was truncated) counts as zeroes, and so as different. */
static void add_pages(XXH3_state_t *state, const RmBlock *block, uint64_t offset, uint64_t length)
{
    _Alignas(64) uint8_t buffer[READ_BYTES];
    if (rm_block_read(block, offset, buffer, length) < 0)
        return;
    for (uint64_t at = 0; at < length; at += RM_PAGE) {
        if (rm_is_zero(buffer + at, RM_PAGE))
            continue;
        uint64_t number = GUINT64_TO_LE((offset + at) >> RM_PAGE_SHIFT);
        XXH3_128bits_update(state, &number, sizeof number);
        XXH3_128bits_update(state, buffer + at, RM_PAGE);
    }
}

RmDigest rm_digest_range(const RmBlock *block, const GArray *extents, uint64_t offset, uint64_t length)
{
    g_assert(block->map != NULL && offset % RM_PAGE == 0 && length % RM_PAGE == 0);
    g_assert(offset <= block->size && length <= block->size - offset);
    XXH3_state_t *state = XXH3_createState();
    g_assert(state != NULL);
    XXH3_128bits_reset(state);
    uint64_t end = offset + length;
    for (unsigned i = first_extent(extents, offset); i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        if (extent->start >= end)
            break;
        uint64_t last = MIN(extent->end, end);
        for (uint64_t at = MAX(extent->start, offset); at < last; at += READ_BYTES)
            add_pages(state, block, at, MIN(READ_BYTES, last - at));
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return (RmDigest){.low = hash.low64, .high = hash.high64};
}

void rm_digest_format(RmDigest digest, char text[33])
{
    g_snprintf(text, 33, "%016" G_GINT64_MODIFIER "x%016" G_GINT64_MODIFIER "x", digest.high, digest.low);
}

gboolean rm_digest_parse(const char *text, RmDigest *ret_digest)
{
    uint64_t halves[2] = {0, 0};
    if (strlen(text) != 32)
        return FALSE;
    for (unsigned i = 0; i < 32; i++) {
        int digit = g_ascii_xdigit_value(text[i]);
        if (digit < 0)
            return FALSE;
        halves[i / 16] = halves[i / 16] << 4 | (unsigned)digit;
    }
    *ret_digest = (RmDigest){.high = halves[0], .low = halves[1]};
    return TRUE;
}
