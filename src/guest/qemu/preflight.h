/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The checks that refuse a migration before a byte moves, and those of them that are made again when the
 * guest has been stopped, and when it has been saved. */
#pragma once

#include "guest/qemu/devices.h"

/* ret_devices is for rm_preflight_recheck(); caller frees. Reasons guest-state, guest-busy,
 * migration-blocked, balloon, unfenceable-device, ram-other-writers, nested-guest, block-job. */
gboolean rm_preflight(RmQmp *qmp, pid_t pid, GPtrArray *blocks, const RmPreflightOptions *options,
                      RmDevices **ret_devices, GError **error);

/* Whether QEMU has no migration under way. Reason guest-busy. */
gboolean rm_preflight_prepare(RmQmp *qmp, GError **error);

/* Stopped: what must not be there when the state is saved. Reason block-job. */
gboolean rm_preflight_save(RmQmp *qmp, GError **error);

/* Saved. `devices` as the preflight saw them; NULL if there was none. Reasons guest-changed and the
 * preflight's. */
gboolean rm_preflight_recheck(RmQmp *qmp, pid_t pid, GPtrArray *blocks, const RmPreflightOptions *options,
                              RmDevices *devices, GError **error);
