/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settling at the source: what the guest is due when the daemon of its session has died. Used by the guardian
 * and by `rdmamig resolve`, and nothing else decides it.
 *
 * By the journal's latest record:
 *   before switchover     the guest was never paused by us: nothing is due but the record (failed);
 *   switchover, prepared  the source owns it: roll back, then the record (failed);
 *   committed, doubtful   the destination is asked (query, with the token). committed: the guest is there,
 * ours stays paused, for the operator to end (done). aborted: irrevocable there, roll back (failed). unknown,
 * or no answer: doubtful; nothing is resumed but by the operator's word that the peer is fenced. an end
 * nothing.
 */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

typedef struct {
    RmState state; /* the journal's, afterwards */
    RmOwner owner;
    char *where; /* "guest NAME runs on HOST", …, as in a session's result */
    char *next;  /* command, or NULL */
} RmSettled;

void rm_settled_clear(RmSettled *settled);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmSettled, rm_settled_clear)

/* The caller holds the journal's lock. `guest` is NULL if its VMM is gone. `ask_for_ms` bounds the asking.
 * FALSE if what was due could not be done, with where and next filled all the same. */
gboolean rm_settle_source(RmJournal *journal, RmGuest *guest, gboolean force_resume, unsigned ask_for_ms,
                          RmSettled *ret_settled, GError **error);
