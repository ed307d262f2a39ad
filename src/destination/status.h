/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * rdmamigd's status socket (control/status-socket.h): recv-INSTANCE.sock.
 *
 * {"command": "status"} is answered with an object about the daemon: `pid`, `listen` (ADDR:PORT), `boot` (its
 * instance), `version`, and `sessions`, an array of the sessions' status objects (destination/view.h).
 * {"command": "cancel", "session": ID}: ends the session, if it is not committed yet; `cancelled` says
 * whether.
 */
#pragma once

#include "control/status-socket.h"
#include "destination/daemon.h"

/* Serves in the main loop of the default context. Reason internal if the socket can't be made: the daemon can
 * do without. */
RmStatusSocket *rm_daemon_status_new(RmDaemon *daemon, GError **error);
