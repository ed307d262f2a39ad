/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Windows: how much guest memory one end may have registered at a time, and each channel's part of it.
 *
 * The parts are fixed for the session, so that no channel ever waits for another one's chunks: that is what
 * makes it certain that room can be made. Above a minimum they are as the channels' shares of guest memory
 * are, so that a window for all of it lets every channel have all of its chunks.
 */
#pragma once

#include "memory/chunk.h"

/* A channel's least part: what it writes, and what it has registered meanwhile, a granule each. */
#define RM_WINDOW_CHANNEL_MIN (2 * RM_CHUNK_MIN)
/* The least of --max-pinned for each channel: that, a ring for copies, and a page for messages. */
#define RM_PINNED_CHANNEL_MIN (4 * RM_CHUNK_MIN)

/* The value of --max-pinned: a size of at least that for one channel. Reason usage. */
gboolean rm_parse_pinned(const char *text, uint64_t *ret_bytes, GError **error);

/* The --max-pinned that all of the blocks need at once. */
uint64_t rm_window_for_all(const GPtrArray *blocks, unsigned channels);

/* The part of `channel` in a window of at least RM_WINDOW_CHANNEL_MIN a channel. The parts add up to no more
 * than the window. */
uint64_t rm_window_part(uint64_t window, const GPtrArray *blocks, uint64_t chunk_size, unsigned channels,
                        unsigned channel);

/* FALSE with reason privilege, which names both values, if `max_pinned` (not 0) is too small for the channels
 * or, with `all`, for the blocks at once. */
gboolean rm_window_check(uint64_t max_pinned, const GPtrArray *blocks, unsigned channels, gboolean all,
                         GError **error);
