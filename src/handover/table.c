/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table of the handover. Why each duty is there: docs/handover.md; that it has to be: tests/model/. */
#include "handover/table.h"

#define D(id) RM_DUTY(id)
#define SOURCE(from, event, to, duties)                                                                      \
    {                                                                                                        \
        RM_SIDE_SOURCE, RM_STATE_##from, RM_EVENT_##event, RM_STATE_##to, duties                             \
    }
#define DESTINATION(from, event, to, duties)                                                                 \
    {                                                                                                        \
        RM_SIDE_DESTINATION, RM_STATE_##from, RM_EVENT_##event, RM_STATE_##to, duties                        \
    }
#define ROLL_BACK (D(RESUME) | D(RECORD))
#define ABORT (D(RECORD) | D(END_SPENT))

const RmTransition rm_table[] = {
    SOURCE(CONNECTING, CONNECTED, PREFLIGHT, 0),
    SOURCE(CONNECTING, FAILED, REFUSED, 0),
    SOURCE(CONNECTING, CANCELLED, CANCELLED, 0),
    SOURCE(PREFLIGHT, ACCEPTED, ATTACHING, D(RECORD) | D(SYNC)),
    SOURCE(PREFLIGHT, CHECKED, DONE, 0),
    SOURCE(PREFLIGHT, FAILED, REFUSED, 0),
    SOURCE(PREFLIGHT, CANCELLED, CANCELLED, 0),
    SOURCE(ATTACHING, ARMED, PRECOPY, 0),
    SOURCE(ATTACHING, FAILED, REFUSED, D(RECORD)),
    SOURCE(ATTACHING, CANCELLED, CANCELLED, D(RECORD)),
    SOURCE(ATTACHING, SETTLE, FAILED, D(RECORD)),
    SOURCE(PRECOPY, CONVERGED, SWITCHOVER, D(RECORD) | D(SYNC) | D(PAUSE)),
    SOURCE(PRECOPY, FAILED, FAILED, D(RECORD)),
    SOURCE(PRECOPY, CANCELLED, CANCELLED, D(RECORD)),
    SOURCE(SWITCHOVER, PREPARED, PREPARED, 0),
    SOURCE(SWITCHOVER, FAILED, FAILED, ROLL_BACK),
    SOURCE(SWITCHOVER, CANCELLED, CANCELLED, ROLL_BACK),
    SOURCE(SWITCHOVER, SETTLE, FAILED, ROLL_BACK),
    SOURCE(PREPARED, COMMIT, COMMITTED, D(RECORD) | D(SYNC) | D(SEND_COMMIT)),
    SOURCE(PREPARED, FAILED, FAILED, ROLL_BACK),
    SOURCE(PREPARED, CANCELLED, CANCELLED, ROLL_BACK),
    SOURCE(COMMITTED, RUNNING, DONE, D(RECORD) | D(END)),
    SOURCE(COMMITTED, LOST, COMMITTED, D(ASK)),
    SOURCE(COMMITTED, SETTLE, COMMITTED, D(ASK)),
    SOURCE(COMMITTED, FATE_DONE, DONE, D(RECORD) | D(END)),
    SOURCE(COMMITTED, FATE_COMMITTED, COMMITTED, 0),
    SOURCE(COMMITTED, FATE_STUCK, DOUBTFUL, D(RECORD)),
    SOURCE(COMMITTED, FATE_ABORTED, FAILED, ROLL_BACK),
    SOURCE(COMMITTED, FATE_UNKNOWN, DOUBTFUL, D(RECORD)),
    SOURCE(DONE, SETTLE, DONE, D(END)),
    SOURCE(DOUBTFUL, SETTLE, DOUBTFUL, D(ASK)),
    SOURCE(DOUBTFUL, FATE_DONE, DONE, D(RECORD) | D(END)),
    SOURCE(DOUBTFUL, FATE_COMMITTED, DOUBTFUL, 0),
    SOURCE(DOUBTFUL, FATE_ABORTED, FAILED, ROLL_BACK),
    SOURCE(DOUBTFUL, FATE_UNKNOWN, DOUBTFUL, 0),
    SOURCE(DOUBTFUL, FORCE_RESUME, FAILED, ROLL_BACK),

    DESTINATION(CONNECTING, HELLO, PRECOPY, D(RECORD) | D(SYNC) | D(REPLY)),
    DESTINATION(CONNECTING, CHECKED, DONE, D(REPLY)),
    DESTINATION(CONNECTING, FAILED, REFUSED, 0),
    DESTINATION(PRECOPY, LOAD, SWITCHOVER, D(RECORD) | D(LOAD)),
    DESTINATION(PRECOPY, FAILED, FAILED, ABORT),
    DESTINATION(PRECOPY, CANCELLED, CANCELLED, ABORT),
    DESTINATION(PRECOPY, SETTLE, FAILED, ABORT),
    DESTINATION(PRECOPY, QUERY, FAILED, D(RECORD) | D(ANSWER)),
    DESTINATION(SWITCHOVER, LOADED, PREPARED, D(REPLY)),
    DESTINATION(SWITCHOVER, FAILED, FAILED, ABORT),
    DESTINATION(SWITCHOVER, CANCELLED, CANCELLED, ABORT),
    DESTINATION(SWITCHOVER, SETTLE, FAILED, ABORT),
    DESTINATION(SWITCHOVER, QUERY, FAILED, D(RECORD) | D(SYNC) | D(ANSWER)),
    DESTINATION(PREPARED, COMMIT, COMMITTED, D(RECORD) | D(SYNC) | D(RUN)),
    DESTINATION(PREPARED, FAILED, FAILED, ABORT),
    DESTINATION(PREPARED, CANCELLED, CANCELLED, ABORT),
    DESTINATION(COMMITTED, ACTIVATED, DONE, D(RECORD) | D(REPLY)),
    DESTINATION(COMMITTED, ACTIVATE_FAILED, COMMITTED, D(REPLY)),
    DESTINATION(COMMITTED, GONE, DOUBTFUL, D(RECORD)),
    DESTINATION(COMMITTED, SETTLE, COMMITTED, D(SYNC) | D(RUN)),
    DESTINATION(COMMITTED, QUERY, COMMITTED, D(SYNC) | D(ANSWER)),
    DESTINATION(DONE, QUERY, DONE, D(ANSWER)),
    DESTINATION(FAILED, SETTLE, FAILED, D(END_SPENT)),
    DESTINATION(FAILED, QUERY, FAILED, D(SYNC) | D(ANSWER)),
    DESTINATION(CANCELLED, SETTLE, CANCELLED, D(END_SPENT)),
    DESTINATION(CANCELLED, QUERY, CANCELLED, D(ANSWER)),
    DESTINATION(DOUBTFUL, QUERY, DOUBTFUL, D(ANSWER)),
};
const unsigned rm_table_rows = G_N_ELEMENTS(rm_table);

