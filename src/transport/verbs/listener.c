/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Listening and the event thread.
 *
 * The registry of listeners is a global, since rx_new() takes no argument by which sessions could share one;
 * the sessions' registry in the daemon is not known here.
 *
 * Whoever destroys a connection waits in rdma_destroy_id() until its events have been acknowledged. So the
 * thread acknowledges each before it does anything that waits, and lives until the last connection has gone.
 */
#include "transport/verbs/listener.h"

#include "common/log-rate.h"
#include "common/reason.h"
#include "transport/tcp/wire.h"
#include "transport/verbs/events.h"
#include "transport/verbs/packets.h"

#include <errno.h>
#include <string.h>

#define BACKLOG 64

struct RmVerbsListener {
    unsigned references; /* registry_lock */

    /* Immutable. */
    uint16_t wished_port, port;
    char **addresses; /* never NULL */
    const char *host;
    RmChoice tos;
    RmVerbsEvents events;
    RmLogRate strangers; /* who has no token decides how often it knocks */
    GPtrArray *ids;      /* struct rdma_cm_id*, listening */

    GMutex lock;
    GSList *acceptors; /* lock; RmVerbsAcceptor*, borrowed */
};

static GMutex registry_lock;
static GSList *registry; /* registry_lock; RmVerbsListener* */

/* ---- the event thread ---- */

static char *peer_name(struct rdma_cm_id *id)
{
    struct sockaddr *peer = rdma_get_peer_addr(id);
    gsize length = peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    g_autoptr(GSocketAddress) address = g_socket_address_new_from_native(peer, length);
    return address != NULL ? g_socket_connectable_to_string(G_SOCKET_CONNECTABLE(address))
                           : g_strdup("a peer");
}

/* Under the lock. Every token is compared, and each in constant time, so that the answer's delay tells
 * nothing. */
static gboolean take(RmVerbsListener *listener, struct rdma_cm_id *id, const RmTcpPreamble *preamble,
                     GError **error)
{
    RmVerbsAcceptor *found = NULL;
    for (GSList *item = listener->acceptors; item != NULL; item = item->next) {
        RmVerbsAcceptor *acceptor = item->data;
        if (rm_token_equal(acceptor->token, preamble->token))
            found = acceptor;
    }
    if (found == NULL)
        return rm_fail(error, RM_REASON_TOKEN, "a data channel without a valid token was turned away");
    rm_log_context_enter(found->log);
    return found->take(found, id, preamble->channel, error);
}

static void handle_request(RmVerbsListener *listener, struct rdma_cm_id *id, const uint8_t *data,
                           unsigned length)
{
    g_autoptr(GError) error = NULL;
    RmTcpPreamble preamble;
    gboolean ok = length >= RM_TCP_PREAMBLE_BYTES && rm_tcp_preamble_parse(data, &preamble);
    if (!ok) {
        rm_fail(&error, RM_REASON_PROTOCOL, "an RDMA connection without rdmamig's preamble was turned away");
    } else {
        g_mutex_lock(&listener->lock);
        ok = take(listener, id, &preamble, &error);
        g_mutex_unlock(&listener->lock);
    }
    if (!ok) {
        g_autofree char *peer = peer_name(id);
        rm_log_rate_warn(&listener->strangers, "%s: %s", peer, error->message);
        rdma_reject(id, NULL, 0);
        rdma_destroy_id(id);
    }
    rm_log_context_enter(NULL);
}

static void handle_left(RmVerbsListener *listener, struct rdma_cm_id *id)
{
    g_mutex_lock(&listener->lock);
    for (GSList *item = listener->acceptors; item != NULL; item = item->next) {
        RmVerbsAcceptor *acceptor = item->data;
        acceptor->left(acceptor, id);
    }
    g_mutex_unlock(&listener->lock);
}

static void handle_event(void *data, struct rdma_cm_event *event)
{
    RmVerbsListener *listener = data;
    struct rdma_cm_id *id = event->id;
    enum rdma_cm_event_type type = event->event;
    uint8_t preamble[RM_TCP_PREAMBLE_BYTES] = {0};
    unsigned length = 0;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.private_data != NULL) {
        length = event->param.conn.private_data_len;
        memcpy(preamble, event->param.conn.private_data, MIN(length, sizeof preamble));
    }
    g_debug("rdma_cm: %s, status %d", rdma_event_str(type), event->status);
    /* From here on `id` may be destroyed by its session, unless it is a new one: it is compared, not
     * followed. */
    rdma_ack_cm_event(event);
    switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        handle_request(listener, id, preamble, length);
        break;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        handle_left(listener, id);
        break;
    default:
        break;
    }
}

/* ---- making one ---- */

static void listener_free(RmVerbsListener *listener)
{
    rm_verbs_events_stop(&listener->events);
    for (guint i = 0; i < listener->ids->len; i++)
        rdma_destroy_id(listener->ids->pdata[i]);
    g_ptr_array_unref(listener->ids);
    rm_verbs_events_close(&listener->events);
    g_strfreev(listener->addresses);
    g_mutex_clear(&listener->lock);
    g_free(listener);
}

