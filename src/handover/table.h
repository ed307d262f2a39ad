/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The table of the handover: for each side and state, which events are legal, what state follows, and what
 * has to be done on the way. There is no other: the daemons, the guardians and `resolve` go by it,
 * docs/handover.md shows it, and tests/model/ walks every interleaving that it allows.
 *
 * An actor is whoever looks after a session on one side (the daemon, after its death the guardian, then
 * whoever holds the journal's lock), or who answers a query. It takes an event, looks up the row, and carries
 * out the row's duties in the order of RM_DUTIES, one for all rows. Then it is in the row's state.
 *
 * What makes it safe with several actors is RECORD: it appends to the journal only if the journal's latest
 * record is still one under which the actor could be in `from` (rm_table_recorded()). An actor whose RECORD
 * or SYNC was refused or has failed does nothing more of that row: it reads the journal and takes the event
 * `settle` in the state it finds there. One that cannot even do that lets go, and changes nothing.
 */
#pragma once

#include "handover/states.h"

#define RM_EVENTS(X)                                                                                         \
    X(CONNECTED, "connected")           /* the control connection is there */                                \
    X(HELLO, "hello")                   /* destination: a source wants to begin, and may */                  \
    X(CHECKED, "checked")               /* --dry-run: all checks passed */                                   \
    X(ACCEPTED, "accepted")             /* source: `accept` has come */                                      \
    X(ARMED, "armed")                   /* source: dirty tracking works */                                   \
    X(CONVERGED, "converged")           /* source: the guest is to be stopped now */                         \
    X(LOAD, "load")                     /* destination: `load` has come */                                   \
    X(LOADED, "loaded")                 /* destination: its VMM has the state */                             \
    X(PREPARED, "prepared")             /* source: `prepared` has come */                                    \
    X(COMMIT, "commit")                 /* source: the last check passed; destination: `commit` has come */  \
    X(RUNNING, "running")               /* source: `running` has come */                                     \
    X(ACTIVATED, "activated")           /* destination: the guest runs, or is paused as wished */            \
    X(ACTIVATE_FAILED, "not-activated") /* destination: the guest is here, and does not run */               \
    X(GONE, "gone")                     /* destination: the VMM with the guest has ended */                  \
    X(FAILED, "failed")                 /* something failed, here or there */                                \
    X(CANCELLED, "cancelled")           /* the operator's wish */                                            \
    X(LOST, "lost")                     /* no `running`: a failure, a time-out, or the connection ended */   \
    X(SETTLE, "settle")                 /* the record that an actor finds, and that isn't its own doing */   \
    X(FATE_DONE, "fate-done")           /* source: asked, the destination says that the guest runs */        \
    X(FATE_COMMITTED, "fate-committed") /* source: it has the guest, and does not say that it runs yet */    \
    X(FATE_STUCK, "fate-stuck")         /* the same, after word that the guest did not run there */          \
    X(FATE_ABORTED, "fate-aborted")     /* source: another answer */                                         \
    X(FATE_UNKNOWN, "fate-unknown")     /* source: it can't tell what became of it, or nobody answers */     \
    X(QUERY, "query")                   /* destination: a source asks after the session */                   \
    X(FORCE_RESUME, "force-resume")     /* source: the operator's word that the destination is fenced */

typedef enum {
#define X(id, name) RM_EVENT_##id,
    RM_EVENTS(X)
#undef X
        RM_EVENT_COUNT
} RmEvent;

/* In the order in which a row's duties are carried out: what must be true before the record is on disk stands
 * before it, what may be true only once it is stands behind it. */
#define RM_DUTIES(X)                                                                                         \
    X(RESUME, "resume")           /* source: roll the guest back, so that it is as it was before */          \
    X(RECORD, "record")           /* the new state, in the journal */                                        \
    X(SYNC, "sync")               /* the journal, on disk, whoever wrote it */                               \
    X(PAUSE, "pause")             /* source: stop the guest */                                               \
    X(LOAD, "load")               /* destination: hand the VMM the state */                                  \
    X(SEND_COMMIT, "send commit") /* source */                                                               \
    X(RUN, "run")                 /* destination: let the guest run, or leave it paused, as recorded; never  \
                                     one that has been handed on since */                                    \
    X(ASK, "ask")                 /* source: query, until an answer or the time-out */                       \
    X(ANSWER, "answer")           /* destination: the query */                                               \
    X(REPLY, "reply")             /* destination: to the request, if its connection is still there */        \
    X(END_SPENT, "end if spent") /* destination: end the VMM, if its load is on record, or if --exec started \
                                    it for this session */                                                   \
    X(END, "end")                /* source: end the old VMM, if it is still paused */

typedef enum {
#define X(id, name) RM_DUTY_INDEX_##id,
    RM_DUTIES(X)
#undef X
        RM_DUTY_COUNT
} RmDutyIndex;

#define RM_DUTY(id) (1u << RM_DUTY_INDEX_##id)

typedef struct {
    RmSide side;
    RmState from;
    RmEvent event;
    RmState to;
    unsigned duties; /* of RM_DUTY() */
} RmTransition;

/* What stands in docs/handover.md beside a state. */
typedef struct {
    RmSide side;
    RmState state;
    RmOwner owner;       /* as far as this side knows */
    const char *guest;   /* what this side's guest does */
    const char *bound;   /* what ends the state if nothing else does: a time-out and its constant */
    const char *failure; /* what a failure leads to */
} RmStateFacts;

extern const RmTransition rm_table[];
extern const unsigned rm_table_rows;
extern const RmStateFacts rm_table_facts[];
extern const unsigned rm_table_facts_count;

const char *rm_side_name(RmSide side);
const char *rm_event_name(RmEvent event);
const char *rm_duty_name(RmDutyIndex duty);

/* The row for an event, or NULL: it is illegal then. */
const RmTransition *rm_table_step(RmSide side, RmState from, RmEvent event);
/* The records (RM_STATE_BITs) that the journal may show while an actor is in `state`: not every state is
 * recorded. */
unsigned rm_table_recorded(RmSide side, RmState state);

/* The same for any table: the model walks altered ones. */
const RmTransition *rm_table_step_in(const RmTransition *rows, unsigned count, RmSide side, RmState from,
                                     RmEvent event);
unsigned rm_table_recorded_in(const RmTransition *rows, unsigned count, RmSide side, RmState state);