#define FACTS(side, state, owner, guest, bound, failure)                                                     \
    {                                                                                                        \
        RM_SIDE_##side, RM_STATE_##state, RM_OWNER_##owner, guest, bound, failure                            \
    }

const RmStateFacts rm_table_facts[] = {
    FACTS(SOURCE, CONNECTING, SOURCE, "runs, not touched", "10 s to connect (CONNECT_TIMEOUT_MS)",
          "refused; nothing to undo"),
    FACTS(SOURCE, PREFLIGHT, SOURCE, "runs, not touched", "120 s for `accept` (HELLO_TIMEOUT_MS)",
          "refused; nothing to undo"),
    FACTS(SOURCE, ATTACHING, SOURCE, "runs", "10 s for the data channels (DATA_TIMEOUT_MS)",
          "refused; the tracker is taken off"),
    FACTS(SOURCE, PRECOPY, SOURCE, "runs", "`--max-rounds`, `--timeout`; a silent peer 10 s (TIMEOUT_MS)",
          "failed; it runs on"),
    FACTS(SOURCE, SWITCHOVER, SOURCE, "paused by us",
          "each QMP command 30 s, a stopped round 120 s, `prepared` 120 s (LOAD_TIMEOUT_MS); a silent peer "
          "10 s",
          "rolled back: it runs as before, or stays paused if it was"),
    FACTS(SOURCE, PREPARED, SOURCE, "paused by us", "one QMP command, 30 s", "rolled back"),
    FACTS(SOURCE, COMMITTED, DESTINATION, "paused by us",
          "`running` 120 s (RUN_TIMEOUT_MS), then asked for 30 s (QUERY_FOR_MS)",
          "the destination is asked; its answer decides, no answer is doubtful"),
    FACTS(SOURCE, DONE, DESTINATION, "ended: it runs at the destination", "end", "–"),
    FACTS(SOURCE, REFUSED, SOURCE, "as before", "end", "–"),
    FACTS(SOURCE, FAILED, SOURCE, "as before", "end", "–"),
    FACTS(SOURCE, CANCELLED, SOURCE, "as before", "end", "–"),
    FACTS(SOURCE, DOUBTFUL, UNKNOWN, "paused", "none: until `rdmamig resolve`",
          "stays so until the destination answers, or the operator gives his word"),

    FACTS(DESTINATION, CONNECTING, SOURCE, "waits, or is not started yet",
          "10 s for `hello` (HELLO_TIMEOUT_MS)", "refused; nothing to undo"),
    FACTS(DESTINATION, PRECOPY, SOURCE, "waits; its RAM is written", "a silent peer 10 s (TIMEOUT_MS)",
          "failed; the VMM waits on, one that --exec started is ended"),
    FACTS(DESTINATION, SWITCHOVER, SOURCE, "loads the state, and is used up", "QMP, 30 s; a silent peer 10 s",
          "failed; the VMM is ended"),
    FACTS(DESTINATION, PREPARED, SOURCE, "loaded, paused", "a silent peer 10 s (TIMEOUT_MS)",
          "failed; the VMM is ended"),
    FACTS(DESTINATION, COMMITTED, DESTINATION, "is let run, or left paused if it was", "QMP, 30 s a try",
          "stays the destination's: guardian, rdmamigd's next start and `resolve` try again"),
    FACTS(DESTINATION, DONE, DESTINATION, "runs, or is paused as wished", "end", "–"),
    FACTS(DESTINATION, REFUSED, SOURCE, "not touched", "end", "–"),
    FACTS(DESTINATION, FAILED, SOURCE, "ended if its load was begun, else waits on", "end; irrevocable", "–"),
    FACTS(DESTINATION, CANCELLED, SOURCE, "the same", "end; irrevocable", "–"),
    FACTS(DESTINATION, DOUBTFUL, UNKNOWN, "gone, after committed and before done: it may have run", "end",
          "–"),
};
const unsigned rm_table_facts_count = G_N_ELEMENTS(rm_table_facts);