/* 0 or a negative errno; -ENODEV, -EADDRNOTAVAIL if no RDMA device has the address. */
static int listen_at(RmVerbsListener *listener, struct sockaddr *address)
{
    struct rdma_cm_id *id;
    if (rdma_create_id(listener->events.channel, &id, NULL, RDMA_PS_TCP) != 0)
        return -errno;
    rm_verbs_packets_set(id, &(RmPacketOptions){.tos = listener->tos});
    if (rdma_bind_addr(id, address) != 0 || rdma_listen(id, BACKLOG) != 0) {
        int code = -errno;
        rdma_destroy_id(id);
        return code;
    }
    listener->port = g_ntohs(rdma_get_src_port(id));
    g_ptr_array_add(listener->ids, id);
    return 0;
}

/* Both families, or IPv4 where there is no IPv6. */
static int listen_at_all(RmVerbsListener *listener)
{
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_addr = in6addr_any, .sin6_port = g_htons(listener->port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = g_htons(listener->port)};
    int code = listen_at(listener, (struct sockaddr *)&v6);
    if (code == -EAFNOSUPPORT || code == -EADDRNOTAVAIL || code == -ENODEV)
        code = listen_at(listener, (struct sockaddr *)&v4);
    return code;
}

static gboolean listen_all_failed(RmVerbsListener *listener, int code, const char *where, GError **error)
{
    RmReason reason =
        code == -EACCES || code == -EPERM ? RM_REASON_PRIVILEGE : RM_REASON_TRANSPORT_UNAVAILABLE;
    return rm_set_errno(error, reason, -code, "cannot listen for RDMA connections at %s port %u%s", where,
                        listener->port, code == -EADDRINUSE ? "; is another rdmamigd running?" : "");
}

static gboolean start_listening(RmVerbsListener *listener, GError **error)
{
    if (listener->addresses[0] == NULL) {
        int code = listen_at_all(listener);
        return code == 0 || listen_all_failed(listener, code, "all addresses,", error);
    }
    int last = 0;
    for (char **text = listener->addresses; *text != NULL; text++) {
        struct sockaddr_storage native;
        g_autoptr(GSocketAddress) address = g_inet_socket_address_new_from_string(*text, listener->port);
        if (address == NULL || !g_socket_address_to_native(address, &native, sizeof native, NULL))
            return rm_fail(error, RM_REASON_USAGE, "--data-address %s: not a numeric IP address of this host",
                           *text);
        int code = listen_at(listener, (struct sockaddr *)&native);
        if (code == 0 && listener->host == NULL)
            listener->host = *text;
        if (code == -ENODEV || code == -EADDRNOTAVAIL)
            g_debug("%s: no RDMA device has this address", *text);
        else if (code < 0)
            return listen_all_failed(listener, code, *text, error);
        last = code;
    }
    g_autofree char *all = g_strjoinv(", ", listener->addresses);
    return listener->ids->len > 0 || listen_all_failed(listener, last, all, error);
}

static RmVerbsListener *listener_new(uint16_t port, char *const *addresses, RmChoice tos, GError **error)
{
    static const char *const none[] = {NULL};
    RmVerbsListener *listener = g_new0(RmVerbsListener, 1);
    listener->wished_port = listener->port = port;
    listener->addresses = g_strdupv(addresses != NULL ? (char **)addresses : (char **)none);
    listener->tos = tos;
    listener->ids = g_ptr_array_new();
    g_mutex_init(&listener->lock);
    if (rm_verbs_events_open(&listener->events, error) && start_listening(listener, error) &&
        rm_verbs_events_start(&listener->events, handle_event, listener, error))
        return listener;
    listener_free(listener);
    return NULL;
}

/* ---- sharing ---- */

static RmVerbsListener *find_locked(uint16_t port, char *const *addresses)
{
    static const char *const none[] = {NULL};
    const char *const *wanted = addresses != NULL ? (const char *const *)addresses : none;
    for (GSList *item = registry; item != NULL && port != 0; item = item->next) {
        RmVerbsListener *listener = item->data;
        if (listener->wished_port == port && g_strv_equal(wanted, (const char *const *)listener->addresses))
            return listener;
    }
    return NULL;
}

RmVerbsListener *rm_verbs_listener_join(uint16_t port, char *const *addresses, RmChoice tos,
                                        RmVerbsAcceptor *acceptor, GError **error)
{
    g_mutex_lock(&registry_lock);
    RmVerbsListener *listener = find_locked(port, addresses);
    if (listener == NULL) {
        listener = listener_new(port, addresses, tos, error);
        if (listener != NULL)
            registry = g_slist_prepend(registry, listener);
    }
    if (listener != NULL) {
        listener->references++;
        acceptor->log = rm_log_context();
        g_mutex_lock(&listener->lock);
        listener->acceptors = g_slist_prepend(listener->acceptors, acceptor);
        g_mutex_unlock(&listener->lock);
    }
    g_mutex_unlock(&registry_lock);
    return listener;
}

uint16_t rm_verbs_listener_port(const RmVerbsListener *listener)
{
    return listener->port;
}

const char *rm_verbs_listener_host(const RmVerbsListener *listener)
{
    return listener->host;
}

void rm_verbs_listener_mute(RmVerbsListener *listener, RmVerbsAcceptor *acceptor)
{
    g_mutex_lock(&listener->lock);
    listener->acceptors = g_slist_remove(listener->acceptors, acceptor);
    g_mutex_unlock(&listener->lock);
}

void rm_verbs_listener_leave(RmVerbsListener *listener)
{
    g_mutex_lock(&registry_lock);
    gboolean last = --listener->references == 0;
    if (last)
        registry = g_slist_remove(registry, listener);
    /* Under the registry's lock, so that the next session can have the port. */
    if (last)
        listener_free(listener);
    g_mutex_unlock(&registry_lock);
}
