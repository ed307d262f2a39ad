/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transition table of a session. */
#include "handover/states.h"

static const char *const names[] = {
#define X(id, name) [RM_STATE_##id] = name,
    RM_STATES(X)
#undef X
};
G_STATIC_ASSERT(G_N_ELEMENTS(names) == RM_STATE_COUNT);

#define BIT(id) (1u << RM_STATE_##id)

/* From each state to any of these. Before `commit` every state may fail or be cancelled; after it, never. */
static const unsigned successors[] = {
    [RM_STATE_CONNECTING] = BIT(PREFLIGHT) | BIT(REFUSED) | BIT(CANCELLED),
    [RM_STATE_PREFLIGHT] = BIT(ATTACHING) | BIT(DONE) | BIT(REFUSED) | BIT(CANCELLED), /* done: --dry-run */
    [RM_STATE_ATTACHING] = BIT(PRECOPY) | BIT(REFUSED) | BIT(FAILED) | BIT(CANCELLED),
    [RM_STATE_PRECOPY] = BIT(SWITCHOVER) | BIT(FAILED) | BIT(CANCELLED),
    [RM_STATE_SWITCHOVER] = BIT(PREPARED) | BIT(FAILED) | BIT(CANCELLED),
    [RM_STATE_PREPARED] = BIT(COMMITTED) | BIT(FAILED) | BIT(CANCELLED),
    /* failed, from committed: the destination has answered that it aborted before `commit` reached it */
    [RM_STATE_COMMITTED] = BIT(DONE) | BIT(DOUBTFUL) | BIT(FAILED),
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
