/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The status socket of a session (control/status-socket.h): send-SESSION.sock.
 *
 * {"command": "status"} is answered with the session's status object; {"command": "cancel"}, which ends it,
 * too.
 */
#pragma once

#include "source/session.h"

typedef struct RmMonitor RmMonitor;

/* Serves in the main loop of the default context. Reason internal if the socket can't be made: the migration
 * can go on. */
RmMonitor *rm_monitor_new(RmSession *session, RmReporter *reporter, GError **error);
void rm_monitor_free(RmMonitor *monitor); /* removes the socket */
