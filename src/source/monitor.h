/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * `rdmamig status` and `rdmamig cancel`: a unix socket a session, and its clients.
 *
 * A session listens on RUNDIR/send-SESSION.sock (0600). One line of request, {"command": "status" |
 * "cancel"}, one line of answer, the session's status object. RUNDIR is $RDMAMIG_RUN_DIR, /run/rdmamig for
 * root, else $XDG_RUNTIME_DIR/rdmamig.
 */
#pragma once

#include "source/session.h"

typedef struct RmMonitor RmMonitor;

/* Serves in the main loop of the default context. Reason internal if the socket can't be made: the migration
 * can go on. */
RmMonitor *rm_monitor_new(RmSession *session, RmReporter *reporter, GError **error);
void rm_monitor_free(RmMonitor *monitor); /* removes the socket */

/* The verbs; they print, and return the exit status. `which` is a session's id (or a prefix of it), a guest's
 * name, or NULL: all for status; for cancel the only one there is. */
int rm_monitor_status(const char *which, gboolean json);
int rm_monitor_cancel(const char *which);
