/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transition table of a session. */
#include "handover/states.h"

static const char *const names[] = {
#define X(id, name) [RM_STATE_##id] = name,
    RM_STATES(X)
#undef X
};
G_STATIC_ASSERT(G_N_ELEMENTS(names) == RM_STATE_COUNT);

/* From each state to any of these. Before `commit` every state may fail or be cancelled; after it, never. */
static const unsigned successors[] = {
    [RM_STATE_CONNECTING] = RM_STATE_BIT(PREFLIGHT) | RM_STATE_BIT(REFUSED) | RM_STATE_BIT(CANCELLED),
    [RM_STATE_PREFLIGHT] = RM_STATE_BIT(ATTACHING) | RM_STATE_BIT(DONE) | RM_STATE_BIT(REFUSED) |
                           RM_STATE_BIT(CANCELLED), /* done: --dry-run */
    [RM_STATE_ATTACHING] =
        RM_STATE_BIT(PRECOPY) | RM_STATE_BIT(REFUSED) | RM_STATE_BIT(FAILED) | RM_STATE_BIT(CANCELLED),
    [RM_STATE_PRECOPY] = RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(FAILED) | RM_STATE_BIT(CANCELLED),
    [RM_STATE_SWITCHOVER] = RM_STATE_BIT(PREPARED) | RM_STATE_BIT(FAILED) | RM_STATE_BIT(CANCELLED),
    [RM_STATE_PREPARED] = RM_STATE_BIT(COMMITTED) | RM_STATE_BIT(FAILED) | RM_STATE_BIT(CANCELLED),
    /* failed, from committed: the destination has answered that it aborted before `commit` reached it */
    [RM_STATE_COMMITTED] = RM_STATE_BIT(DONE) | RM_STATE_BIT(DOUBTFUL) | RM_STATE_BIT(FAILED),
    [RM_STATE_DONE] = 0,
    [RM_STATE_REFUSED] = 0,
    [RM_STATE_FAILED] = 0,
    [RM_STATE_CANCELLED] = 0,
    [RM_STATE_DOUBTFUL] = 0,
};
G_STATIC_ASSERT(G_N_ELEMENTS(successors) == RM_STATE_COUNT);

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
    return successors[state] == 0;
}

gboolean rm_state_may_follow(RmState from, RmState to)
{
    return (successors[from] & (1u << to)) != 0;
}
