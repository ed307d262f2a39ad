/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A transient scope unit, by systemd's D-Bus interface (org.freedesktop.systemd1(5)). */
#include "handover/scope.h"

#include "common/reason.h"

#include <string.h>

#define BOOTED "/run/systemd/system" /* sd_booted(3) looks for this folder */
#define TIMEOUT_MS 3000

gboolean rm_scope_request(GDBusConnection *connection, const char *name, const char *description, pid_t pid,
                          GError **error)
{
    const guint32 pids[] = {(guint32)pid};
    GVariantBuilder properties;
    g_variant_builder_init(&properties, G_VARIANT_TYPE("a(sv)"));
    g_variant_builder_add(&properties, "(sv)", "PIDs",
                          g_variant_new_fixed_array(G_VARIANT_TYPE_UINT32, pids, 1, sizeof pids[0]));
    g_variant_builder_add(&properties, "(sv)", "Description", g_variant_new_string(description));
    /* Gone with its process, however that ended. */
    g_variant_builder_add(&properties, "(sv)", "CollectMode", g_variant_new_string("inactive-or-failed"));
    GVariant *arguments = g_variant_new("(ssa(sv)a(sa(sv)))", name, "fail", &properties, NULL);
    g_autoptr(GVariant) job = g_dbus_connection_call_sync(
        connection, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager", "StartTransientUnit", arguments, G_VARIANT_TYPE("(o)"),
        G_DBUS_CALL_FLAGS_NO_AUTO_START, TIMEOUT_MS, NULL, error);
    return job != NULL;
}

gboolean rm_scope_enter(const char *name, const char *description, pid_t pid, GError **error)
{
    if (!g_file_test(BOOTED, G_FILE_TEST_IS_DIR))
        return rm_fail(error, RM_REASON_INTERNAL, "systemd does not run here");
    g_autofree char *address = g_dbus_address_get_for_bus_sync(G_BUS_TYPE_SYSTEM, NULL, error);
    if (address == NULL)
        return FALSE;
    g_autoptr(GDBusConnection) connection = g_dbus_connection_new_for_address_sync(
        address,
        G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT | G_DBUS_CONNECTION_FLAGS_MESSAGE_BUS_CONNECTION, NULL,
        NULL, error);
    if (connection == NULL)
        return FALSE;
    gboolean ok = rm_scope_request(connection, name, description, pid, error);
    g_dbus_connection_close_sync(connection, NULL, NULL);
    return ok;
}

gboolean rm_scope_is_ours(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/cgroup", (int)pid);
    g_autofree char *ours = NULL, *its = NULL;
    return g_file_get_contents("/proc/self/cgroup", &ours, NULL, NULL) &&
           g_file_get_contents(path, &its, NULL, NULL) && strcmp(ours, its) == 0;
}
