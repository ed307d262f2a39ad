/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination's part of --verify: digests of chunks that the source made of its RAM are compared with
 * those of ours. */
#pragma once

#include "control/channel.h"

/* Answers a `verify` request with the chunks that differ. `blocks`: RmBlock*. Nothing may write them
 * meanwhile. */
gboolean rm_compare_digests(RmControl *control, json_object *message, GPtrArray *blocks, uint64_t chunk_size,
                            GError **error);
