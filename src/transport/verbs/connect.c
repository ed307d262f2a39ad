/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connecting, step by step. */
#include "transport/verbs/connect.h"

#include "transport/address.h"
#include "transport/tcp/wire.h"
#include "transport/verbs/packets.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* Work requests in flight: enough of one page each to fill 100 Gbit/s over 80 microseconds. */
#define SEND_WISH 256u
#define RETRIES_DEFAULT RM_RETRIES_MAX
/* IBTA vol. 1, table 107 (reasons of a REJ). */
#define REJECTED_NO_LISTENER 8
#define REJECTED_BY_CONSUMER 28

/* One attempt at one address. */
typedef struct {
    RmVerbsConnector *connector;
    unsigned index;
    const char *where;
    gint64 deadline_us;
    RmPacketOptions packets;
    struct rdma_cm_id *id;
} Attempt;

static int left_ms(const Attempt *attempt)
{
    return (int)MAX((attempt->deadline_us - g_get_monotonic_time()) / 1000, 0);
}

/* ---- events ---- */

static gboolean rejected(const Attempt *attempt, int status, GError **error)
{
    if (status == REJECTED_BY_CONSUMER || status == -ECONNREFUSED || status == ECONNREFUSED)
        return rm_fail(error, RM_REASON_TOKEN,
                       "data channel %u was rejected by the destination at %s; its log says why. Is there "
                       "another rdmamigd "
                       "behind that address?",
                       attempt->index, attempt->where);
    if (status == REJECTED_NO_LISTENER)
        return rm_fail(error, RM_REASON_PEER_UNREACHABLE,
                       "data channel %u: no rdmamigd listens for RDMA connections at %s; --data-address of "
                       "rdmamigd names the "
                       "addresses of its RDMA device",
                       attempt->index, attempt->where);
    return rm_fail(error, RM_REASON_PEER_UNREACHABLE,
                   "data channel %u: the connection to %s was rejected (reason %d)", attempt->index,
                   attempt->where, status);
}

static gboolean unexpected(const Attempt *attempt, enum rdma_cm_event_type type, int status, GError **error)
{
    const char *problem = status < 0 ? g_strerror(-status) : rdma_event_str(type);
    switch (type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
        return rm_fail(error, RM_REASON_PEER_UNREACHABLE,
                       "data channel %u: %s cannot be reached through an RDMA device of this host: %s; `rdma "
                       "link` lists them, --data-source and --rdma-device choose one, and --data-address of "
                       "rdmamigd an address that it reaches",
                       attempt->index, attempt->where, problem);
    case RDMA_CM_EVENT_REJECTED:
        return rejected(attempt, status, error);
    case RDMA_CM_EVENT_UNREACHABLE:
        return rm_fail(
            error, RM_REASON_PEER_UNREACHABLE,
            "data channel %u: no answer from %s: %s; for RoCE a firewall must let UDP port 4791 through",
            attempt->index, attempt->where, problem);
    default:
        return rm_fail(error, RM_REASON_TRANSPORT, "data channel %u: the connection to %s failed: %s",
                       attempt->index, attempt->where, problem);
    }
}

/* Sleeps until there is an event. */
static gboolean wait_readable(const Attempt *attempt, GError **error)
{
    RmVerbsShared *shared = attempt->connector->shared;
    struct pollfd fds[] = {{.fd = attempt->connector->channel->fd, .events = POLLIN},
                           {.fd = shared->wake_fd, .events = POLLIN}};
    int n = poll(fds, G_N_ELEMENTS(fds), left_ms(attempt));
    if (!rm_failure_get(&shared->failure, error))
        return FALSE;
    if (n < 0 && errno != EINTR)
        return rm_set_errno(error, RM_REASON_INTERNAL, errno, "data channel %u: cannot wait", attempt->index);
    if (left_ms(attempt) == 0)
        return rm_fail(error, RM_REASON_PEER_TIMEOUT,
                       "data channel %u: no answer from %s within %u ms; for RoCE a firewall must let UDP "
                       "port 4791 through",
                       attempt->index, attempt->where, attempt->connector->params->timeout_ms);
    return TRUE;
}

