/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What has become of a session that was settled, in the operator's words. */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"
#include "handover/states.h"

typedef struct {
    RmState state; /* the journal's, afterwards */
    RmOwner owner;
    char *where;  /* "guest NAME runs on HOST", …, as in a session's result */
    char *detail; /* why it is not settled; NULL if it is */
    char *next;   /* what to do, or NULL */
} RmSettled;

void rm_settled_clear(RmSettled *settled);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmSettled, rm_settled_clear)

/* "guest NAME runs on HOST", as its VMM says right now, for this host's guest; caller frees. */
char *rm_settle_whereabouts(RmGuest *guest, const char *name);

/* Fills owner, where and next for the destination's side of a session in settled->state. Takes `whereabouts`,
 * which counts if the guest is here; NULL: its VMM has ended. */
void rm_settled_at_destination(RmSettled *settled, const RmJournalFacts *facts, char *whereabouts);
