/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The listener and the registry of sessions. */
#include "destination/daemon.h"

#include "common/reason.h"
#include "control/json.h"
#include "destination/caller.h"
#include "destination/fates.h"

#include <sys/resource.h>
#include <sys/socket.h>

/* Connections with a thread of their own at a time; each may hold this many descriptors. Running out of those
 * is no error to GLib, but the end of the process. */
#define CONNECTIONS_MAX 512
#define FDS_PER_CONNECTION 8
#define CONNECTIONS_MIN 8
/* A session has its connection, QEMU's, the journal, the guardian's, and the data channels. */
#define FDS_PER_SESSION (32 + RM_CHANNELS_MAX)

/* As many connections and sessions as descriptors allow, of which the usual soft limit is far below what may
 * be had. */
static void set_limits(RmDaemon *daemon)
{
    struct rlimit limit = {0};
    RmGateLimits limits;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        rlim_t soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
            limit.rlim_cur = soft;
    }
    guint64 descriptors = limit.rlim_cur, wanted = daemon->options->max_sessions;
    daemon->connections_max = (int)CLAMP(descriptors / FDS_PER_CONNECTION, CONNECTIONS_MIN, CONNECTIONS_MAX);
    rm_gate_limits(&limits, (guint)daemon->connections_max);
    limits.tls = daemon->options->common.tls_creds != NULL;
    daemon->gate = rm_gate_new(&limits, NULL);
    guint64 others = limits.half_open * FDS_PER_CONNECTION;
    guint64 possible = descriptors > others ? (descriptors - others) / FDS_PER_SESSION : 0;
    daemon->sessions_max = (guint)CLAMP(possible, 1, wanted);
    if (daemon->sessions_max < wanted)
        g_warning("no more than %u sessions at a time: there are %" G_GUINT64_FORMAT
                  " descriptors, and each of %" G_GUINT64_FORMAT " sessions may need %d; raise LimitNOFILE= "
                  "(ulimit -Hn)",
                  daemon->sessions_max, descriptors, wanted, FDS_PER_SESSION);
}

RmDaemon *rm_daemon_new(const RmListenOptions *options)
{
    RmDaemon *daemon = g_new0(RmDaemon, 1);
    daemon->options = options;
    daemon->metrics = rm_daemon_metrics_new();
    daemon->boot = g_uuid_string_random();
    g_mutex_init(&daemon->lock);
    g_cond_init(&daemon->idle);
    daemon->sessions = g_hash_table_new(g_str_hash, g_str_equal);
    daemon->busy = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    set_limits(daemon);
    return daemon;
}

void rm_daemon_free(RmDaemon *daemon)
{
    if (daemon == NULL)
        return;
    g_hash_table_unref(daemon->sessions);
    g_hash_table_unref(daemon->busy);
    rm_gate_free(daemon->gate);
    rm_access_unref(daemon->access);
    g_mutex_clear(&daemon->lock);
    g_cond_clear(&daemon->idle);
    rm_daemon_metrics_free(daemon->metrics);
    g_free(daemon->boot);
    g_free(daemon);
}

/* ---- who may call ---- */

RmAccess *rm_daemon_access(RmDaemon *daemon)
{
    g_mutex_lock(&daemon->lock);
    RmAccess *access = daemon->access != NULL ? rm_access_ref(daemon->access) : NULL;
    g_mutex_unlock(&daemon->lock);
    return access;
}

gboolean rm_daemon_reload(RmDaemon *daemon, char *const *allowed, GError **error)
{
    const RmListenOptions *options = daemon->options;
    if (options->common.tls_creds == NULL)
        return TRUE;
    RmAccess *access = rm_access_load(options->common.tls_creds, allowed, error);
    if (access == NULL)
        return FALSE;
    g_mutex_lock(&daemon->lock);
    RmAccess *old = daemon->access;
    daemon->access = access;
    g_mutex_unlock(&daemon->lock);
    rm_access_unref(old);
    return TRUE;
}

/* ---- registry ---- */