/* Waits for `wanted`. Another connection's event means that it has ended already, and this one needs it. */
static gboolean wait_event(const Attempt *attempt, enum rdma_cm_event_type wanted, GError **error)
{
    for (;;) {
        struct rdma_cm_event *event;
        if (rdma_get_cm_event(attempt->connector->channel, &event) != 0) {
            if (errno != EAGAIN && errno != EINTR)
                return rm_set_errno(error, RM_REASON_TRANSPORT, errno, "data channel %u: rdma_cm failed",
                                    attempt->index);
            if (!wait_readable(attempt, error))
                return FALSE;
            continue;
        }
        enum rdma_cm_event_type type = event->event;
        int status = event->status;
        gboolean ours = event->id == attempt->id;
        rdma_ack_cm_event(event);
        if (ours && type == wanted && status == 0)
            return TRUE;
        if (ours || type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_DEVICE_REMOVAL)
            return unexpected(attempt, type, status, error);
    }
}

/* ---- steps ---- */

static gboolean step_failed(const Attempt *attempt, const char *what, GError **error)
{
    int code = errno;
    gboolean nowhere = code == ENODEV || code == EADDRNOTAVAIL || code == ENETUNREACH ||
                       code == EHOSTUNREACH || code == EINVAL;
    return rm_set_errno(
        error, nowhere ? RM_REASON_PEER_UNREACHABLE : RM_REASON_TRANSPORT, code,
        "data channel %u: cannot %s %s through an RDMA device (`rdma link` lists them; --data-source and "
        "--rdma-device choose one, and --data-address of rdmamigd an address that it reaches)",
        attempt->index, what, attempt->where);
}

/* The operator's wish, completed by our own choice. The card gives up on a packet after one time-out and one
 * more for each retry; some wait up to four times as long. Half of ours leaves room for it to be the one that
 * tells, for it knows more than a clock. */
static RmPacketOptions complete(const RmTxParams *params)
{
    RmPacketOptions packets = params->packets;
    if (!packets.retries.given)
        packets.retries = (RmChoice){TRUE, RETRIES_DEFAULT};
    if (packets.ack_timeout.given)
        return packets;
    uint64_t each_us = (uint64_t)params->timeout_ms * 1000 / 2 / (packets.retries.value + 1u);
    uint8_t exponent = 8; /* 1 ms: less is asking for false alarms */
    while (exponent < 20 && rm_verbs_ack_timeout_us(exponent + 1) <= each_us)
        exponent++;
    packets.ack_timeout.value = exponent;
    return packets;
}

static gboolean resolve(Attempt *attempt, GSocketAddress *from, GSocketAddress *to, GError **error)
{
    RmVerbsConnector *connector = attempt->connector;
    struct sockaddr_storage source = {0}, target = {0};
    if (!g_socket_address_to_native(to, &target, sizeof target, error) ||
        (from != NULL && !g_socket_address_to_native(from, &source, sizeof source, error)))
        return FALSE;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&target;
    if (target.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) && v6->sin6_scope_id == 0)
        return rm_fail(error, RM_REASON_USAGE,
                       "data channel %u: %s is a link-local address, which needs its interface: write it as "
                       "ADDRESS%%INTERFACE",
                       attempt->index, attempt->where);
    if (rdma_create_id(connector->channel, &attempt->id, NULL, RDMA_PS_TCP) != 0)
        return step_failed(attempt, "make a connection to", error);
    rm_verbs_packets_set(attempt->id, &attempt->packets);
    if (rdma_resolve_addr(attempt->id, from != NULL ? (struct sockaddr *)&source : NULL,
                          (struct sockaddr *)&target, left_ms(attempt)) != 0)
        return step_failed(attempt, "find a way to", error);
    if (!wait_event(attempt, RDMA_CM_EVENT_ADDR_RESOLVED, error))
        return FALSE;
    if (rdma_resolve_route(attempt->id, left_ms(attempt)) != 0)
        return step_failed(attempt, "find a route to", error);
    return wait_event(attempt, RDMA_CM_EVENT_ROUTE_RESOLVED, error) &&
           rm_verbs_wish_check(&connector->wish, attempt->id, error);
}

