/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A tracker tells which pages of the guest's RAM were written since they were last protected.
 *
 * The contract that everything else leans on: once arm() has returned, a write to any page that is populated,
 * or becomes so, is reported by the first scan() of that page which begins after the write, exactly once
 * (over-reporting is allowed, missing is not). Direct I/O in flight is the exception: its page is reported
 * when it is submitted, and its data may land later; the rounds (source/round.c) deal with that by fencing.
 *
 * All calls come from one thread, the session's. None may leave the VMM altered once free() has returned, and
 * the death of this process must have the same effect as free().
 */
#pragma once

#include "common/bitmap.h"
#include "memory/block.h"

typedef struct RmTracker RmTracker;

typedef struct {
    const char *name; /* as in --tracker and in the log */

    /* Attaches to the VMM and arms what is populated now. May block for as long as that takes; the VMM's
     * threads stand still for well under a millisecond. Reasons kernel-unsupported, privilege, attach,
     * tracker, guest-gone. */
    gboolean (*arm)(RmTracker *tracker, GError **error);

    /* Reads the written pages among `extents` (of RmExtent) of block number `index`, protects them again in
     * the same step, and sets their bits in `dirty`, one bit a 4 KiB page; bits already set stay. */
    gboolean (*scan)(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                     GError **error);

    /* The same without protecting: an estimate for the next round, or proof that a range is still clean. */
    gboolean (*peek)(RmTracker *tracker, unsigned index, const GArray *extents, RmBitmap *dirty,
                     GError **error);

    /* Unprotects in slices, detaches, frees. Accepts a tracker that was never armed. */
    void (*free)(RmTracker *tracker);
} RmTrackerOps;

struct RmTracker {
    const RmTrackerOps *ops;
};

/* `blocks` (of RmBlock*, borrowed, with hva set) live in the process `pid`. Linux 6.7 or newer; no privilege
 * needed beyond the right to ptrace the VMM. */
RmTracker *rm_tracker_uffd_async_new(pid_t pid, GPtrArray *blocks);

/* For tests: reports what rm_tracker_fake_touch() named. */
RmTracker *rm_tracker_fake_new(GPtrArray *blocks);
void rm_tracker_fake_touch(RmTracker *tracker, unsigned index, uint64_t page, uint64_t count);

static inline void rm_tracker_free(RmTracker *tracker)
{
    if (tracker != NULL)
        tracker->ops->free(tracker);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmTracker, rm_tracker_free)
