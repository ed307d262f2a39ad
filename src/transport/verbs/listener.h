/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination's rdma_cm listener: one a process for each port, shared by its sessions, with a thread for
 * the events.
 *
 * A connection request carries the preamble that introduces a data channel on tcp, too (tcp/wire.h: token and
 * channel, 48 bytes; rdma_cm has room for 56). Its token is compared with that of every live session, each in
 * constant time; a request of a stranger is rejected, and costs nothing but that.
 *
 * The listener's lock is held while a session takes a connection, so that the session cannot go meanwhile. It
 * is taken before any lock of a session's.
 */
#pragma once

#include "common/log-context.h"
#include "transport/transport.h"
#include "transport/verbs/device.h"

typedef struct RmVerbsListener RmVerbsListener;

/* A session that takes connections; embedded by it. Called by the listener's thread only. */
typedef struct RmVerbsAcceptor RmVerbsAcceptor;
struct RmVerbsAcceptor {
    uint8_t token[RM_TOKEN_BYTES];
    RmLogContext *log; /* the session's, while it takes connections; borrowed. Set by join() */
    /* A connection proved the token for `channel`. FALSE: it is to be rejected, and `id` is still the
     * caller's. */
    gboolean (*take)(RmVerbsAcceptor *acceptor, struct rdma_cm_id *id, unsigned channel, GError **error);
    /* A connection that was taken has ended, or its device has. */
    void (*left)(RmVerbsAcceptor *acceptor, struct rdma_cm_id *id);
};

/* Listens at `port` (0: one of rdma_cm's choice) of the addresses, or of all if there are none, and lets the
 * acceptor take connections. A listener that is there already is shared (`packets` are the daemon's, and so
 * alike). Addresses that no RDMA device has are passed over. */
RmVerbsListener *rm_verbs_listener_join(uint16_t port, char *const *addresses, RmChoice tos,
                                        RmVerbsAcceptor *acceptor, GError **error);

uint16_t rm_verbs_listener_port(const RmVerbsListener *listener);
/* The first of the addresses, NULL for all. */
const char *rm_verbs_listener_host(const RmVerbsListener *listener);

/* Once it has returned the acceptor is not called any more. Idempotent. */
void rm_verbs_listener_mute(RmVerbsListener *listener, RmVerbsAcceptor *acceptor);
/* Ends the caller's share; the last one ends the listener. The connections taken must have been destroyed. */
void rm_verbs_listener_leave(RmVerbsListener *listener);
