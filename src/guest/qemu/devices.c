/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Devices by name.
 *
 * The first table names what defeats either the dirty tracker or the fence:
 *  - vfio, vdpa and their like DMA at any time to pages pinned for good: nothing marks those pages when they
 * are written, and no drain waits for them (the vhost-scsi target likewise has its own requests in flight);
 *  - vhost-user and ivshmem have other processes write, through mappings of their own.
 * In-kernel vhost-net and vhost-vsock are not in it: they write through QEMU's page tables, where the tracker
 * sees them.
 *
 * Found in three places: user-created devices in the object tree, network backends (QEMU has no structured
 * list of them: `info network`), and the drivers of block nodes.
 */
#include "guest/qemu/devices.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/qmp-hmp.h"
#include "guest/qemu/qom.h"

#include <string.h>

struct RmDevices {
    GHashTable *items; /* of Item, keyed by its id: what it is called, unique */
    char *puncher;     /* once asked for */
    unsigned version;  /* QEMU's */
};

typedef enum { DEVICE, NETWORK, NODE } Kind;

typedef struct {
    Kind kind;
    char *type;
} Item;

static const struct {
    Kind kind;
    const char *pattern; /* of the type, with * and ? */
    RmReason reason;
    const char *words;
    unsigned before; /* only with a QEMU older than that; 0: always */
} refused[] = {
    /* Since 8.1 it leaves its memory as it is where that does not travel with QEMU (x-ignore-shared). */
    {DEVICE, "virtio-mem*", RM_REASON_BALLOON,
     "cannot be moved with this QEMU, which takes no account of memory that it does not migrate itself: QEMU "
     "8.1 "
     "or newer does; or unplug it first",
     RM_QEMU_VERSION(8, 1)},
    {DEVICE, "hv-balloon*", RM_REASON_BALLOON,
     "gives memory back to the host, and has never been tried; start the guest without it"},
    {DEVICE, "vfio-*", RM_REASON_UNFENCEABLE,
     "writes guest memory by DMA that nothing reports; unplug it first"},
    {DEVICE, "vhost-scsi*", RM_REASON_UNFENCEABLE,
     "has I/O in flight that QEMU cannot wait for; use virtio-scsi"},
    {DEVICE, "vhost-vdpa*", RM_REASON_UNFENCEABLE,
     "writes guest memory by DMA that nothing reports; unplug it first"},
    {DEVICE, "pvrdma", RM_REASON_UNFENCEABLE, "lets an RDMA device write guest memory; unplug it first"},
    {NETWORK, "vhost-vdpa", RM_REASON_UNFENCEABLE,
     "writes guest memory by DMA that nothing reports; unplug it first"},
    {NODE, "nvme", RM_REASON_UNFENCEABLE,
     "reads from an NVMe device into pinned guest memory; use the host_device driver"},
    {NODE, "nvme-io_uring", RM_REASON_UNFENCEABLE,
     "is a libblkio driver with pinned guest memory; use the host_device driver"},
    {NODE, "io_uring", RM_REASON_UNFENCEABLE,
     "is a libblkio driver with pinned guest memory; use the file driver, aio=io_uring"},
    {NODE, "virtio-blk-vfio-pci", RM_REASON_UNFENCEABLE,
     "is a libblkio driver with pinned guest memory; use another one"},
    {NODE, "virtio-blk-vhost-vdpa", RM_REASON_UNFENCEABLE,
     "is a libblkio driver with pinned guest memory; use another one"},
    {NODE, "virtio-blk-vhost-user", RM_REASON_RAM_WRITERS, "has another process write guest memory"},
    {DEVICE, "vhost-user-*", RM_REASON_RAM_WRITERS, "has another process write guest memory"},
    {DEVICE, "ivshmem*", RM_REASON_RAM_WRITERS, "shares its memory with other guests or processes"},
    {DEVICE, "x-pci-proxy-dev", RM_REASON_RAM_WRITERS, "has another process write guest memory"},
    {NETWORK, "vhost-user", RM_REASON_RAM_WRITERS, "has another process write guest memory"},
};

/* Give pages back to the host in the middle of a round: such a guest is moved with care (source/round.c). */
static const char *const punchers[] = {"virtio-balloon*", "virtio-mem*"};

static void item_free(gpointer data)
{
    Item *item = data;
    g_free(item->type);
    g_free(item);
}

static void add(RmDevices *devices, Kind kind, char *id, const char *type)
{
    Item *item = g_new0(Item, 1);
    item->kind = kind;
    item->type = g_strdup(type);
    g_hash_table_insert(devices->items, id, item);
}

static gboolean list_devices(RmQmp *qmp, const char *path, RmDevices *devices, GError **error)
{
    g_autoptr(GHashTable) children = NULL;
    GHashTableIter iter;
    gpointer name, type;
    if (!rm_qom_list(qmp, path, &children, error))
        return FALSE;
    g_hash_table_iter_init(&iter, children);
    while (g_hash_table_iter_next(&iter, &name, &type)) {
        g_autofree char *child = rm_qom_child_type(type);
        if (child != NULL)
            add(devices, DEVICE, g_strdup_printf("device %s/%s", path, (char *)name), child);
    }
    return TRUE;
}

