/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Names, owners and ends of the states. */
#include "handover/states.h"

#include "handover/table.h"

static const char *const names[] = {
#define X(id, name) [RM_STATE_##id] = name,
    RM_STATES(X)
#undef X
};
G_STATIC_ASSERT(G_N_ELEMENTS(names) == RM_STATE_COUNT);

const char *rm_state_name(RmState state)
{
    g_assert((unsigned)state < RM_STATE_COUNT);
    return names[state];
}

RmOwner rm_state_owner(RmState state)
{
    switch (state) {
    case RM_STATE_COMMITTED:
    case RM_STATE_DONE:
        return RM_OWNER_DESTINATION;
    case RM_STATE_DOUBTFUL:
        return RM_OWNER_UNKNOWN;
    default:
        return RM_OWNER_SOURCE;
    }
}

const char *rm_owner_name(RmOwner owner)
{
    static const char *const owners[] = {"source", "destination", "unknown"};
    return owners[owner];
}

gboolean rm_state_is_end(RmState state)
{
    return state >= RM_STATE_DONE;
}

RmLogEvent rm_state_log_event(RmState state)
{
    switch (state) {
    case RM_STATE_DONE:
        return RM_LOG_MOVED;
    case RM_STATE_REFUSED:
        return RM_LOG_REFUSED;
    case RM_STATE_CANCELLED:
        return RM_LOG_CANCELLED;
    case RM_STATE_DOUBTFUL:
        return RM_LOG_DOUBTFUL;
    case RM_STATE_COMMITTED:
        return RM_LOG_STUCK;
    default:
        return RM_LOG_FAILED;
    }
}

gboolean rm_state_may_follow(RmSide side, RmState from, RmState to)
{
    for (unsigned i = 0; i < rm_table_rows; i++) {
        if (rm_table[i].side == side && rm_table[i].from == from && rm_table[i].to == to)
            return TRUE;
    }
    return FALSE;
}
