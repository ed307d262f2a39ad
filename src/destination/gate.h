/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who may connect to rdmamigd, and for how long without saying what for.
 *
 * A connection is half-open until it has shown what it is: a hello that got a place among the sessions, the
 * preamble of a data channel. (A query stays half-open until it is answered, and then ends.) Half-open ones
 * are bounded, in all and for each address; one too many ends the oldest of the address that has most. So a
 * flood takes its places from itself, and an honest peer, who is quick to say what it wants, gets in. What
 * has been identified is never touched: not a session, not its data channels.
 *
 * Failures that only a stranger makes (a wrong token, garbage, a refused certificate) are counted for each
 * address, in a token bucket; an address that exhausts it is blocked for a while: its connections are closed
 * as they come. A refused hello is the operator's mistake, and does not count.
 *
 * Several hosts may share one address (NAT), and a block must be no means to end another's session. So an
 * address that has an accepted session, or had one in the last ten minutes, is not blocked: the session's
 * data channels can connect, and its source can ask what became of it. Such an address is held back by the
 * bound of half-open connections alone.
 *
 * An address is an IPv4 address (also one that is mapped into IPv6), a /64 of IPv6, or one whole link-local
 * address with its scope. Addresses that were not heard of for longest are forgotten.
 *
 * Any thread. What begins and what ends is logged once each, never once a connection.
 */
#pragma once

#include "common/log-rate.h"
#include "common/reason.h"

#include <gio/gio.h>

typedef struct {
    guint half_open;            /* in all */
    guint half_open_of_address; /* at least 1 */
    guint ending;               /* ended ones whose threads still are, before enter() waits for them */
    guint addresses;            /* remembered, besides those with connections */
    guint failures;             /* of an address, at once… */
    gint64 failure_us;          /* …and one more in this time */
    gint64 block_us;
    gint64 grace_us; /* after an address' last session, in which it is not blocked */
    gint64 quiet_us; /* a flood has ended if nothing had to be ended for this long */
    gboolean tls;    /* nothing can be said in clear to whom is sent away */
} RmGateLimits;

/* What rdmamigd goes by, with room for `connections` altogether. */
void rm_gate_limits(RmGateLimits *limits, guint connections);

typedef struct {
    guint half_open;     /* now */
    guint addresses;     /* now, remembered */
    guint blocked;       /* now, addresses */
    guint64 ended;       /* half-open ones that made room for others */
    guint64 turned_away; /* from blocked addresses */
    guint64 failures;
} RmGateCounts;

typedef struct RmGate RmGate;

/* `clock`: monotonic µs, NULL for g_get_monotonic_time(). */
RmGate *rm_gate_new(const RmGateLimits *limits, gint64 (*clock)(void));
void rm_gate_free(RmGate *gate); /* after the last pass; NULL is fine */
void rm_gate_count(RmGate *gate, RmGateCounts *ret_counts);
/* Ends blocks and floods whose time has come, and says so; by itself while a main loop runs. */
void rm_gate_sweep(RmGate *gate);

/* ---- one connection ---- */

typedef struct RmPass RmPass;

/* A connection from `peer` on the socket `fd`, which is duplicated: it can be shut until the pass is given
 * back. NULL: the address is blocked, or there are no descriptors; the connection is to be closed. Waits, for
 * a tenth of a second at most, while the threads of ended connections are still busy ending. */
RmPass *rm_gate_enter(RmGate *gate, GSocketAddress *peer, int fd);

/* Certificate accepted: others are ended first. */
void rm_pass_known(RmPass *pass);
/* It is half-open no longer. FALSE: it has been ended already, and must be given no part in anything. */
gboolean rm_pass_identify(RmPass *pass);
/* Its session was accepted: until it ends, and for a while after, its address is not blocked. */
void rm_pass_accepted(RmPass *pass);
/* It failed: counts if that is a stranger's failure (protocol, token-rejected, tls). */
void rm_pass_count_failure(RmPass *pass, RmReason reason);
/* The same, and a warning at a bounded rate, unless the peer just left. `peer` is what the log calls it,
 * `what` what has failed. */
void rm_pass_failed(RmPass *pass, const char *peer, const char *what, const GError *error);
/* Its end: before or after the socket is closed. */
void rm_pass_leave(RmPass *pass);

/* ---- */

/* Text that names the address as the gate counts it: "10.0.0.7", "2001:db8:1:2::/64"; caller frees. */
char *rm_gate_address(GSocketAddress *peer);
