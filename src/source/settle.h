/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the source: what the guest is due when the daemon of its session has died. Used by the guardian
 * and by `rdmamig resolve`, and nothing else decides it.
 *
 * What is due, and what the journal says next, are the rows of the handover's table for `settle`, for the
 * answer of a destination that a row tells us to ask, and for the operator's word where there was no answer.
 * Here is only how their duties are carried out: the old VMM is ended only if it still holds the saved guest
 * and was not to be kept; a guest is rolled back to what it was before, and not let run if it was paused.
 *
 * Why nobody else acts at the same time. Whoever settles holds the journal's lock (checked here), and whoever
 * might append to a source's journal does: its daemon, from before the file has a name until it has done its
 * last deed, and the guardian, by the same open file. The lock lasts until the last process with that open
 * file is gone, and nothing unlocks it. So, of those who could let the guest run or hand it over:
 *   a daemon that is stopped (SIGSTOP), its guardian alive   the guardian waits for the end of the daemon's
 *                         process, or brings it about; `resolve` finds the lock held, and does nothing;
 *   a daemon that is killed, its guardian settling, `resolve` by hand   the same: the guardian has the lock;
 *   a guardian that is killed, the daemon alive   the daemon has the lock;
 *   both stopped, one of them killed   the other has the lock;
 *   both gone   the first one to take the lock settles, the next one finds it held, or what the first did.
 * flock(2), by which records exclude each other, does not do so between daemon and guardian, which share the
 * open file. It need not: the guardian settles only when no thread of the daemon is left.
 *
 * Why no roll-back follows `committed` without an answer. The guest is resumed first, and recorded
 * afterwards, so what counts is that nothing can be recorded between our look at the journal and the resume:
 * under the lock nobody else is there to do it. A daemon that wakes up finds its session as it left it,
 * because it had the lock all the while.
 *
 * Why no crash in between gives two running guests: the guest is resumed only if `commit` was not sent (it is
 * recorded, on disk, before it is), or if the destination has put on its disk that it never takes the guest;
 * and dying between that and our record makes the next one ask again, who gets the same answer. Our VMM is
 * ended only after the destination's journal says done.
 */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

typedef struct {
    RmState state; /* the journal's, afterwards */
    RmOwner owner;
    char *where;  /* "guest NAME runs on HOST", …, as in a session's result */
    char *detail; /* why it is not settled; NULL if it is */
    char *next;   /* what to do, or NULL */
} RmSettled;

void rm_settled_clear(RmSettled *settled);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmSettled, rm_settled_clear)

/* The caller holds the journal's lock, or nothing is done (reason journal). `guest` is NULL if its VMM is
 * gone. `ask_for_ms` bounds the asking; `tls_creds` is the folder to ask with, NULL: the journal's. FALSE if
 * what was due could not be done, with where and next filled all the same (empty only if the journal can't be
 * read). `ret_settled` is the caller's to clear in any case.
 */
gboolean rm_settle_source(RmJournal *journal, RmGuest *guest, gboolean force_resume, unsigned ask_for_ms,
                          const char *tls_creds, RmSettled *ret_settled, GError **error);

/* "guest NAME runs on HOST", as its VMM says right now, for this host's guest; caller frees. */
char *rm_settle_whereabouts(RmGuest *guest, const char *name);
