/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guest's devices and block nodes: which of them cannot be moved, and whether they are still the same. */
#pragma once

#include "guest/guest.h"
#include "guest/qemu/qmp.h"

/* What there was at one moment. */
typedef struct RmDevices RmDevices;

gboolean rm_devices_list(RmQmp *qmp, RmDevices **ret_devices, GError **error);
void rm_devices_free(RmDevices *devices);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmDevices, rm_devices_free)

/* Refuses what writes guest RAM unseen. Reasons balloon, unfenceable-device,
 * ram-other-writers, naming the device. */
gboolean rm_devices_check(RmDevices *devices, const RmPreflightOptions *options, GError **error);

/* All block nodes, as query-named-block-nodes tells them: *ret_nodes is an array inside *ret_reply (caller
 * puts). */
gboolean rm_devices_nodes(RmQmp *qmp, json_object **ret_reply, json_object **ret_nodes, GError **error);

/* A device that punches holes into RAM, "device ID (TYPE)", owned by `devices`; NULL if there is none. */
const char *rm_devices_puncher(RmDevices *devices);

/* Reason guest-changed, naming what came or went. */
gboolean rm_devices_compare(RmDevices *then, RmDevices *now, GError **error);
