/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Guest memory at the source: what of a block may be written at the far side, with which key, and from where
 * it is read.
 *
 * It is read in place, through registrations made ahead of the writes: local access only, so that their keys
 * are worth nothing to anybody else. But registering populates: a granule (RM_CHUNK_MIN) with a hole in its
 * file would grow, and a page that the guest punches out of a registered granule and fills again is another
 * page, of which the card knows nothing: it would send the old bytes. So only granules that are whole in
 * their file are registered, neighbours together; the rest is read by us and sent as a copy, and so is
 * everything if the guest may punch holes at any time (RmTxParams.copy). Whether a granule is whole is looked
 * at again in each round, until it is: holes get filled, and only the guests of `copy` make new ones.
 *
 * Copying is also the way out when the card, the limit of locked memory or the window allows no further
 * registration.
 *
 * The window: a channel has at most so many bytes registered. Room is made by ending its oldest
 * registrations, each once the writes that read through it have completed, for until then the card may still
 * read it.
 *
 * A chunk's registrations belong to its channel's thread. The far side's regions may come from any thread:
 * they have a lock.
 */
#pragma once

#include "transport/transport.h"
#include "transport/verbs/pieces.h"
#include "transport/verbs/writer.h"

typedef struct RmVerbsOrigin RmVerbsOrigin;

/* What one channel has registered of all blocks. */
typedef struct {
    uint64_t limit; /* bytes; 0: no bound, and nothing below is kept */
    GMutex lock;    /* below: before the first post several threads register at once */
    uint64_t used;
    GQueue oldest; /* what is registered, as it was */
} RmVerbsWindow;

void rm_verbs_window_init(RmVerbsWindow *window);
void rm_verbs_window_clear(RmVerbsWindow *window);

RmVerbsOrigin *rm_verbs_origin_new(const RmBlock *block, uint64_t chunk_size);
/* Deregisters; the queue pairs must be broken. */
void rm_verbs_origin_free(RmVerbsOrigin *origin, RmVerbsRegions *regions);

/* What the far side answered. FALSE if a region is not within one chunk. Any thread. */
gboolean rm_verbs_origin_add(RmVerbsOrigin *origin, const RmRegion *regions, unsigned n);
/* Forgets the regions that have a byte in [start, end). Any thread. */
void rm_verbs_origin_forget(RmVerbsOrigin *origin, uint64_t start, uint64_t end);
/* The region that holds `offset`; FALSE if none does. */
gboolean rm_verbs_origin_find(RmVerbsOrigin *origin, uint64_t offset, RmRegion *ret_region);

/* Registers what is not yet of the whole granules in [start, end), which lie in one chunk of the writer's
 * channel. A failure to do so is not an error: it is sent as a copy then; the text is left in `ret_problem`,
 * if that holds none. A negative errno if waiting for the window's oldest writes failed. RmTxOps.prepare()
 * says which threads. */
int rm_verbs_origin_prepare(RmVerbsOrigin *origin, uint64_t start, uint64_t end, uint32_t round,
                            RmVerbsWindow *window, RmVerbsRegions *regions, RmVerbsWriter *writer,
                            GError **ret_problem);
/* The piece to read `offset` through, or NULL: send a copy of what lies before *ret_end, at most `end`. The
 * chunk's channel's thread. */
RmVerbsPiece *rm_verbs_origin_piece(RmVerbsOrigin *origin, uint64_t offset, uint64_t end, uint64_t *ret_end);
