/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What others may see of a session at the destination: its status while it runs, and its report at the end.
 *
 * The session's thread and its registration pool tell it what happens, the status socket reads it: all calls
 * are thread-safe, and never wait for long. It decides nothing.
 */
#pragma once

#include "common/reason.h"
#include "control/message.h"
#include "handover/journal.h"
#include "handover/states.h"
#include "transport/transport.h"

typedef struct RmView RmView;

/* `peer`: who called. */
RmView *rm_view_new(const RmHello *hello, const char *peer);
void rm_view_free(RmView *view); /* NULL is fine */

/* ---- what happens; NULL is fine throughout ---- */

void rm_view_state(RmView *view, RmState state);
void rm_view_transport(RmView *view, const char *name);
/* These extents (of RmExtent, in order) of one chunk became writable for the source, or no longer are; `us`:
 * how long that took. */
void rm_view_registered(RmView *view, const GArray *extents, gboolean released, int64_t us);
/* A round, or a part of it, has ended, with `landed` bytes since the session began; `zeroes` of RmZeroRange.
 */
void rm_view_round(RmView *view, uint64_t round, uint64_t landed, const GArray *zeroes);
void rm_view_landed(RmView *view, uint64_t landed);
void rm_view_state_bytes(RmView *view, uint64_t bytes);
/* The guest was let run, if that was due: what it took is counted from `committed` on. */
void rm_view_activated(RmView *view);
/* Why the session ends; the first one counts. */
void rm_view_problem(RmView *view, const GError *problem);

/* ---- who looks ---- */

/* The session as an object for `rdmamig status`; `landed` is newer than what the session has told, or 0.
 * Caller owns. */
json_object *rm_view_status(RmView *view, uint64_t landed);

/* Whether an operator's cancel still comes in time: the session had neither committed nor failed when last
 * heard of. */
gboolean rm_view_may_cancel(RmView *view);

/* At the end, with the journal's lock held: writes the session's report (handover/reports.h). Nothing without
 * a journal: what was refused leaves no file. */
void rm_view_keep(RmView *view, RmJournal *journal);
