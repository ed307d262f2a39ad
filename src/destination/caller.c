/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a connection is. */
#include "destination/caller.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/json.h"
#include "control/message.h"
#include "destination/receive.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/wire.h"

#include <string.h>

#define HELLO_WAIT_S rm_fault_number("hello-wait", 10)
#define TLS_HANDSHAKE 0x16 /* the first byte of a TLS connection: a record of this kind */
#define LINGER_US (500 * 1000)

typedef struct {
    RmDaemon *daemon;
    GSocketConnection *connection;
    RmPass *pass;
    GIOStream *stream; /* the connection, or TLS over it; owned */
    RmAccess *access;  /* NULL: no TLS here */
    char *peer;        /* for the log: its address, and the name that it has shown */
    gint64 deadline;
} Caller;

static gint64 hello_deadline(void)
{
    return g_get_monotonic_time() + HELLO_WAIT_S * G_USEC_PER_SEC;
}

static unsigned left_ms(const Caller *caller)
{
    return (unsigned)MAX((caller->deadline - g_get_monotonic_time()) / 1000, 1);
}

/* Lets the peer read what it was told last, and close first: closing with bytes of it unread would reset the
 * connection, and lose our word on its way. */
static void part(Caller *caller)
{
    GSocket *socket = g_socket_connection_get_socket(caller->connection);
    gint64 end = g_get_monotonic_time() + LINGER_US;
    char bytes[4096];
    g_socket_shutdown(socket, FALSE, TRUE, NULL);
    for (gint64 left; (left = end - g_get_monotonic_time()) > 0;) {
        if (!g_socket_condition_timed_wait(socket, G_IO_IN, left, NULL, NULL) ||
            g_socket_receive(socket, bytes, sizeof bytes, NULL, NULL) <= 0)
            break;
    }
}

static void refuse(Caller *caller, const GError *error)
{
    rm_metrics_count_refusal(caller->daemon->metrics, rm_error_reason(error));
    rm_pass_failed(caller->pass, caller->peer, "refused", error);
}

static void refuse_garbage(Caller *caller)
{
    g_autoptr(GError) error =
        g_error_new_literal(RM_ERROR, RM_REASON_PROTOCOL, "something else than rdmamig speaks there");
    refuse(caller, error);
}

/* ---- data channels ---- */

/* Of the peer whose session it is: by its certificate, or, if both ends have agreed to data in clear, by the
 * token alone. */
static gboolean belongs(const RmDaemonSession *session, GIOStream *stream, GError **error)
{
    if (rm_tls_same_peer(session->stream, stream) || (session->plain_data && !G_IS_TLS_CONNECTION(stream)))
        return TRUE;
    return rm_fail(error, RM_REASON_TLS, "a data channel of session %s %s was turned away", session->id,
                   G_IS_TLS_CONNECTION(stream) ? "with another certificate than its control connection's"
                                               : "in clear text");
}

/* Every token is compared, and each in constant time, so that the answer's delay tells a stranger nothing.
 * The lock is held while the transport takes the connection over, so that the session can't free it
 * meanwhile. */
static gboolean hand_over(Caller *caller, const RmTcpPreamble *preamble, GError **error)
{
    RmDaemon *daemon = caller->daemon;
    GHashTableIter iter;
    gpointer value;
    RmDaemonSession *found = NULL;
    g_mutex_lock(&daemon->lock);
    g_hash_table_iter_init(&iter, daemon->sessions);
    while (g_hash_table_iter_next(&iter, NULL, &value)) {
        RmDaemonSession *session = value;
        if (rm_token_equal(session->token, preamble->token) && session->rx != NULL)
            found = session;
    }
    if (found != NULL)
        rm_log_context_enter(found->log);
    gboolean ok =
        found != NULL
            ? belongs(found, caller->stream, error) &&
                  found->rx->ops->adopt(found->rx, caller->stream, preamble->channel, error)
            : rm_fail(error, RM_REASON_TOKEN, "a data channel without a valid token was turned away");
    g_mutex_unlock(&daemon->lock);
    return ok;
}

/* Identified before it is handed over: what is a session's the gate leaves alone. */
static void take_data(Caller *caller, char first)
{
    g_autoptr(GError) error = NULL;
    RmTcpPreamble preamble;
    if (!rm_tcp_preamble_receive(caller->stream, first, left_ms(caller), NULL, &preamble, &error) ||
        (rm_pass_identify(caller->pass) && !hand_over(caller, &preamble, &error))) {
        rm_metrics_count_refusal(caller->daemon->metrics, rm_error_reason(error));
        rm_pass_failed(caller->pass, caller->peer, "a data connection", error);
    } else {
        rm_metrics_count(caller->daemon->metrics, RM_METRIC_CONNECTIONS_DATA);
    }
}

/* ---- control connections ---- */

