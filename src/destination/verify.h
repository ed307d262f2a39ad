/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --verify at the destination: the source's digests of chunks against its own. */
#pragma once

#include "memory/block.h"

#include <json-c/json.h>

/* The answer to a `verify` message: the chunks of `blocks` (RmBlock*) that differ. NULL with reason protocol,
 * or if a block can't be looked at. */
json_object *rm_verify_compare(json_object *message, GPtrArray *blocks, uint64_t chunk_size, GError **error);
