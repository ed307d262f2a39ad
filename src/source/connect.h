/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reaching a destination: its control connection, and its word on a session. */
#pragma once

#include "control/channel.h"
#include "control/message.h"

/* Reasons peer-unreachable, cancelled. */
RmControl *rm_connect_control(const char *host, uint16_t port, GCancellable *cancel, GError **error);

/* Asks, over a connection of its own, what became of a session. An answer that does not say aborted or
 * committed, whatever else it says, is unknown. *ret_done: committed, and the guest is as `commit` wished.
 * FALSE if there is no answer. */
gboolean rm_connect_query(const char *host, uint16_t port, const char *session, const char *token,
                          RmFate *ret_fate, gboolean *ret_done, GError **error);

/* "HOST:PORT", as rm_parse_address() reads it; caller frees. */
char *rm_connect_format(const char *host, uint16_t port);
