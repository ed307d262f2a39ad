/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A fixed-size bitmap, word by word. */
#include "common/bitmap.h"

#include <string.h>

static uint64_t n_words(uint64_t n_bits)
{
    return (n_bits + 63) / 64;
}

/* The bits of word `index` that lie in [first, end). */
static uint64_t mask_of(uint64_t index, uint64_t first, uint64_t end)
{
    uint64_t mask = ~UINT64_C(0);
    if (index == first / 64)
        mask &= ~UINT64_C(0) << (first % 64);
    if (index == (end - 1) / 64)
        mask &= ~UINT64_C(0) >> (63 - (end - 1) % 64);
    return mask;
}

RmBitmap *rm_bitmap_new(uint64_t n_bits)
{
    RmBitmap *map = g_new0(RmBitmap, 1);
    map->n_bits = n_bits;
    map->words = g_new0(uint64_t, MAX(n_words(n_bits), 1));
    return map;
}

void rm_bitmap_free(RmBitmap *map)
{
    if (map == NULL)
        return;
    g_free(map->words);
    g_free(map);
}

void rm_bitmap_set(RmBitmap *map, uint64_t first, uint64_t count)
{
    uint64_t end = first + count;
    g_assert(end >= first && end <= map->n_bits);
    for (uint64_t i = first / 64; count > 0 && i <= (end - 1) / 64; i++)
        map->words[i] |= mask_of(i, first, end);
}

void rm_bitmap_clear(RmBitmap *map, uint64_t first, uint64_t count)
{
    uint64_t end = first + count;
    g_assert(end >= first && end <= map->n_bits);
    for (uint64_t i = first / 64; count > 0 && i <= (end - 1) / 64; i++)
        map->words[i] &= ~mask_of(i, first, end);
}

void rm_bitmap_clear_all(RmBitmap *map)
{
    memset(map->words, 0, n_words(map->n_bits) * sizeof *map->words);
}

void rm_bitmap_or(RmBitmap *map, const RmBitmap *other)
{
    g_assert(map->n_bits == other->n_bits);
    for (uint64_t i = 0; i < n_words(map->n_bits); i++)
        map->words[i] |= other->words[i];
}

uint64_t rm_bitmap_count(const RmBitmap *map, uint64_t first, uint64_t count)
{
    uint64_t end = first + count, total = 0;
    g_assert(end >= first && end <= map->n_bits);
    for (uint64_t i = first / 64; count > 0 && i <= (end - 1) / 64; i++)
        total += __builtin_popcountll(map->words[i] & mask_of(i, first, end));
    return total;
}

/* First bit at or after `from` that is set in the words xor-ed with `flip`. */
static uint64_t next(const RmBitmap *map, uint64_t from, uint64_t end, uint64_t flip)
{
    g_assert(end <= map->n_bits);
    for (uint64_t i = from / 64; from < end && i <= (end - 1) / 64; i++) {
        uint64_t word = (map->words[i] ^ flip) & mask_of(i, from, end);
        if (word != 0)
            return i * 64 + __builtin_ctzll(word);
    }
    return end;
}

uint64_t rm_bitmap_next_set(const RmBitmap *map, uint64_t from, uint64_t end)
{
    return next(map, from, end, 0);
}

uint64_t rm_bitmap_next_clear(const RmBitmap *map, uint64_t from, uint64_t end)
{
    return next(map, from, end, ~UINT64_C(0));
}
