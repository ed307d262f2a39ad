/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reaching a destination: its control connection, and its word on a session. */
#pragma once

#include "control/channel.h"
#include "control/message.h"
#include "control/tls.h"

/* Where, and how; all borrowed. */
typedef struct {
    const char *host;
    uint16_t port;
    RmTls *tls;           /* NULL: in clear */
    const char *tls_host; /* the name that its certificate must have; NULL: host */
} RmTarget;

/* Reasons peer-unreachable, tls, peer-timeout, peer-lost, cancelled. That this host's certificate was not
 * accepted shows in the first request. */
RmControl *rm_connect_control(const RmTarget *target, GCancellable *cancel, GError **error);

/* Asks, over a connection of its own, what became of a session. An answer that does not say aborted or
 * committed, whatever else it says, is unknown. *ret_done: committed, and the guest is as `commit` wished.
 * FALSE if there is no answer. */
gboolean rm_connect_query(const RmTarget *target, const char *session, const char *token, RmFate *ret_fate,
                          gboolean *ret_done, GError **error);

/* "HOST:PORT", as rm_parse_address() reads it; caller frees. */
char *rm_connect_format(const char *host, uint16_t port);
