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
    SOURCE(COMMITTED, FATE_COMMITTED, DONE, D(RECORD)),
    SOURCE(COMMITTED, FATE_STUCK, DOUBTFUL, D(RECORD)),
    SOURCE(COMMITTED, FATE_ABORTED, FAILED, ROLL_BACK),
    SOURCE(COMMITTED, FATE_UNKNOWN, DOUBTFUL, D(RECORD)),
    SOURCE(DOUBTFUL, SETTLE, DOUBTFUL, D(ASK)),
    SOURCE(DOUBTFUL, FATE_COMMITTED, DONE, D(RECORD)),
    SOURCE(DOUBTFUL, FATE_ABORTED, FAILED, ROLL_BACK),
    SOURCE(DOUBTFUL, FATE_UNKNOWN, DOUBTFUL, 0),
    SOURCE(DOUBTFUL, FORCE_RESUME, FAILED, ROLL_BACK),

    DESTINATION(CONNECTING, HELLO, PRECOPY, D(RECORD) | D(SYNC) | D(REPLY)),
    DESTINATION(CONNECTING, CHECKED, DONE, D(REPLY)),
    DESTINATION(CONNECTING, FAILED, REFUSED, 0),
    DESTINATION(PRECOPY, LOAD, SWITCHOVER, D(RECORD) | D(LOAD)),
    DESTINATION(PRECOPY, FAILED, CANCELLED, D(RECORD) | D(END_STARTED)),
    DESTINATION(PRECOPY, SETTLE, CANCELLED, D(RECORD) | D(END_STARTED)),
    DESTINATION(PRECOPY, QUERY, CANCELLED, D(RECORD) | D(ANSWER)),
    DESTINATION(SWITCHOVER, LOADED, PREPARED, D(REPLY)),
    DESTINATION(SWITCHOVER, FAILED, FAILED, D(RECORD) | D(END)),
    DESTINATION(SWITCHOVER, SETTLE, FAILED, D(RECORD) | D(END)),
    DESTINATION(SWITCHOVER, QUERY, FAILED, D(RECORD) | D(SYNC) | D(ANSWER)),
    DESTINATION(PREPARED, COMMIT, COMMITTED, D(RECORD) | D(SYNC) | D(RUN)),
    DESTINATION(PREPARED, FAILED, FAILED, D(RECORD) | D(END)),
    DESTINATION(COMMITTED, ACTIVATED, DONE, D(RECORD) | D(REPLY)),
    DESTINATION(COMMITTED, ACTIVATE_FAILED, COMMITTED, D(REPLY)),
    DESTINATION(COMMITTED, GONE, DONE, D(RECORD)),
    DESTINATION(COMMITTED, SETTLE, COMMITTED, D(SYNC) | D(RUN)),
    DESTINATION(COMMITTED, QUERY, COMMITTED, D(SYNC) | D(ANSWER)),
    DESTINATION(DONE, QUERY, DONE, D(ANSWER)),
    DESTINATION(FAILED, SETTLE, FAILED, D(END)),
    DESTINATION(FAILED, QUERY, FAILED, D(SYNC) | D(ANSWER)),
    DESTINATION(CANCELLED, SETTLE, CANCELLED, D(END_STARTED)),
    DESTINATION(CANCELLED, QUERY, CANCELLED, D(ANSWER)),
};
const unsigned rm_table_rows = G_N_ELEMENTS(rm_table);

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