static gboolean introduce(Attempt *attempt, GError **error)
{
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble preamble = {.channel = attempt->index};
    memcpy(preamble.token, attempt->connector->params->token, sizeof preamble.token);
    rm_tcp_preamble_format(&preamble, bytes);
    /* No reads or atomics are offered or asked for. 7 RNR retries: without end; our own time-out is the
     * bound. */
    struct rdma_conn_param parameters = {
        .private_data = bytes,
        .private_data_len = sizeof bytes,
        .flow_control = 1,
        .retry_count = attempt->packets.retries.value,
        .rnr_retry_count = 7,
    };
    if (rdma_connect(attempt->id, &parameters) != 0)
        return step_failed(attempt, "connect to", error);
    return wait_event(attempt, RDMA_CM_EVENT_ESTABLISHED, error);
}

static gboolean check_gid(const RmVerbsConnector *connector, const RmVerbsPath *path, GError **error)
{
    int wanted = connector->wish.gid_index;
    return wanted < 0 || wanted == path->gid_index ||
           rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                   "--gid-index %d: rdma_cm took %s; the RoCE version is the host's "
                   "choice (cma_roce_mode), and --data-source must be that GID's address",
                   wanted, path->text);
}

static gboolean try_address(RmVerbsConnector *connector, unsigned index, GSocketAddress *from,
                            GSocketAddress *to, RmVerbsQp *qp, RmVerbsPath *ret_path, GError **error)
{
    g_autofree char *where = g_socket_connectable_to_string(G_SOCKET_CONNECTABLE(to));
    gint64 allowed_us = (gint64)connector->params->timeout_ms * G_TIME_SPAN_MILLISECOND;
    Attempt attempt = {
        connector, index, where, g_get_monotonic_time() + allowed_us, complete(connector->params), NULL};
    *qp = (RmVerbsQp){0};
    if (!resolve(&attempt, from, to, error)) {
        if (attempt.id != NULL)
            rdma_destroy_id(attempt.id);
        return FALSE;
    }
    gboolean ok = rm_verbs_qp_create(qp, attempt.id, SEND_WISH, 0, error) && introduce(&attempt, error);
    if (ok) {
        rm_verbs_path_query(qp->id, ret_path);
        rm_verbs_packets_tell(index, &attempt.packets);
        ok = check_gid(connector, ret_path, error);
        if (!ok)
            rm_verbs_path_clear(ret_path);
    }
    if (!ok)
        rm_verbs_qp_clear(qp);
    return ok;
}

/* ---- addresses ---- */

/* --data-source, else the address of the wished-for device; NULL: rdma_cm's choice. */
static gboolean local_address(const RmVerbsConnector *connector, GSocketAddress **ret_address, GError **error)
{
    if (!rm_address_source(connector->params, ret_address, error))
        return FALSE;
    return *ret_address != NULL || rm_verbs_wish_address(&connector->wish, ret_address, error);
}

gboolean rm_verbs_connect(RmVerbsConnector *connector, unsigned index, RmVerbsQp *qp, RmVerbsPath *ret_path,
                          GError **error)
{
    g_autoptr(GSocketAddress) from = NULL;
    g_autoptr(GSocketConnectable) target = rm_address_target(connector->params, error);
    if (target == NULL || !local_address(connector, &from, error))
        return FALSE;
    g_autoptr(GSocketAddressEnumerator) addresses = g_socket_connectable_enumerate(target);
    g_autoptr(GError) last = NULL; /* of the addresses tried */
    for (;;) {
        g_autoptr(GError) problem = NULL;
        g_autoptr(GSocketAddress) to = g_socket_address_enumerator_next(addresses, NULL, &problem);
        if (to == NULL && last != NULL)
            break;
        if (to == NULL)
            return rm_fail(error, RM_REASON_PEER_UNREACHABLE, "data channel %u: %s", index,
                           problem != NULL ? problem->message : "the destination's name has no address");
        if (from != NULL && g_socket_address_get_family(from) != g_socket_address_get_family(to)) {
            g_clear_error(&last);
            rm_fail(&last, RM_REASON_PEER_UNREACHABLE,
                    "data channel %u: the source's and the destination's data addresses are "
                    "not of one family",
                    index);
            continue;
        }
        g_clear_error(&last);
        if (try_address(connector, index, from, to, qp, ret_path, &last))
            return TRUE;
        if (rm_failure_code(&connector->shared->failure) < 0)
            break;
    }
    g_propagate_error(error, g_steal_pointer(&last));
    return FALSE;
}
