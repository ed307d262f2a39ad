/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Devices: limits, choice, and what a connection came to use. */
#include "transport/verbs/device.h"

#include "common/reason.h"
#include "common/size.h"
#include "memory/block.h"

#include <errno.h>
#include <string.h>

#define NO_GID (-1)

/* ---- limits ---- */

gboolean rm_verbs_limits_probe(struct ibv_context *context, uint8_t port, RmVerbsLimits *ret_limits,
                               GError **error)
{
    struct ibv_device_attr device = {0};
    struct ibv_port_attr attributes = {0};
    const char *name = ibv_get_device_name(context->device);
    int code = ibv_query_device(context, &device);
    if (code == 0)
        code = ibv_query_port(context, port, &attributes);
    if (code != 0)
        return rm_set_errno(error, RM_REASON_TRANSPORT, code, "%s port %u: cannot ask for its limits", name,
                            port);
    uint64_t page_mask = ~(uint64_t)(RM_PAGE - 1);
    RmVerbsLimits limits = {
        .max_qp_wr = (uint32_t)device.max_qp_wr,
        .max_cqe = (uint32_t)device.max_cqe,
        .max_mr = (uint32_t)device.max_mr,
        .max_mr_size = device.max_mr_size & page_mask,
        .max_msg_sz = attributes.max_msg_sz & page_mask,
    };
    /* Two requests: a write and the end of the round behind it. */
    if (device.max_qp_wr < 2 || device.max_cqe < 4 || device.max_mr < 2 || device.max_sge < 1 ||
        limits.max_mr_size == 0 || limits.max_msg_sz == 0)
        return rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                       "%s port %u is too small to be used: max_qp_wr %d, max_cqe %d, max_mr %d, max_mr_size "
                       "%" G_GUINT64_FORMAT ", max_msg_sz %u; use --transport tcp",
                       name, port, device.max_qp_wr, device.max_cqe, device.max_mr,
                       (guint64)device.max_mr_size, attributes.max_msg_sz);
    *ret_limits = limits;
    return TRUE;
}

/* ---- presence ---- */

static gboolean has_active_port(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr attributes = {0};
    gboolean active = FALSE;
    if (context == NULL)
        return FALSE;
    if (ibv_query_device(context, &attributes) == 0)
        for (unsigned port = 1; port <= attributes.phys_port_cnt && !active; port++) {
            struct ibv_port_attr state = {0};
            active = ibv_query_port(context, (uint8_t)port, &state) == 0 && state.state == IBV_PORT_ACTIVE;
        }
    ibv_close_device(context);
    return active;
}

