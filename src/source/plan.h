/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Planning: one chunk's dirty pages looked at, and made into runs to write, zero ranges, and extents to ask
 * for.
 *
 * What the destination holds is known page by page: a bit of `sent` is set while the page there may be other
 * than zero. So a zero page is skipped only where zero is what the destination has; elsewhere it becomes a
 * zero range.
 *
 * Where the guest may punch holes, pages are looked at without mapping them (reading a hole through the
 * mapping would take memory again that the guest has just given back), and what is going to be written is
 * held in the punch watch first.
 */
#pragma once

#include "common/bitmap.h"
#include "control/message.h"
#include "tracker/punch-watch.h"
#include "transport/transport.h"

#define RM_PLAN_EXTENTS_MAX 128 /* asked for of one chunk; see RM_REGISTER_EXTENTS_MAX */

/* What is known of a block; each chunk's part belongs to one thread. Bitmap words are never shared between
 * chunks: a chunk is at least 256 pages, four words. */
typedef struct {
    RmBlock *block;      /* borrowed */
    RmPunchWatch *watch; /* borrowed; NULL if the guest punches no holes */
    RmBitmap *sent;      /* one bit a page */
    uint8_t *asked; /* one byte a granule (RM_CHUNK_MIN): whether the far end was asked for it; NULL: needs no
                       asking */
} RmSendState;

RmSendState *rm_send_state_new(RmBlock *block, gboolean asks, RmPunchWatch *watch);
void rm_send_state_free(gpointer state);
void rm_send_state_asked(RmSendState *state); /* all of it */

typedef struct {
    uint32_t block;
    uint64_t chunk;
    uint64_t zero_pages;
    GArray *runs;    /* RmRun, in order */
    GArray *extents; /* RmExtent: what the far end is to be asked for, in order */
} RmPlan;

/* Looks at the pages of `pages` in chunk `chunk` of block number `index`, marks granules as asked, and
 * appends to `zeroes` (of RmZeroRange). No run is longer than `max_run`. */
RmPlan *rm_plan_new(RmSendState *state, uint32_t index, uint64_t chunk, uint64_t chunk_size,
                    const RmBitmap *pages, uint64_t max_run, GArray *zeroes);
void rm_plan_free(gpointer plan);