gboolean rm_daemon_add(RmDaemon *daemon, RmDaemonSession *session, GError **error)
{
    g_mutex_lock(&daemon->lock);
    gboolean stopping = daemon->stopping;
    gboolean known = g_hash_table_contains(daemon->sessions, session->id);
    gboolean full = g_hash_table_size(daemon->sessions) >= daemon->sessions_max;
    if (!stopping && !known && !full)
        g_hash_table_insert(daemon->sessions, session->id, session);
    g_mutex_unlock(&daemon->lock);
    if (stopping)
        return rm_fail(
            error, RM_REASON_LIMIT,
            "rdmamigd on %s is stopping and takes no new sessions; try again when it has been started anew",
            g_get_host_name());
    if (known)
        return rm_fail(error, RM_REASON_GUEST_BUSY, "rdmamigd has this session already");
    if (full)
        return rm_fail(error, RM_REASON_LIMIT,
                       "this destination has %u sessions, and takes no more at a time; send again when one "
                       "has ended, or raise its --max-sessions",
                       daemon->sessions_max);
    if (rm_pass_identify(session->pass))
        return TRUE;
    rm_daemon_remove(daemon, session);
    return rm_fail(error, RM_REASON_LIMIT, "a flood of connections closed this one before it was accepted");
}

void rm_daemon_remove(RmDaemon *daemon, RmDaemonSession *session)
{
    g_mutex_lock(&daemon->lock);
    if (g_hash_table_lookup(daemon->sessions, session->id) == session)
        g_hash_table_remove(daemon->sessions, session->id);
    g_cond_broadcast(&daemon->idle);
    g_mutex_unlock(&daemon->lock);
}

void rm_daemon_set_rx(RmDaemon *daemon, RmDaemonSession *session, RmRx *rx)
{
    g_mutex_lock(&daemon->lock);
    if (session->rx != NULL)
        daemon->received_bytes += session->rx->ops->payload_bytes(session->rx);
    session->rx = rx;
    g_mutex_unlock(&daemon->lock);
}

/* The lock keeps the transports alive meanwhile; what they are asked are two numbers each. */
void rm_daemon_sample(RmDaemon *daemon, RmMetricsSample *ret_sample)
{
    GHashTableIter iter;
    gpointer value;
    RmMetricsSample sample = {0};
    g_mutex_lock(&daemon->lock);
    sample.received_bytes = daemon->received_bytes;
    g_hash_table_iter_init(&iter, daemon->sessions);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        RmRx *rx = ((RmDaemonSession *)value)->rx;
        if (rx == NULL)
            continue;
        sample.received_bytes += rx->ops->payload_bytes(rx);
        sample.registered_bytes += rx->ops->registered_bytes(rx);
    }
    g_mutex_unlock(&daemon->lock);
    RmGateCounts counts;
    rm_gate_count(daemon->gate, &counts);
    sample.half_open = counts.half_open;
    sample.half_open_ended = counts.ended;
    sample.blocked = counts.blocked;
    sample.blocked_ended = counts.turned_away;
    rm_process_usage(&sample.process);
    *ret_sample = sample;
}

gboolean rm_daemon_claim(RmDaemon *daemon, const char *path)
{
    g_mutex_lock(&daemon->lock);
    gboolean fresh = g_hash_table_add(daemon->busy, g_strdup(path));
    g_mutex_unlock(&daemon->lock);
    return fresh;
}

void rm_daemon_release(RmDaemon *daemon, const char *path)
{
    g_mutex_lock(&daemon->lock);
    g_hash_table_remove(daemon->busy, path);
    g_mutex_unlock(&daemon->lock);
}

static void end_session(RmDaemon *daemon, const char *id)
{
    g_mutex_lock(&daemon->lock);
    RmDaemonSession *running = g_hash_table_lookup(daemon->sessions, id);
    if (running != NULL)
        g_cancellable_cancel(running->cancel);
    g_mutex_unlock(&daemon->lock);
}

