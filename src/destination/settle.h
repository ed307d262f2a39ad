/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the destination: what a session's VMM is due when its daemon has died. Used by the guardian, by
 * rdmamigd when it starts (for sessions whose guardian died, too), and by `rdmamig resolve`.
 *
 * What is due, and what the journal says next, are the rows of the handover's table for `settle`, and for
 * what has come of letting the guest run. Here is only how their duties are carried out: a VMM is ended only
 * if its load was tried or if it was started for the session (nobody else's `cont` may ever find it), and if
 * it does not run; a guest is let run, or left paused, as the record of the commit says.
 *
 * Why nobody else acts at the same time: as at the source (source/settle.h), the journal's lock, which daemon
 * and guardian share, and which is checked here. Only queries come without it, and only record an abort, or
 * look; of that and our record one comes first, and the other is told. Letting the guest run comes after the
 * record that a query can't undo.
 *
 * Why no crash in between gives two running guests: this guest runs only after `committed` is on disk, and
 * then no query is ever answered "aborted"; a VMM is ended only after `failed` is in the journal, which no
 * commit follows. Dying between the record and the deed leaves the record, by which the next one to settle
 * does the same again; and each deed may be done twice: a guest that has been handed on since is not let run
 * (guest.h, activate()), nor does a later session begin with it before this one is settled
 * (handover/earlier.h).
 */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

/* The caller holds the journal's lock, or nothing is done (reason journal). `guest` is NULL if its VMM is
 * gone. *ret_state (may be NULL): the journal's, afterwards. FALSE if what was due could not be done: then
 * *ret_state is set, too, unless the journal could not be read. */
gboolean rm_settle_destination(RmJournal *journal, RmGuest *guest, RmState *ret_state, GError **error);

/* Whether there is anything to settle: an open or a committed session, or an ended one's VMM that is still
 * there. */
gboolean rm_settle_destination_due(RmJournal *journal);
