/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A fixed-size bitmap, one bit a page. Not atomic: one thread writes, others read after a hand-over that
 * orders memory (a queue push, a join).
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct {
    uint64_t n_bits;
    uint64_t *words; /* bits past n_bits are always zero */
} RmBitmap;

RmBitmap *rm_bitmap_new(uint64_t n_bits);
void rm_bitmap_free(RmBitmap *map);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmBitmap, rm_bitmap_free)

void rm_bitmap_set(RmBitmap *map, uint64_t first, uint64_t count);
void rm_bitmap_clear(RmBitmap *map, uint64_t first, uint64_t count);
void rm_bitmap_clear_all(RmBitmap *map);
void rm_bitmap_or(RmBitmap *map, const RmBitmap *other); /* both of one size */
uint64_t rm_bitmap_count(const RmBitmap *map, uint64_t first, uint64_t count);

static inline gboolean rm_bitmap_test(const RmBitmap *map, uint64_t bit)
{
    return (map->words[bit / 64] >> (bit % 64)) & 1;
}

/* First set (clear) bit at or after `from` and before `end`; `end` if there is none. */
uint64_t rm_bitmap_next_set(const RmBitmap *map, uint64_t from, uint64_t end);
uint64_t rm_bitmap_next_clear(const RmBitmap *map, uint64_t from, uint64_t end);

/* Visits each run [first, last) of set bits in [from, end). */
#define rm_bitmap_foreach_run(map, from, end, first, last)                                                   \
    for (uint64_t first = rm_bitmap_next_set(map, from, end), last;                                          \
         first < (end) && ((last = rm_bitmap_next_clear(map, first, end)), 1);                               \
         first = rm_bitmap_next_set(map, last, end))