/* In clear, since the other end speaks nothing else: without an id, an error is the channel's end. */
static void refuse_clear(Caller *caller)
{
    g_autoptr(GError) error = g_error_new_literal(
        RM_ERROR, RM_REASON_TLS, "this destination takes TLS only: give --tls-creds DIR at the source");
    rm_autojson message = rm_json_message(RM_MSG_ERROR);
    rm_json_add_string(message, "reason", rm_reason_name(RM_REASON_TLS));
    rm_json_add_string(message, "detail", error->message);
    g_autofree char *line =
        g_strconcat(json_object_to_json_string_ext(message, JSON_C_TO_STRING_PLAIN), "\n", NULL);
    refuse(caller, error);
    g_socket_send(g_socket_connection_get_socket(caller->connection), line, strlen(line), NULL, NULL);
    part(caller);
}

/* ---- TLS ---- */

/* The first byte inside TLS, '\0' if there is none. */
static char read_first(Caller *caller)
{
    g_autoptr(GError) error = NULL;
    char first = '\0';
    if (!rm_tcp_read(caller->stream, &first, 1, caller->deadline, NULL, &error))
        g_warning("%s: closed, for nothing was said inside TLS: %s", caller->peer, error->message);
    return first;
}

static gboolean begin_tls(Caller *caller)
{
    g_autoptr(GError) error = NULL;
    GIOStream *stream = NULL;
    if (caller->access != NULL)
        stream = rm_tls_accept(caller->access->tls, caller->connection, caller->access->allowed,
                               left_ms(caller), NULL, &error);
    else
        rm_fail(&error, RM_REASON_TLS, "a TLS connection came, but there is no --tls-creds");
    if (stream == NULL) {
        refuse(caller, error);
        part(caller);
        return FALSE;
    }
    rm_pass_known(caller->pass);
    g_object_unref(caller->stream);
    caller->stream = stream;
    g_autofree char *address = g_steal_pointer(&caller->peer);
    g_autofree char *name = rm_tls_peer_name(stream);
    caller->peer = g_strdup_printf("%s (%s)", address, name);
    rm_log_context_set(NULL, NULL, caller->peer);
    /* It has shown who it is, and on busy hosts that may have taken most of the time. */
    caller->deadline = hello_deadline();
    return TRUE;
}

/* ---- the connection ---- */

static char peek_first(Caller *caller)
{
    GSocket *socket = g_socket_connection_get_socket(caller->connection);
    char first = '\0';
    GInputVector vector = {&first, 1};
    int flags = G_SOCKET_MSG_PEEK;
    g_socket_set_timeout(socket, HELLO_WAIT_S);
    gssize n = g_socket_receive_message(socket, NULL, &vector, 1, NULL, NULL, &flags, NULL, NULL);
    g_socket_set_timeout(socket, 0);
    return n == 1 ? first : '\0';
}

static void serve(Caller *caller)
{
    char first = peek_first(caller), inside[] = {'\0', '\0'};
    if (first == TLS_HANDSHAKE) {
        if (!begin_tls(caller))
            return;
        first = inside[0] = read_first(caller);
    } else if (first == '{' && caller->access != NULL) {
        refuse_clear(caller);
        return;
    }
    if (first == '{')
        rm_receive_run(caller->daemon, caller->stream, inside[0] != '\0' ? inside : NULL, caller->peer,
                       caller->pass);
    else if (first == RM_TCP_MAGIC[0])
        take_data(caller, inside[0]);
    else if (first != '\0') {
        refuse_garbage(caller);
    } else {
        rm_metrics_count(caller->daemon->metrics, RM_METRIC_REFUSED_SILENT);
        g_debug("%s: a connection that said nothing was closed", caller->peer);
    }
}

static char *peer_address(GSocketConnection *connection)
{
    g_autoptr(GSocketAddress) address = g_socket_connection_get_remote_address(connection, NULL);
    return address != NULL ? g_socket_connectable_to_string(G_SOCKET_CONNECTABLE(address))
                           : g_strdup("a peer");
}

void rm_caller_serve(RmDaemon *daemon, GSocketConnection *connection, RmPass *pass)
{
    Caller caller = {
        .daemon = daemon,
        .connection = connection,
        .pass = pass,
        .stream = G_IO_STREAM(g_object_ref(connection)),
        .access = rm_daemon_access(daemon),
        .peer = peer_address(connection),
        .deadline = hello_deadline(),
    };
    rm_log_context_set(NULL, NULL, caller.peer);
    rm_metrics_add(daemon->metrics, RM_METRIC_CONNECTIONS, 1);
    serve(&caller);
    rm_metrics_add(daemon->metrics, RM_METRIC_CONNECTIONS, -1);
    g_object_unref(caller.stream);
    rm_access_unref(caller.access);
    g_free(caller.peer);
}
