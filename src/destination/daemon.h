/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination daemon: one listening port, a thread a connection, many sessions.
 *
 * What a connection is for, and who may make one, is caller.h's and access.h's.
 */
#pragma once

#include "common/log-context.h"
#include "control/channel.h"
#include "destination/access.h"
#include "destination/gate.h"
#include "destination/metrics.h"
#include "destination/options.h"
#include "transport/transport.h"

#include <gio/gio.h>

typedef struct {
    const RmListenOptions *options; /* immutable */
    char *boot;                     /* immutable: this instance's UUID */
    uint16_t port;                  /* immutable once listening */
    int connections_max;            /* immutable */
    int connections;                /* atomic: threads of connections */
    gboolean full;                  /* the main loop's: callers are being turned away */
    RmDaemonMetrics *metrics;       /* thread-safe */
    guint sessions_max;             /* immutable */
    RmGate *gate;                   /* immutable */
    RmLogRate unknown;              /* of queries after sessions that no journal knows */

    GMutex lock;             /* all below */
    GCond idle;              /* signalled when a session ends */
    GHashTable *sessions;    /* char* id -> RmDaemonSession* */
    GHashTable *busy;        /* char*: QMP paths in use */
    uint64_t received_bytes; /* by sessions' transports that have ended */
    gboolean stopping;
    RmAccess *access; /* NULL: no TLS */
} RmDaemon;

/* What the daemon knows of a running session; owned by the session's thread. */
typedef struct {
    char *id;
    uint8_t token[RM_TOKEN_BYTES];
    RmRx *rx;            /* NULL until data channels may come */
    gboolean plain_data; /* both ends agreed to data in clear, though the control connection is inside TLS */
    GIOStream *stream;   /* the control connection, borrowed: data channels must show the same certificate */
    RmPass *pass;        /* of that connection, borrowed */
    GCancellable *cancel;
    RmLogContext *log;   /* its thread's, borrowed */
    struct RmView *view; /* what others may see of it; lives for as long as the session is in the registry */
} RmDaemonSession;

/* Raises this process' limit of descriptors, which bounds connections and sessions, as far as it may. */
RmDaemon *rm_daemon_new(const RmListenOptions *options);
void rm_daemon_free(RmDaemon *daemon);

/* Loads what rm_daemon_reload() does, and starts to listen, in the default main context. Reasons usage, tls,
 * internal. */
gboolean rm_daemon_listen(RmDaemon *daemon, GError **error);

/* Reads the credentials of --tls-creds again, for connections from then on, and lets in the names `allowed`
 * (NULL: every certificate of the CA). On failure all stays as it was. Sessions that run are left alone. */
gboolean rm_daemon_reload(RmDaemon *daemon, char *const *allowed, GError **error);
/* Who may call from now on; NULL without TLS. Caller unrefs. */
RmAccess *rm_daemon_access(RmDaemon *daemon);

/* No new sessions; cancels those before `commit`, waits for all to end. */
void rm_daemon_stop(RmDaemon *daemon);

/* Used by sessions. Adding fails while stopping, and with reason limit beyond --max-sessions; from then on
 * the connection is no longer half-open. */
gboolean rm_daemon_add(RmDaemon *daemon, RmDaemonSession *session, GError **error);
void rm_daemon_remove(RmDaemon *daemon, RmDaemonSession *session);
/* From here on data channels with the session's token go to `rx`; NULL: none any more. */
void rm_daemon_set_rx(RmDaemon *daemon, RmDaemonSession *session, RmRx *rx);

/* What all sessions have received and hold now; any thread. */
void rm_daemon_sample(RmDaemon *daemon, RmMetricsSample *ret_sample);

/* Marks a QMP path as in use; FALSE if it is already. */
gboolean rm_daemon_claim(RmDaemon *daemon, const char *path);
void rm_daemon_release(RmDaemon *daemon, const char *path);

/* Answers a `query`, by the journal (fates.h); a session that is aborted by it is ended, with its connection.
 */
void rm_daemon_answer_query(RmDaemon *daemon, RmDaemonSession *asker, const char *peer, RmControl *control,
                            json_object *query);
