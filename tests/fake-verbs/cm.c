/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fake connection manager. Any address is that of the one device, but for two ranges of documentation:
 * nothing leads to 192.0.2.0/24, and no device of this host has 203.0.113.0/24.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NO_LISTENER 8 /* reasons of a REJ */
#define BY_CONSUMER 28

typedef struct {
    struct rdma_event_channel channel;
    GQueue events; /* of FakeEvent */
} FakeEventChannel;

typedef struct FakeId {
    struct rdma_cm_id id;
    struct FakeId *peer; /* from the request on, until either is destroyed */
    gboolean listening, connected;
    unsigned reported, acknowledged;
    int tos, ack_timeout, retries; /* -1: not set */
} FakeId;

typedef struct {
    struct rdma_cm_event event;
    FakeId *counted; /* whose destruction waits for it */
    uint8_t data[56];
} FakeEvent;

static GPtrArray *listeners;       /* lock: FakeId* */
static FakeVerbsSettings settings; /* lock */

static FakeId *fake_of(struct rdma_cm_id *id)
{
    return (FakeId *)id;
}

static FakeQp *qp_of(FakeId *id)
{
    return (FakeQp *)id->id.qp;
}

/* ---- events ---- */

static FakeEvent *push_event(FakeId *counted, FakeId *about, enum rdma_cm_event_type type, int status)
{
    FakeEventChannel *channel = (FakeEventChannel *)counted->id.channel;
    FakeEvent *event = g_new0(FakeEvent, 1);
    event->event = (struct rdma_cm_event){.id = &about->id, .event = type, .status = status};
    event->counted = counted;
    g_queue_push_tail(&channel->events, event);
    fake_wake(channel->channel.fd);
    return event;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
    fake_fabric_start();
    FakeEventChannel *channel = g_new0(FakeEventChannel, 1);
    channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    fake_verbs_lock();
    fake_fabric.counts.channels++;
    if (listeners == NULL)
        listeners = g_ptr_array_new();
    fake_verbs_unlock();
    return &channel->channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *base)
{
    FakeEventChannel *channel = (FakeEventChannel *)base;
    fake_verbs_lock();
    if (channel->events.length > 0)
        fake_violation("an event channel was destroyed before its connections");
    fake_fabric.counts.channels--;
    fake_verbs_unlock();
    close(channel->channel.fd);
    g_free(channel);
}

int rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **ret_event)
{
    FakeEventChannel *channel = (FakeEventChannel *)base;
    uint64_t value;
    for (;;) {
        if (read(channel->channel.fd, &value, sizeof value) != sizeof value)
            return -1;
        fake_verbs_lock();
        FakeEvent *event = g_queue_pop_head(&channel->events);
        if (event != NULL)
            event->counted->reported++;
        fake_verbs_unlock();
        if (event == NULL)
            continue; /* of a connection that has been destroyed since */
        *ret_event = &event->event;
        return 0;
    }
}

int rdma_ack_cm_event(struct rdma_cm_event *base)
{
    FakeEvent *event = (FakeEvent *)base;
    fake_verbs_lock();
    event->counted->acknowledged++;
    fake_verbs_unlock();
    g_free(event);
    return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type type)
{
    switch (type) {
    case RDMA_CM_EVENT_REJECTED:
        return "RDMA_CM_EVENT_REJECTED";
    case RDMA_CM_EVENT_DISCONNECTED:
        return "RDMA_CM_EVENT_DISCONNECTED";
    default:
        return "some rdma_cm event";
    }
}

/* ---- connections ---- */

static FakeId *id_new(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
    FakeId *id = g_new0(FakeId, 1);
    id->id.channel = channel;
    id->id.ps = ps;
    id->tos = id->ack_timeout = id->retries = -1;
    fake_fabric.counts.ids++;
    return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id, void *context,
                   enum rdma_port_space ps)
{
    fake_verbs_lock();
    *ret_id = &id_new(channel, ps)->id;
    fake_verbs_unlock();
    return 0;
}