gboolean rm_verbs_device_present(char **ret_why)
{
    int n = 0;
    struct ibv_device **devices = ibv_get_device_list(&n);
    gboolean active = FALSE;
    for (int i = 0; devices != NULL && i < n && !active; i++)
        active = has_active_port(devices[i]);
    if (devices != NULL)
        ibv_free_device_list(devices);
    if (n == 0 || !active) {
        *ret_why =
            g_strdup(n == 0 ? "no RDMA device" : "no RDMA device that can be opened has an active port");
        return FALSE;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    if (channel == NULL) {
        *ret_why = g_strdup_printf(
            "rdma_cm cannot be used: %s (modprobe rdma_ucm; access to /dev/infiniband/rdma_cm)",
            g_strerror(errno));
        return FALSE;
    }
    rdma_destroy_event_channel(channel);
    return TRUE;
}

/* ---- choice ---- */

gboolean rm_verbs_wish_parse(RmVerbsWish *wish, const char *device, int gid_index, GError **error)
{
    *wish = (RmVerbsWish){.gid_index = gid_index < 0 ? NO_GID : gid_index};
    if (device == NULL)
        return gid_index < 0 || rm_fail(error, RM_REASON_USAGE, "--gid-index needs --rdma-device");
    const char *colon = strrchr(device, ':');
    uint64_t port = 0;
    if (colon != NULL && !rm_parse_uint(colon + 1, 1, UINT8_MAX, &port, error)) {
        g_prefix_error(error, "--rdma-device %s: ", device);
        return FALSE;
    }
    wish->name = colon != NULL ? g_strndup(device, (gsize)(colon - device)) : g_strdup(device);
    wish->port = (unsigned)port;
    return TRUE;
}

void rm_verbs_wish_clear(RmVerbsWish *wish)
{
    g_clear_pointer(&wish->name, g_free);
}

static struct ibv_context *open_by_name(const char *name)
{
    int n = 0;
    struct ibv_device **devices = ibv_get_device_list(&n);
    struct ibv_context *context = NULL;
    for (int i = 0; devices != NULL && i < n && context == NULL; i++)
        if (g_strcmp0(ibv_get_device_name(devices[i]), name) == 0)
            context = ibv_open_device(devices[i]);
    if (devices != NULL)
        ibv_free_device_list(devices);
    return context;
}

/* A RoCE GID is an IP address: IPv4 mapped into IPv6, or IPv6, whose scope is the interface's index. */
static GSocketAddress *address_of(const struct ibv_gid_entry *entry)
{
    struct in6_addr inner;
    memcpy(&inner, entry->gid.raw, sizeof inner);
    if (IN6_IS_ADDR_V4MAPPED(&inner)) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        memcpy(&v4.sin_addr, entry->gid.raw + 12, sizeof v4.sin_addr);
        return g_socket_address_new_from_native(&v4, sizeof v4);
    }
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = inner};
    if (IN6_IS_ADDR_LINKLOCAL(&inner))
        v6.sin6_scope_id = entry->ndev_ifindex;
    return g_socket_address_new_from_native(&v6, sizeof v6);
}

/* How well a GID suits when none is named: IPv4 over RoCE v2 is what every switch routes. */
static int rank(const struct ibv_gid_entry *entry)
{
    struct in6_addr inner;
    memcpy(&inner, entry->gid.raw, sizeof inner);
    int kind = IN6_IS_ADDR_V4MAPPED(&inner) ? 3 : IN6_IS_ADDR_LINKLOCAL(&inner) ? 1 : 2;
    return kind + (entry->gid_type == IBV_GID_TYPE_ROCE_V2 ? 3 : 0);
}

static gboolean choose_gid(const RmVerbsWish *wish, struct ibv_context *context,
                           struct ibv_gid_entry *ret_entry)
{
    struct ibv_device_attr device = {0};
    int best = 0;
    if (ibv_query_device(context, &device) != 0)
        return FALSE;
    for (unsigned port = 1; port <= device.phys_port_cnt; port++) {
        struct ibv_port_attr attributes = {0};
        if ((wish->port != 0 && wish->port != port) ||
            ibv_query_port(context, (uint8_t)port, &attributes) != 0)
            continue;
        for (int i = 0; i < attributes.gid_tbl_len; i++) {
            struct ibv_gid_entry entry = {0};
            if ((wish->gid_index != NO_GID && wish->gid_index != i) ||
                ibv_query_gid_ex(context, port, (uint32_t)i, &entry, 0) != 0 || rank(&entry) <= best)
                continue;
            best = rank(&entry);
            *ret_entry = entry;
        }
    }
    return best > 0;
}

gboolean rm_verbs_wish_address(const RmVerbsWish *wish, GSocketAddress **ret_address, GError **error)
{
    struct ibv_gid_entry entry;
    *ret_address = NULL;
    if (wish->name == NULL)
        return TRUE;
    struct ibv_context *context = open_by_name(wish->name);
    if (context == NULL)
        return rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                       "--rdma-device %s: no such device, or it cannot be opened; `ibv_devices` lists them",
                       wish->name);
    gboolean found = choose_gid(wish, context, &entry);
    ibv_close_device(context);
    if (!found)
        return rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                       "--rdma-device %s: no such port or GID index; `ibv_devinfo -v -d %s` lists them",
                       wish->name, wish->name);
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V1 || entry.gid_type == IBV_GID_TYPE_ROCE_V2)
        *ret_address = address_of(&entry);
    return TRUE;
}

