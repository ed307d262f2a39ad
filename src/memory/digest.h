/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The digest of a chunk, for --verify: XXH3 (128 bits) over each page that is not all zeroes, preceded by its
 * page number within the block (little-endian u64). Holes and zero pages contribute nothing, so that both
 * ends agree whatever is populated. Read with pread: a hole stays one.
 */
#pragma once

#include "memory/block.h"

typedef struct {
    uint64_t low, high;
} RmDigest;

/* Digest of [offset, offset + length). `extents` is what rm_block_populated() said of the block, sorted. */
RmDigest rm_digest_range(const RmBlock *block, const GArray *extents, uint64_t offset, uint64_t length);

/* 32 hexadecimal digits, high half first; `text` has room for 33 bytes. */
void rm_digest_format(RmDigest digest, char text[33]);
gboolean rm_digest_parse(const char *text, RmDigest *ret_digest);
