/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination daemon: one listening port, a thread a connection, many sessions.
 *
 * A connection that begins with '{' is a control connection and lives as long as its session (receive.c), or
 * answers a query; one that begins with 'R' is a data channel, which proves a session's token and is handed
 * to its transport. One that says nothing for ten seconds is closed.
 */
#pragma once

#include "control/channel.h"
#include "destination/options.h"
#include "transport/transport.h"

#include <gio/gio.h>

typedef struct {
    const RmListenOptions *options; /* immutable */
    char *boot;                     /* immutable: this instance's UUID */
    uint16_t port;                  /* immutable once listening */
    int connections_max;            /* immutable once listening */
    int connections;                /* atomic: threads of connections */
    gboolean full;                  /* the main loop's: callers are being turned away */

    GMutex lock;          /* all below */
    GCond idle;           /* signalled when a session ends */
    GHashTable *sessions; /* char* id -> RmDaemonSession* */
    GHashTable *busy;     /* char*: QMP paths in use */
    gboolean stopping;
} RmDaemon;

/* What the daemon knows of a running session; owned by the session's thread. */
typedef struct {
    char *id;
    uint8_t token[RM_TOKEN_BYTES];
    RmRx *rx;          /* NULL until data channels may come */
    GIOStream *stream; /* the control connection, borrowed: data channels must show the same certificate */
    GCancellable *cancel;
    struct RmView *view; /* what others may see of it; lives for as long as the session is in the registry */
} RmDaemonSession;

RmDaemon *rm_daemon_new(const RmListenOptions *options);
void rm_daemon_free(RmDaemon *daemon);

/* Starts to listen, in the default main context. Reasons usage, internal. */
gboolean rm_daemon_listen(RmDaemon *daemon, GError **error);

/* No new sessions; cancels those before `commit`, waits for all to end. */
void rm_daemon_stop(RmDaemon *daemon);

/* Used by sessions. Adding fails while stopping. */
gboolean rm_daemon_add(RmDaemon *daemon, RmDaemonSession *session, GError **error);
void rm_daemon_remove(RmDaemon *daemon, RmDaemonSession *session);
/* From here on data channels with the session's token go to `rx`; NULL: none any more. */
void rm_daemon_set_rx(RmDaemon *daemon, RmDaemonSession *session, RmRx *rx);

/* Marks a QMP path as in use; FALSE if it is already. */
gboolean rm_daemon_claim(RmDaemon *daemon, const char *path);
void rm_daemon_release(RmDaemon *daemon, const char *path);

/* Answers a `query`, by the journal (fates.h); a session that is aborted by it is ended, with its connection.
 */
void rm_daemon_answer_query(RmDaemon *daemon, RmControl *control, json_object *query);