static gboolean list_networks(RmQmp *qmp, RmDevices *devices, GError **error)
{
    g_autofree char *text = NULL;
    if (!rm_qmp_hmp(qmp, "info network", &text, error))
        return FALSE;
    g_autoptr(GRegex) regex = g_regex_new("^[ \\\\]*(?<id>[^ :]+): index=[0-9]+,type=(?<type>[a-z0-9-]+)",
                                          G_REGEX_MULTILINE, 0, NULL);
    g_autoptr(GMatchInfo) match = NULL;
    for (g_regex_match(regex, text, 0, &match); g_match_info_matches(match); g_match_info_next(match, NULL)) {
        g_autofree char *id = g_match_info_fetch_named(match, "id"),
                        *type = g_match_info_fetch_named(match, "type");
        if (strcmp(type, "nic") != 0)
            add(devices, NETWORK, g_strdup_printf("netdev %s", id), type);
    }
    return TRUE;
}

gboolean rm_devices_nodes(RmQmp *qmp, json_object **ret_reply, json_object **ret_nodes, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_bool(arguments, "flat", TRUE);
    return rm_qmp_run(qmp, "query-named-block-nodes", arguments, ret_reply, error) &&
           rm_json_array(*ret_reply, "return", ret_nodes, error);
}

static gboolean list_nodes(RmQmp *qmp, RmDevices *devices, GError **error)
{
    rm_autojson reply = NULL;
    json_object *nodes;
    if (!rm_devices_nodes(qmp, &reply, &nodes, error))
        return FALSE;
    for (size_t i = 0; i < json_object_array_length(nodes); i++) {
        json_object *node = json_object_array_get_idx(nodes, i);
        const char *name, *driver;
        if (!rm_json_string(node, "node-name", &name, error) || !rm_json_string(node, "drv", &driver, error))
            return FALSE;
        add(devices, NODE, g_strdup_printf("block node %s", name), driver);
    }
    return TRUE;
}

gboolean rm_devices_list(RmQmp *qmp, RmDevices **ret_devices, GError **error)
{
    g_autoptr(RmDevices) devices = g_new0(RmDevices, 1);
    devices->version = rm_qmp_version(qmp);
    devices->items = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, item_free);
    if (!list_devices(qmp, "/machine/peripheral", devices, error) ||
        !list_devices(qmp, "/machine/peripheral-anon", devices, error) ||
        !list_networks(qmp, devices, error) || !list_nodes(qmp, devices, error))
        return FALSE;
    *ret_devices = g_steal_pointer(&devices);
    return TRUE;
}

void rm_devices_free(RmDevices *devices)
{
    if (devices == NULL)
        return;
    g_hash_table_unref(devices->items);
    g_free(devices->puncher);
    g_free(devices);
}

gboolean rm_devices_check(RmDevices *devices, const RmPreflightOptions *options, GError **error)
{
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
        GHashTableIter iter;
        gpointer id, value;
        if (refused[i].reason == RM_REASON_RAM_WRITERS && options->allow_untracked_writers)
            continue;
        g_hash_table_iter_init(&iter, devices->items);
        while (g_hash_table_iter_next(&iter, &id, &value)) {
            const Item *item = value;
            if ((refused[i].before != 0 && devices->version >= refused[i].before) ||
                item->kind != refused[i].kind || !g_pattern_match_simple(refused[i].pattern, item->type))
                continue;
            return rm_fail(error, refused[i].reason, "%s (%s) %s%s", (char *)id, item->type, refused[i].words,
                           refused[i].reason == RM_REASON_RAM_WRITERS
                               ? "; unplug it, or pass --allow-untracked-writers if it is known to be idle"
                               : "");
        }
    }
    return TRUE;
}

const char *rm_devices_puncher(RmDevices *devices)
{
    GHashTableIter iter;
    gpointer id, value;
    g_hash_table_iter_init(&iter, devices->items);
    while (devices->puncher == NULL && g_hash_table_iter_next(&iter, &id, &value)) {
        const Item *item = value;
        for (size_t i = 0; item->kind == DEVICE && i < G_N_ELEMENTS(punchers); i++) {
            if (g_pattern_match_simple(punchers[i], item->type))
                devices->puncher = g_strdup_printf("%s (%s)", (char *)id, item->type);
        }
    }
    return devices->puncher;
}

/* Something in `a` that `b` lacks or has otherwise; NULL if there is nothing. */
static const char *missing(RmDevices *a, RmDevices *b)
{
    GHashTableIter iter;
    gpointer id, value;
    g_hash_table_iter_init(&iter, a->items);
    while (g_hash_table_iter_next(&iter, &id, &value)) {
        const Item *other = g_hash_table_lookup(b->items, id);
        if (other == NULL || strcmp(other->type, ((Item *)value)->type) != 0)
            return id;
    }
    return NULL;
}

gboolean rm_devices_compare(RmDevices *then, RmDevices *now, GError **error)
{
    const char *id = missing(then, now);
    if (id != NULL)
        return rm_fail(error, RM_REASON_GUEST_CHANGED,
                       "%s was there when the migration began, and is not any more", id);
    id = missing(now, then);
    if (id != NULL)
        return rm_fail(error, RM_REASON_GUEST_CHANGED, "%s was added since the migration began; try again",
                       id);
    return TRUE;
}
