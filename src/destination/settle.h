/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the destination: what a session's VMM is due when its daemon has died. Used by the guardian, by
 * rdmamigd when it starts (for sessions whose guardian died, too), and by `rdmamig resolve`.
 *
 * By the journal's latest record:
 *   committed           the record is synced, and the guest is let run (or left paused, as it says), then
 * done; before that         failed first, on disk, which is irrevocable; then a VMM whose load was tried, or
 * that was started for the session, is ended: nobody else's `cont` may ever find it; failed, cancelled   that
 * VMM, if whoever recorded it did not live to end it; done                nothing.
 *
 * Why no crash in between gives two running guests: this guest runs only after `committed` is on disk, and
 * then no query is ever answered "aborted"; a VMM is ended only after `failed` is in the journal, which no
 * commit follows. Dying between the record and the deed leaves the record, by which the next one to settle
 * does the same again; and each deed may be done twice.
 */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

/* The caller holds the journal's lock. `guest` is NULL if its VMM is gone. *ret_state (may be NULL): the
 * journal's, afterwards. FALSE if what was due could not be done: then *ret_state is set, too, unless the
 * journal could not be read. */
gboolean rm_settle_destination(RmJournal *journal, RmGuest *guest, RmState *ret_state, GError **error);

/* Whether there is anything to settle: an open or a committed session, or an ended one's VMM that is still
 * there. */
gboolean rm_settle_destination_due(RmJournal *journal);