gboolean rm_verbs_wish_check(const RmVerbsWish *wish, struct rdma_cm_id *id, GError **error)
{
    if (wish->name == NULL)
        return TRUE;
    const char *name = ibv_get_device_name(id->verbs->device);
    if (g_strcmp0(wish->name, name) == 0 && (wish->port == 0 || wish->port == id->port_num))
        return TRUE;
    return rm_fail(
        error, RM_REASON_TRANSPORT_UNAVAILABLE,
        "the data addresses lead to %s port %u, not to --rdma-device %s; name an address of that device",
        name, id->port_num, wish->name);
}

/* ---- the way taken ---- */

static const char *type_name(struct ibv_context *context, unsigned gid_type)
{
    if (context->device->transport_type == IBV_TRANSPORT_IWARP)
        return "iWARP";
    switch (gid_type) {
    case IBV_GID_TYPE_ROCE_V1:
        return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
        return "RoCE v2";
    default:
        return "InfiniBand";
    }
}

/* Headers, trailers and checksums of a packet in the middle of a write (IBTA vol. 1, 5.2; RoCE annexes A16,
 * A17). */
static unsigned overhead_of(struct ibv_context *context, unsigned gid_type)
{
    enum {
        ETHERNET = 14 + 4,
        IP_UDP = 20 + 8,
        GRH = 40,
        BTH_ICRC = 12 + 4,
        LRH_VCRC = 8 + 2,
        TCP_DDP = 20 + 20 + 2 + 14 + 4
    };
    if (context->device->transport_type == IBV_TRANSPORT_IWARP)
        return ETHERNET + TCP_DDP;
    if (gid_type == IBV_GID_TYPE_ROCE_V2)
        return ETHERNET + IP_UDP + BTH_ICRC;
    return gid_type == IBV_GID_TYPE_ROCE_V1 ? ETHERNET + GRH + BTH_ICRC : LRH_VCRC + BTH_ICRC;
}

void rm_verbs_path_query(struct rdma_cm_id *id, RmVerbsPath *ret_path)
{
    struct ibv_qp_attr attributes = {0};
    struct ibv_qp_init_attr init;
    struct ibv_gid_entry entry = {.gid_type = IBV_GID_TYPE_IB};
    GString *text = g_string_new(NULL);
    gboolean known = ibv_query_qp(id->qp, &attributes, IBV_QP_AV | IBV_QP_PATH_MTU, &init) == 0;
    gboolean global =
        known && attributes.ah_attr.is_global &&
        ibv_query_gid_ex(id->verbs, id->port_num, attributes.ah_attr.grh.sgid_index, &entry, 0) == 0;
    *ret_path = (RmVerbsPath){.gid_index = global ? attributes.ah_attr.grh.sgid_index : NO_GID,
                              .mtu = known && attributes.path_mtu != 0 ? 128u << attributes.path_mtu : 1024,
                              .overhead = overhead_of(id->verbs, entry.gid_type)};
    g_string_printf(text, "%s port %u, %s", ibv_get_device_name(id->verbs->device), id->port_num,
                    type_name(id->verbs, entry.gid_type));
    if (global) {
        g_autoptr(GInetAddress) gid = g_inet_address_new_from_bytes(entry.gid.raw, G_SOCKET_FAMILY_IPV6);
        g_autofree char *gid_text = g_inet_address_to_string(gid);
        g_string_append_printf(text, ", GID index %d (%s)", ret_path->gid_index, gid_text);
    }
    g_string_append_printf(text, ", path MTU %u bytes", ret_path->mtu);
    ret_path->text = g_string_free(text, FALSE);
}

void rm_verbs_path_clear(RmVerbsPath *path)
{
    g_clear_pointer(&path->text, g_free);
}
