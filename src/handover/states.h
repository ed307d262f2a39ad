/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The states of a session, the same at both ends, in progress output, status, journal and docs.
 *
 * The rule that keeps a guest from running twice: it is the source's until the source has sent `commit`, and
 * the destination's from then on. The destination lets it run only after it has received `commit`; the source
 * resumes it only while it has not sent `commit`, or once the destination has answered a query with
 * "aborted", which is irrevocable there.
 *
 * The destination uses the same words for its side, in its journal and log: precopy (accepted; receives RAM),
 * switchover (its VMM loads the state, and is used up), prepared (loaded, paused), committed (the guest is
 * here), done (and runs, or is paused as wished), failed or cancelled (ended without the guest: irrevocable),
 * doubtful (its VMM ended when the guest was here and perhaps had not run yet: nobody can tell).
 */
#pragma once

#include "common/log-event.h"

#include <glib.h>

#define RM_STATES(X)                                                                                         \
    X(CONNECTING, "connecting") /* source owns, guest untouched; control connection being made */            \
    X(PREFLIGHT, "preflight")   /* source owns, guest untouched; checks at both ends */                      \
    X(ATTACHING, "attaching")   /* source owns, running; tracker being armed */                              \
    X(PRECOPY, "precopy")       /* source owns, running; rounds; any failure leaves it running */            \
    X(SWITCHOVER, "switchover") /* source owns, paused by us; any failure resumes it */                      \
    X(PREPARED, "prepared")     /* source owns, paused; the destination has loaded the state and waits */    \
    X(COMMITTED, "committed")   /* destination owns; it runs the guest as soon as it knows */                \
    X(DONE, "done")             /* end: destination owns and has answered `running` */                       \
    X(REFUSED, "refused")       /* end: source owns; refused before a byte moved */                          \
    X(FAILED, "failed")         /* end: source owns; guest as it was before */                               \
    X(CANCELLED, "cancelled")   /* end: source owns; guest as it was before */                               \
    X(DOUBTFUL, "doubtful")     /* end for now: commit sent, fate unknown; source stays paused */

typedef enum {
#define X(id, name) RM_STATE_##id,
    RM_STATES(X)
#undef X
        RM_STATE_COUNT
} RmState;

#define RM_STATE_BIT(id) (1u << RM_STATE_##id)

typedef enum { RM_SIDE_SOURCE, RM_SIDE_DESTINATION } RmSide;

typedef enum { RM_OWNER_SOURCE, RM_OWNER_DESTINATION, RM_OWNER_UNKNOWN } RmOwner;

const char *rm_state_name(RmState state);
RmOwner rm_state_owner(RmState state);
const char *rm_owner_name(RmOwner owner); /* "source", "destination", "unknown" */
/* Whoever looks after a session lets go in it. Nothing follows but for doubtful, which can be resolved. */
gboolean rm_state_is_end(RmState state);
/* What the log calls it when a session is left in this state. */
RmLogEvent rm_state_log_event(RmState state);

/* Whether the table (table.h) has a way from `from` to `to`. */
gboolean rm_state_may_follow(RmSide side, RmState from, RmState to);