void rm_daemon_answer_query(RmDaemon *daemon, RmDaemonSession *asker, const char *peer, RmControl *control,
                            json_object *query)
{
    const char *session, *token;
    RmFate fate;
    gboolean done;
    g_autoptr(GError) error = NULL;
    rm_metrics_count(daemon->metrics, RM_METRIC_CONNECTIONS_QUERY);
    if (!rm_json_string(query, "session", &session, &error) ||
        !rm_json_string(query, "token", &token, &error) ||
        !rm_fates_query(session, token, &fate, &done, &error)) {
        rm_pass_failed(asker->pass, peer, "a query is not answered", error);
        rm_control_reply_failure(control, query, RM_MSG_ERROR, error, NULL);
        return;
    }
    if (fate == RM_FATE_ABORTED)
        end_session(daemon, session);
    json_object *reply = rm_json_message(RM_MSG_FATE);
    rm_json_add_string(reply, "fate", rm_fate_name(fate));
    rm_json_add_bool(reply, "done", done);
    rm_control_reply(control, query, reply, NULL);
    if (fate != RM_FATE_UNKNOWN) { /* so it showed its token */
        rm_log_context_set(session, NULL, NULL);
        g_message("session %.40s was asked after: %s", session, rm_fate_name(fate));
    } else {
        rm_log_rate_warn(&daemon->unknown, "session %.40s was asked after by %s: unknown", session, peer);
    }
}

/* ---- connections ---- */

typedef struct {
    RmDaemon *daemon;
    GSocketConnection *connection;
    RmPass *pass;
} Caller;

static gpointer caller_main(gpointer data)
{
    Caller *caller = data;
    rm_caller_serve(caller->daemon, caller->connection, caller->pass);
    rm_pass_leave(caller->pass);
    g_object_unref(caller->connection);
    g_atomic_int_add(&caller->daemon->connections, -1);
    g_free(caller);
    return NULL;
}

/* In the main loop. A caller too many is turned away at once, and may come again. GThreadedSocketService
 * would stop accepting instead, and start again from one of its threads, which races with the main loop
 * inside GLib 2.74: it crashed under a flood of connections. */
static gboolean on_connection(GSocketService *service, GSocketConnection *connection, GObject *source,
                              gpointer data)
{
    RmDaemon *daemon = data;
    g_autoptr(GError) error = NULL;
    g_autoptr(GSocketAddress) address = g_socket_connection_get_remote_address(connection, NULL);
    int fd = g_socket_get_fd(g_socket_connection_get_socket(connection));
    RmPass *pass = rm_gate_enter(daemon->gate, address, fd);
    if (pass == NULL) {
        g_io_stream_close(G_IO_STREAM(connection), NULL, NULL);
        return TRUE;
    }
    if (g_atomic_int_add(&daemon->connections, 1) < daemon->connections_max) {
        Caller *caller = g_new(Caller, 1);
        *caller = (Caller){daemon, g_object_ref(connection), pass};
        GThread *thread = g_thread_try_new("connection", caller_main, caller, &error);
        if (thread != NULL) {
            g_thread_unref(thread);
            daemon->full = FALSE;
            return TRUE;
        }
        g_object_unref(connection);
        g_free(caller);
    }
    g_atomic_int_add(&daemon->connections, -1);
    rm_metrics_count(daemon->metrics, RM_METRIC_REFUSED_BUSY);
    rm_pass_leave(pass);
    if (!daemon->full)
        g_warning("connections are being turned away: %s",
                  error != NULL ? error->message : "there are too many");
    daemon->full = TRUE;
    g_io_stream_close(G_IO_STREAM(connection), NULL, NULL);
    return TRUE;
}

/* ---- listening ---- */

static gboolean add_address(GSocketService *service, GSocketAddress *address, uint16_t *ret_port,
                            GError **error)
{
    g_autoptr(GSocketAddress) bound = NULL;
    g_autoptr(GError) problem = NULL;
    if (!g_socket_listener_add_address(G_SOCKET_LISTENER(service), address, G_SOCKET_TYPE_STREAM,
                                       G_SOCKET_PROTOCOL_TCP, NULL, &bound, &problem)) {
        g_autofree char *text = g_socket_connectable_to_string(G_SOCKET_CONNECTABLE(address));
        return rm_fail(error, RM_REASON_INTERNAL, "cannot listen on %s: %s", text, problem->message);
    }
    *ret_port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(bound));
    return TRUE;
}