static const char *const event_names[] = {
#define X(id, name) [RM_EVENT_##id] = name,
    RM_EVENTS(X)
#undef X
};

static const char *const duty_names[] = {
#define X(id, name) [RM_DUTY_INDEX_##id] = name,
    RM_DUTIES(X)
#undef X
};

const char *rm_side_name(RmSide side)
{
    return side == RM_SIDE_SOURCE ? "source" : "destination";
}

const char *rm_event_name(RmEvent event)
{
    g_assert((unsigned)event < RM_EVENT_COUNT);
    return event_names[event];
}

const char *rm_duty_name(RmDutyIndex duty)
{
    g_assert((unsigned)duty < RM_DUTY_COUNT);
    return duty_names[duty];
}

const RmTransition *rm_table_step_in(const RmTransition *rows, unsigned count, RmSide side, RmState from,
                                     RmEvent event)
{
    for (unsigned i = 0; i < count; i++) {
        if (rows[i].side == side && rows[i].from == from && rows[i].event == event)
            return &rows[i];
    }
    return NULL;
}

/* A state that is entered by a row with RECORD is in the journal itself; one that is entered without may find
 * there whatever its predecessor may. */
unsigned rm_table_recorded_in(const RmTransition *rows, unsigned count, RmSide side, RmState state)
{
    unsigned mask = 1u << state, before;
    do {
        before = mask;
        for (unsigned i = 0; i < count; i++) {
            if (rows[i].side == side && (mask & (1u << rows[i].to)) != 0 &&
                (rows[i].duties & RM_DUTY(RECORD)) == 0)
                mask |= 1u << rows[i].from;
        }
    } while (mask != before);
    return mask;
}

const RmTransition *rm_table_step(RmSide side, RmState from, RmEvent event)
{
    return rm_table_step_in(rm_table, rm_table_rows, side, from, event);
}

unsigned rm_table_recorded(RmSide side, RmState state)
{
    return rm_table_recorded_in(rm_table, rm_table_rows, side, state);
}
