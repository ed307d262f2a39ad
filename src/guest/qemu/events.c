/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events, table-driven. Those not listed say nothing about whether the guest can be moved; POWERDOWN is among
 * them: it is a request to the guest, which may ignore it. device_add has no event: rm_preflight_recheck()
 * compares.
 */
#include "guest/qemu/events.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

static const struct {
    const char *name;
    RmReason reason;
    const char *words;
} ends[] = {
    /* A reset changes RAM, device state and RAM layout (option ROMs) in ways that no dirty log shows. */
    {"RESET", RM_REASON_GUEST_RESET, "the guest was reset during the migration; try again"},
    {"SHUTDOWN", RM_REASON_GUEST_SHUTDOWN, "the guest shut down during the migration"},
    {"GUEST_PANICKED", RM_REASON_GUEST_PANIC, "the guest panicked during the migration"},
    {"SUSPEND", RM_REASON_GUEST_STATE,
     "the guest suspended itself during the migration; wake it and try again"},
    {"SUSPEND_DISK", RM_REASON_GUEST_STATE, "the guest suspended itself to disk during the migration"},
    {"DEVICE_DELETED", RM_REASON_GUEST_CHANGED, "a device was unplugged during the migration; try again"},
    {"ACPI_DEVICE_OST", RM_REASON_GUEST_CHANGED,
     "memory or a CPU was plugged or unplugged during the migration; try again"},
};

/* A disk error that stopped the guest (werror=stop, rerror=stop). */
static gboolean is_io_stop(json_object *event)
{
    json_object *data;
    const char *action = "";
    return json_object_object_get_ex(event, "data", &data) &&
           rm_json_string_opt(data, "action", &action, NULL) && strcmp(action, "stop") == 0;
}

static gboolean take(RmEvents *events, const char *name, json_object *event, GError **error)
{
    if (strcmp(name, "STOP") == 0) {
        events->paused_by_other = events->own_stops == 0;
        if (events->own_stops > 0)
            events->own_stops--;
        else
            return rm_fail(error, RM_REASON_GUEST_STATE,
                           "the guest was paused by somebody else during the migration");
    } else if (strcmp(name, "RESUME") == 0) {
        events->paused_by_other = FALSE;
        if (events->own_resumes > 0)
            events->own_resumes--;
        else
            return rm_fail(error, RM_REASON_GUEST_STATE,
                           "the guest was resumed by somebody else during the migration");
    } else if (strcmp(name, "BLOCK_IO_ERROR") == 0 && is_io_stop(event)) {
        return rm_fail(error, RM_REASON_GUEST_STATE,
                       "an I/O error on its disk stopped the guest (io-error): repair the "
                       "storage and let it continue before migrating it");
    }
    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        if (strcmp(ends[i].name, name) == 0)
            return rm_fail(error, ends[i].reason, "%s", ends[i].words);
    }
    return TRUE;
}

gboolean rm_events_poll(RmEvents *events, RmQmp *qmp, GError **error)
{
    /* What came before the end counts for more than the end itself: SHUTDOWN, then EOF. */
    g_autoptr(GError) first = NULL, receive = NULL;
    rm_qmp_receive(qmp, &receive);
    for (;;) {
        rm_autojson event = rm_qmp_next_event(qmp);
        const char *name;
        g_autoptr(GError) problem = NULL;
        if (event == NULL)
            break;
        if (!rm_json_string(event, "event", &name, &problem) || !take(events, name, event, &problem))
            first = first != NULL ? first : g_steal_pointer(&problem);
    }
    if (first == NULL)
        first = g_steal_pointer(&receive);
    if (first == NULL)
        return TRUE;
    g_propagate_error(error, g_steal_pointer(&first));
    return FALSE;
}