/* [::] and 0.0.0.0: one socket for both, unless this host has no IPv6. */
static gboolean add_everywhere(GSocketService *service, uint16_t port, uint16_t *ret_port, GError **error)
{
    GSocketListener *listener = G_SOCKET_LISTENER(service);
    g_autoptr(GError) problem = NULL;
    *ret_port = port != 0 ? port : g_socket_listener_add_any_inet_port(listener, NULL, &problem);
    if (problem == NULL && (port == 0 || g_socket_listener_add_inet_port(listener, port, NULL, &problem)))
        return TRUE;
    return rm_fail(error, RM_REASON_INTERNAL, "cannot listen on port %u: %s", port, problem->message);
}

/* All addresses of a name, or one in figures, with the scope that a link-local one has. */
static gboolean add_host(GSocketService *service, const char *host, uint16_t port, uint16_t *ret_port,
                         GError **error)
{
    g_autoptr(GSocketConnectable) name = g_network_address_new(host, port);
    g_autoptr(GSocketAddressEnumerator) addresses = g_socket_connectable_enumerate(name);
    g_autoptr(GError) problem = NULL;
    for (unsigned n = 0;; n++) {
        g_autoptr(GSocketAddress) address = g_socket_address_enumerator_next(addresses, NULL, &problem);
        if (address == NULL)
            return n > 0 || rm_fail(error, RM_REASON_USAGE, "--listen: %s: %s", host,
                                    problem != NULL ? problem->message : "no address");
        if (!add_address(service, address, ret_port, error))
            return FALSE;
    }
}

/* Whether the main socket takes in `inet`; another one for it would be refused then. */
static gboolean listens_on(const RmListenOptions *options, GInetAddress *inet)
{
    const char *host = options->host;
    if (rm_listen_everywhere(options))
        return TRUE;
    g_autoptr(GInetAddress) listened = g_inet_address_new_from_string(host != NULL ? host : "127.0.0.1");
    if (listened == NULL) /* a name */
        return FALSE;
    if (!g_inet_address_get_is_any(listened))
        return g_inet_address_equal(listened, inet);
    return g_inet_address_get_family(listened) == G_SOCKET_FAMILY_IPV6 ||
           g_inet_address_get_family(inet) == G_SOCKET_FAMILY_IPV4;
}

gboolean rm_daemon_listen(RmDaemon *daemon, GError **error)
{
    const RmListenOptions *options = daemon->options;
    g_autoptr(GSocketService) service = g_socket_service_new();
    gboolean ok;
    if (!rm_daemon_reload(daemon, options->tls_allow, error))
        return FALSE;
    rm_transports_probe("auto"); /* so that the first session need not wait for it */
    g_socket_listener_set_backlog(G_SOCKET_LISTENER(service), SOMAXCONN);
    if (options->host != NULL) {
        ok = add_host(service, options->host, options->port, &daemon->port, error);
    } else if (rm_listen_everywhere(options)) {
        ok = add_everywhere(service, options->port, &daemon->port, error);
    } else {
        g_autoptr(GInetAddress) loopback = g_inet_address_new_loopback(G_SOCKET_FAMILY_IPV4);
        g_autoptr(GSocketAddress) address = g_inet_socket_address_new(loopback, options->port);
        ok = add_address(service, address, &daemon->port, error);
    }
    for (char **data = options->data_addresses; ok && data != NULL && *data != NULL; data++) {
        uint16_t port;
        g_autoptr(GInetAddress) inet = g_inet_address_new_from_string(*data);
        if (listens_on(options, inet))
            continue;
        g_autoptr(GSocketAddress) address = g_inet_socket_address_new(inet, daemon->port);
        ok = add_address(service, address, &port, error);
    }
    if (!ok)
        return FALSE;
    g_signal_connect(service, "incoming", G_CALLBACK(on_connection), daemon);
    g_socket_service_start(service);
    g_object_ref(service); /* listens until the process ends */
    return TRUE;
}

void rm_daemon_stop(RmDaemon *daemon)
{
    GHashTableIter iter;
    gpointer value;
    g_mutex_lock(&daemon->lock);
    daemon->stopping = TRUE;
    g_hash_table_iter_init(&iter, daemon->sessions);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        g_cancellable_cancel(((RmDaemonSession *)value)->cancel);
    while (g_hash_table_size(daemon->sessions) > 0)
        g_cond_wait(&daemon->idle, &daemon->lock);
    g_mutex_unlock(&daemon->lock);
}
