/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tells which pages of a block were punched out of its file since they were last looked at, also if they are
 * there again.
 *
 * Why the tracker can't: a punch leaves the write protection behind in the VMM's page tables. Whoever writes
 * the page next is reported; whoever only reads it gets a new page of zeroes, protected as the old one was.
 * The file is populated as before, nothing was written, and the contents have changed.
 *
 * How: by a mapping of our own, which nobody reads through. hold() maps a page there. Before the kernel takes
 * a page out of a file it unmaps it from every mapping, so as long as the page is still mapped it is the same
 * page; and only hold() maps one. What the kernel unmaps for other reasons (swap, migration) is named as
 * well: over-reporting is allowed.
 */
#pragma once

#include "common/bitmap.h"
#include "memory/block.h"

typedef struct RmPunchWatch RmPunchWatch;

/* `block` is borrowed; its file is opened anew for writing, which the kernel wants for this, and never
 * written. Reason balloon. */
RmPunchWatch *rm_punch_watch_new(const RmBlock *block, GError **error);
void rm_punch_watch_free(RmPunchWatch *watch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmPunchWatch, rm_punch_watch_free)

/* From now on a punch in [offset, offset + length), which is populated, is noticed. To be called before the
 * bytes are read that are to be kept current. (A hole is allocated: the caller has just seen that it is
 * none.) Where it fails the pages count as punched. Any thread. */
void rm_punch_watch_hold(RmPunchWatch *watch, uint64_t offset, uint64_t length);

/* Sets in `pages` those of `among`, within `extents` (of RmExtent), that may have been punched since they
 * were held, or never were. While no thread is in hold(). Reason tracker. */
gboolean rm_punch_watch_collect(RmPunchWatch *watch, const GArray *extents, const RmBitmap *among,
                                RmBitmap *pages, GError **error);
