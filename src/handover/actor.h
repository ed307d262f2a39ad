/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * An actor that goes by the journal: who settles a session, or answers a query.
 *
 * It reads the latest record, takes an event in that state, and carries out the duties of the table's row for
 * it, in the table's order; what is done, and what the journal says next, is the row's, and nobody else's
 * decision. So what tests/model/ walks is what is executed. Where the table has no row for the event nothing
 * is done.
 */
#pragma once

#include "handover/journal.h"
#include "handover/table.h"

typedef struct RmActor RmActor;

/* How this kind of actor carries out a duty. FALSE: nothing more of the row is done. */
typedef gboolean (*RmDutyFunc)(RmActor *actor, GError **error);

struct RmActor {
    RmJournal *journal; /* borrowed */
    const RmDutyFunc
        *duties;             /* by RmDutyIndex; NULL: not for this actor. `record` and `sync` are done here */
    RmJournalRecord record;  /* the latest; its state is the actor's own */
    json_object *note;       /* for the next record; borrowed; NULL: none */
    const RmTransition *row; /* the one that was begun last; NULL: none */
};

void rm_actor_clear(RmActor *actor);

/* Reads the journal: the actor is in the state that is found there. */
gboolean rm_actor_look(RmActor *actor, GError **error);

/* Takes an event. If the journal, meanwhile, says something else than what the row began in, the actor looks
 * again, and takes the event in that state: fit for `settle` and `query` of an actor that shares its journal.
 * Reason journal if the table has no row, or if it could not be recorded: nothing more is done then. */
gboolean rm_actor_take(RmActor *actor, RmEvent event, GError **error);

/* Whether an actor would let go of a session in this state at once: an end for which nothing is due. */
gboolean rm_actor_is_idle(RmSide side, RmState state);
