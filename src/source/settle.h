/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the source: what the guest is due when the daemon of its session has died. Used by the guardian
 * and by `rdmamig resolve`, and nothing else decides it.
 *
 * By the journal's latest record:
 *   before switchover     the guest was never paused by us: nothing is due but the record (failed);
 *   switchover, prepared  `commit` was not sent, so the source owns it: roll back, then the record (failed);
 *   committed, doubtful   the destination is asked (query, with the token), which decides:
 *     aborted             irrevocable there: roll back, then the record (failed);
 *     committed, done     the guest is there as it was to be: the record (done), and then as below;
 *     committed           the guest is there, but not known to run: ours stays paused, and the journal as it
 * is; unknown, no answer  doubtful: ours stays paused. Only the operator's word that the peer is fenced
 *                         (force_resume) rolls back;
 *   done                  our VMM, if it still holds the saved guest and was not to be kept, is ended;
 *   another end           nothing.
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

/* The caller holds the journal's lock. `guest` is NULL if its VMM is gone. `ask_for_ms` bounds the asking.
 * FALSE if what was due could not be done, with where and next filled all the same (empty only if the journal
 * can't be read). `ret_settled` is the caller's to clear in any case. */
gboolean rm_settle_source(RmJournal *journal, RmGuest *guest, gboolean force_resume, unsigned ask_for_ms,
                          RmSettled *ret_settled, GError **error);

/* "guest NAME runs on HOST", as its VMM says right now, for this host's guest; caller frees. */
char *rm_settle_whereabouts(RmGuest *guest, const char *name);
