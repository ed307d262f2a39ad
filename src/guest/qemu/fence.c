/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fence.
 *
 * `transaction` with no actions does nothing between a bdrv_drain_all_begin() and its end, and the drain is
 * what we want. Measured to wait for reads in flight on 7.2 and 10.0, with and without iothread. That it
 * drains is nobody's promise, so on versions outside the range `stop` and `cont` do it, which also drain, and
 * which cost the guest a real pause.
 */
#include "guest/qemu/fence.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/devices.h"
#include "guest/qemu/state.h"

#include <string.h>

#define DRAINS_FROM RM_QEMU_VERSION(7, 2)
#define DRAINS_TO RM_QEMU_VERSION(10, 999)

static gboolean has_block_nodes(RmQmp *qmp, gboolean *ret_has, GError **error)
{
    rm_autojson reply = NULL;
    json_object *nodes;
    if (!rm_devices_nodes(qmp, &reply, &nodes, error))
        return FALSE;
    *ret_has = json_object_array_length(nodes) > 0;
    return TRUE;
}

static gboolean drain_by_transaction(RmQmp *qmp, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add(arguments, "actions", json_object_new_array());
    return rm_qmp_run(qmp, "transaction", arguments, NULL, error);
}

/* A guest that does not run has no I/O in flight: stopping drained it. */
static gboolean drain_by_stop(RmQmp *qmp, RmEvents *events, GError **error)
{
    g_autofree char *run = NULL;
    if (!rm_state_query_run(qmp, &run, error))
        return FALSE;
    if (strcmp(run, "running") != 0)
        return TRUE;
    events->own_stops++;
    events->own_resumes++;
    gboolean stopped = rm_qmp_run(qmp, "stop", NULL, NULL, error);
    /* However stop ended, time-out and cancellation included: the guest was running, so let it. */
    rm_qmp_shield(qmp, TRUE);
    gboolean resumed = rm_qmp_run(qmp, "cont", NULL, NULL, stopped ? error : NULL);
    rm_qmp_shield(qmp, FALSE);
    return stopped && resumed;
}

gboolean rm_fence(RmQmp *qmp, RmEvents *events, int64_t *ret_stall_us, GError **error)
{
    gboolean needed = FALSE;
    *ret_stall_us = 0;
    if (!has_block_nodes(qmp, &needed, error))
        return FALSE;
    if (!needed || rm_fault("no-fence"))
        return TRUE;
    gint64 start = g_get_monotonic_time();
    unsigned version = rm_qmp_version(qmp);
    gboolean ok = version >= DRAINS_FROM && version <= DRAINS_TO ? drain_by_transaction(qmp, error)
                                                                 : drain_by_stop(qmp, events, error);
    *ret_stall_us = g_get_monotonic_time() - start;
    if (!ok)
        g_prefix_error(error, "waiting for disk I/O in flight: ");
    return ok;
}
