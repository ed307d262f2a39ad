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

#define RM_PLAN_BYTES_MAX (UINT64_C(64) << 20)
#define RM_PLAN_EXTENTS_MAX 128 /* asked for of one chunk; see RM_REGISTER_EXTENTS_MAX */

/* What is known of a block; each chunk's part belongs to one thread. Bitmap words are never shared between
 * chunks: a chunk is at least 256 pages, four words. */
typedef struct {
    RmBlock *block;      /* borrowed */
    RmPunchWatch *watch; /* borrowed; NULL if the guest punches no holes */
    RmBitmap *sent;      /* one bit a page */
    uint8_t *asked; /* one byte a granule (RM_CHUNK_MIN): whether the far end was asked for it, and it was not
                       released since; NULL: needs no asking */
    uint32_t *used_by; /* with a window: by granule, the latest batch that writes into it; see holdings.h */
} RmSendState;

RmSendState *rm_send_state_new(RmBlock *block, gboolean asks, gboolean window, RmPunchWatch *watch);
void rm_send_state_free(gpointer state);

typedef struct {
    uint32_t block;
    uint64_t chunk;
    uint64_t zero_pages;
    GArray *runs;     /* RmRun, in order */
    GArray *granules; /* RmExtent: the whole granules that these touch, neighbours together */
    uint64_t touched; /* bytes of these */
    /* Once asked for; both are empty if all has been before. */
    GArray *extents; /* RmExtent: what the far end is to be asked for, in order */
    GArray *asked;   /* RmExtent: the whole granules of these, neighbours together */
} RmPlan;

/* Looks at the pages of `pages` in the granules [start, end) of chunk `chunk` of block number `index` (bytes;
 * at most RM_PLAN_BYTES_MAX), and appends to `zeroes` (of RmZeroRange). No run is longer than `max_run`. */
RmPlan *rm_plan_new(RmSendState *state, uint32_t index, uint64_t chunk, RmExtent range, const RmBitmap *pages,
                    uint64_t max_run, GArray *zeroes);
void rm_plan_free(gpointer plan);

/* Bytes of the granules that would have to be asked for now. */
uint64_t rm_plan_need(const RmPlan *plan, const RmSendState *state);
/* Fills in extents and asked, and marks their granules. */
void rm_plan_ask(RmPlan *plan, RmSendState *state);
