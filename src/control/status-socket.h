/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Status sockets: how `rdmamig status` and `rdmamig cancel` speak to running daemons on this host.
 *
 * A daemon listens on RUNDIR/PREFIX-UUID.sock (0600, the folder 0700): send-SESSION.sock for a session at the
 * source, recv-INSTANCE.sock for an rdmamigd. One line of request, {"command": …}, one line of answer. RUNDIR
 * is $RDMAMIG_RUN_DIR, /run/rdmamig for root, else $XDG_RUNTIME_DIR/rdmamig.
 *
 * A socket has its name only once it listens, and no name is ever used twice. So one that refuses connections
 * is a dead daemon's, and whoever finds it may remove it; nobody ever removes a live one's, nor what is no
 * socket.
 */
#pragma once

#include <glib.h>
#include <json-c/json.h>

#define RM_STATUS_SEND "send"
#define RM_STATUS_RECV "recv"

typedef struct RmStatusSocket RmStatusSocket;

/* Answers a request, which has a `command`; NULL: no answer. In a thread of its own, but never two at a time,
 * and never once the socket is freed. */
typedef json_object *(*RmStatusFunc)(json_object *request, const char *command, gpointer data);

/* Serves in the main loop of the default context. Removes stale sockets of the same prefix. Reason internal
 * if the socket can't be made: the daemon can do without. */
RmStatusSocket *rm_status_socket_new(const char *prefix, const char *uuid, RmStatusFunc func, gpointer data,
                                     GError **error);
void rm_status_socket_free(RmStatusSocket *status); /* removes the socket; NULL is fine */

/* ---- clients ---- */

/* Sends a command, with `session` if not NULL; NULL if there is no answer. */
json_object *rm_status_call(const char *path, const char *command, const char *session, GError **error);

/* Calls `func` with the answer to `status` of each daemon that has a socket with `prefix` and answers.
 * Removes stale sockets. */
typedef void (*RmStatusFoundFunc)(const char *path, json_object *answer, gpointer data);
void rm_status_each(const char *prefix, RmStatusFoundFunc func, gpointer data);