/* Its queue pairs go to their end, and the peer hears of it. */
static void end_connection(FakeId *id)
{
    if (!id->connected)
        return;
    id->connected = FALSE;
    if (id->id.qp != NULL)
        fake_qp_break(qp_of(id));
    if (id->peer != NULL && id->peer->connected && !fake_verbs_knobs.no_disconnects)
        push_event(id->peer, id->peer, RDMA_CM_EVENT_DISCONNECTED, 0);
}

int rdma_disconnect(struct rdma_cm_id *base)
{
    FakeId *id = fake_of(base);
    fake_verbs_lock();
    gboolean connected = id->connected;
    end_connection(id);
    if (connected)
        push_event(id, id, RDMA_CM_EVENT_DISCONNECTED, 0);
    fake_verbs_unlock();
    errno = EINVAL;
    return connected ? 0 : -1;
}

static void drop_events(FakeId *id)
{
    FakeEventChannel *channel = (FakeEventChannel *)id->id.channel;
    for (GList *item = channel->events.head, *next; item != NULL; item = next) {
        FakeEvent *event = item->data;
        next = item->next;
        if (event->counted != id && event->event.id != &id->id)
            continue;
        g_free(event);
        g_queue_delete_link(&channel->events, item);
    }
}

int rdma_destroy_id(struct rdma_cm_id *base)
{
    FakeId *id = fake_of(base);
    gint64 deadline = g_get_monotonic_time() + 5 * G_TIME_SPAN_SECOND;
    fake_verbs_lock();
    if (id->id.qp != NULL && !fake_verbs_knobs.keep_queue_pairs)
        fake_violation("a connection was destroyed before its queue pair");
    end_connection(id);
    drop_events(id);
    while (id->acknowledged < id->reported)
        if (!g_cond_wait_until(&fake_fabric.changed, &fake_fabric.lock, deadline)) {
            fake_violation("a connection was destroyed while one of its events was never acknowledged");
            break;
        }
    if (id->peer != NULL)
        id->peer->peer = NULL;
    g_ptr_array_remove(listeners, id);
    fake_fabric.counts.ids--;
    fake_verbs_unlock();
    g_free(id);
    return 0;
}

int rdma_set_option(struct rdma_cm_id *base, int level, int name, void *value, size_t length)
{
    FakeId *id = fake_of(base);
    if (fake_verbs_knobs.no_options || level != RDMA_OPTION_ID || length != 1) {
        errno = ENOSYS;
        return -1;
    }
    fake_verbs_lock();
    if (id->listening || id->connected || (name == RDMA_OPTION_ID_TOS && id->id.verbs != NULL))
        fake_violation("option %d was set when it had no effect any more", name);
    *(name == RDMA_OPTION_ID_TOS ? &id->tos : &id->ack_timeout) = *(const uint8_t *)value;
    fake_verbs_unlock();
    return 0;
}

FakeVerbsSettings fake_verbs_settings(void)
{
    fake_verbs_lock();
    FakeVerbsSettings copy = settings;
    fake_verbs_unlock();
    return copy;
}

static socklen_t size_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* The first three bytes of an IPv4 address, 0 of any other. */
static uint32_t network_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET
               ? g_ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 8
               : 0;
}

static uint16_t *port_of(struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    static uint16_t next_port = 20000;
    if (network_of(address) == 0xcb0071) {
        errno = ENODEV;
        return -1;
    }
    memcpy(&id->route.addr.src_storage, address, size_of(address));
    if (*port_of(&id->route.addr.src_addr) == 0) {
        *port_of(&id->route.addr.src_addr) = g_htons(next_port);
        next_port++;
    }
    return 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    return *port_of(&id->route.addr.src_addr);
}

static gboolean is_any(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return ((const struct sockaddr_in *)address)->sin_addr.s_addr == 0;
}

/* Who listens at the port and address, one of them perhaps being all. */
static FakeId *find_listener(struct sockaddr *address)
{
    for (guint i = 0; i < listeners->len; i++) {
        FakeId *id = listeners->pdata[i];
        struct sockaddr *own = &id->id.route.addr.src_addr;
        gboolean same = own->sa_family == address->sa_family && memcmp(own, address, size_of(own)) == 0;
        if (*port_of(own) == *port_of(address) && (same || is_any(own) || is_any(address)))
            return id;
    }
    return NULL;
}

