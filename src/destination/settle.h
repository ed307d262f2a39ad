/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the destination: what a session's VMM is due when its daemon has died. Used by the guardian, by
 * rdmamigd when it starts (for sessions whose guardian died, too), and by `rdmamig resolve`.
 *
 * By the journal's latest record: committed: the record is synced, and the guest is let run (or left paused,
 * as it says), then done. Before that: failed first, which is irrevocable; then a VMM whose load was tried,
 * or that was started for the session, is ended: nobody else's `cont` may ever find it.
 */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

/* The caller holds the journal's lock. `guest` is NULL if its VMM is gone. */
gboolean rm_settle_destination(RmJournal *journal, RmGuest *guest, RmState *ret_state, GError **error);
