/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What rdmamigd tells of its sessions. The daemon's lock is held while a session is looked at: it can't end
 * meanwhile, and neither can its transport. A view has a lock of its own, which is taken after that.
 */
#include "destination/status.h"

#include "config.h"
#include "control/json.h"
#include "destination/view.h"

#include <string.h>

static json_object *session_status(const RmDaemonSession *session)
{
    uint64_t landed = session->rx != NULL ? session->rx->ops->payload_bytes(session->rx) : 0;
    return rm_view_status(session->view, landed);
}

static json_object *daemon_status(RmDaemon *daemon)
{
    GHashTableIter iter;
    gpointer value;
    json_object *status = json_object_new_object();
    json_object *sessions = json_object_new_array();
    const char *host = daemon->options->host != NULL           ? daemon->options->host
                       : rm_listen_everywhere(daemon->options) ? "*"
                                                               : "127.0.0.1";
    g_autofree char *address =
        g_strdup_printf(strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, (unsigned)daemon->port);
    g_mutex_lock(&daemon->lock);
    g_hash_table_iter_init(&iter, daemon->sessions);
    while (g_hash_table_iter_next(&iter, NULL, &value))
        json_object_array_add(sessions, session_status(value));
    rm_json_add_bool(status, "stopping", daemon->stopping);
    g_mutex_unlock(&daemon->lock);
    rm_json_add_uint(status, "pid", (uint64_t)getpid());
    rm_json_add_string(status, "listen", address);
    rm_json_add_string(status, "boot", daemon->boot);
    rm_json_add_string(status, "version", RM_VERSION);
    rm_json_add(status, "sessions", sessions);
    return status;
}

/* Ends it as the daemon's own end would. */
static json_object *cancel(RmDaemon *daemon, json_object *request)
{
    const char *id = "";
    json_object *answer = json_object_new_object();
    rm_json_string_opt(request, "session", &id, NULL);
    g_mutex_lock(&daemon->lock);
    RmDaemonSession *session = g_hash_table_lookup(daemon->sessions, id);
    gboolean may = session != NULL && rm_view_may_cancel(session->view);
    if (may) {
        g_message("session %s: cancelled by the operator", session->id);
        g_cancellable_cancel(session->cancel);
    }
    g_mutex_unlock(&daemon->lock);
    rm_json_add_bool(answer, "found", session != NULL);
    rm_json_add_bool(answer, "cancelled", may);
    return answer;
}

static json_object *answer(json_object *request, const char *command, gpointer data)
{
    RmDaemon *daemon = data;
    if (strcmp(command, "status") == 0)
        return daemon_status(daemon);
    return strcmp(command, "cancel") == 0 ? cancel(daemon, request) : NULL;
}

RmStatusSocket *rm_daemon_status_new(RmDaemon *daemon, GError **error)
{
    return rm_status_socket_new(RM_STATUS_RECV, daemon->boot, answer, daemon, error);
}
