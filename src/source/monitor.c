/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The status socket of a session. */
#include "source/monitor.h"

#include "control/status-socket.h"

#include <string.h>

struct RmMonitor {
    RmSession *session;
    RmReporter *reporter;
    RmStatusSocket *socket;
};

static json_object *answer(json_object *request, const char *command, gpointer data)
{
    RmMonitor *monitor = data;
    if (strcmp(command, "cancel") == 0)
        rm_session_cancel(monitor->session);
    return rm_reporter_status(monitor->reporter);
}

RmMonitor *rm_monitor_new(RmSession *session, RmReporter *reporter, GError **error)
{
    RmMonitor *monitor = g_new0(RmMonitor, 1);
    *monitor = (RmMonitor){.session = session, .reporter = reporter};
    monitor->socket = rm_status_socket_new(RM_STATUS_SEND, session->id, answer, monitor, error);
    if (monitor->socket == NULL)
        g_clear_pointer(&monitor, g_free);
    return monitor;
}

void rm_monitor_free(RmMonitor *monitor)
{
    if (monitor == NULL)
        return;
    rm_status_socket_free(monitor->socket);
    g_free(monitor);
}
