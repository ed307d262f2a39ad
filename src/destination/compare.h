/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The answer to `verify`: which chunks are not what the source has. */
#pragma once

#include "memory/block.h"

#include <json-c/json.h>

/* `items` of RmVerifyItem, `blocks` of RmBlock*: an array [block, chunk, …] of those that differ, which the
 * caller owns; NULL with an error. */
json_object *rm_compare_digests(const GArray *items, const GPtrArray *blocks, uint64_t chunk_size,
                                GError **error);