int rdma_listen(struct rdma_cm_id *base, int backlog)
{
    FakeId *id = fake_of(base);
    fake_verbs_lock();
    gboolean busy = find_listener(&base->route.addr.src_addr) != NULL;
    if (!busy) {
        id->listening = TRUE;
        g_ptr_array_add(listeners, id);
    }
    fake_verbs_unlock();
    errno = EADDRINUSE;
    return busy ? -1 : 0;
}

static void bind_to_device(FakeId *id)
{
    id->id.verbs = &fake_fabric.context;
    id->id.port_num = 1;
}

int rdma_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from, struct sockaddr *to, int timeout_ms)
{
    FakeId *id = fake_of(base);
    if (from != NULL && network_of(from) == 0xcb0071) {
        errno = ENODEV;
        return -1;
    }
    fake_verbs_lock();
    memcpy(&id->id.route.addr.dst_storage, to, size_of(to));
    if (network_of(to) == 0xc00002) {
        push_event(id, id, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
    } else {
        bind_to_device(id);
        push_event(id, id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    }
    fake_verbs_unlock();
    return 0;
}

int rdma_resolve_route(struct rdma_cm_id *base, int timeout_ms)
{
    fake_verbs_lock();
    push_event(fake_of(base), fake_of(base), RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    fake_verbs_unlock();
    return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    fake_verbs_lock();
    FakeQp *qp = fake_qp_new(pd, init);
    id->qp = qp != NULL ? &qp->qp : NULL;
    id->pd = pd;
    fake_verbs_unlock();
    return qp != NULL ? 0 : -1;
}

int rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *parameters)
{
    FakeId *id = fake_of(base);
    fake_verbs_lock();
    FakeId *listener = find_listener(&id->id.route.addr.dst_addr);
    if (listener == NULL) {
        push_event(id, id, RDMA_CM_EVENT_REJECTED, NO_LISTENER);
    } else if (!fake_verbs_knobs.deaf) {
        FakeId *other = id_new(listener->id.channel, RDMA_PS_TCP);
        other->peer = id;
        other->tos = listener->tos;
        id->peer = other;
        id->retries = parameters->retry_count;
        bind_to_device(other);
        memcpy(&other->id.route.addr.dst_storage, &id->id.route.addr.dst_storage,
               sizeof(struct sockaddr_storage));
        FakeEvent *event = push_event(listener, other, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        event->event.listen_id = &listener->id;
        /* InfiniBand delivers all there is room for, whatever was sent. */
        memcpy(event->data, parameters->private_data, MIN(parameters->private_data_len, sizeof event->data));
        event->event.param.conn.private_data = event->data;
        event->event.param.conn.private_data_len = sizeof event->data;
    }
    fake_verbs_unlock();
    return 0;
}

int rdma_accept(struct rdma_cm_id *base, struct rdma_conn_param *parameters)
{
    FakeId *id = fake_of(base);
    fake_verbs_lock();
    if (id->peer != NULL && id->peer->id.qp != NULL) {
        id->connected = id->peer->connected = TRUE;
        settings = (FakeVerbsSettings){id->peer->retries, id->peer->tos, id->peer->ack_timeout, id->tos,
                                       id->ack_timeout};
        fake_qp_connect(qp_of(id), qp_of(id->peer));
        push_event(id, id, RDMA_CM_EVENT_ESTABLISHED, 0);
        push_event(id->peer, id->peer, RDMA_CM_EVENT_ESTABLISHED, 0);
    } else {
        push_event(id, id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT); /* whoever asked has gone */
    }
    fake_verbs_unlock();
    return 0;
}

int rdma_reject(struct rdma_cm_id *base, const void *data, uint8_t length)
{
    FakeId *id = fake_of(base);
    fake_verbs_lock();
    if (id->peer != NULL)
        push_event(id->peer, id->peer, RDMA_CM_EVENT_REJECTED, BY_CONSUMER);
    fake_verbs_unlock();
    return 0;
}
