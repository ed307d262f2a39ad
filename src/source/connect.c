/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connections to a destination. */
#include "source/connect.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

#define CONNECT_TIMEOUT_MS 10000

static GSocketConnection *connect_to(const char *host, uint16_t port, GCancellable *cancel, GError **error)
{
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_autoptr(GError) problem = NULL;
    g_autoptr(GSocketConnectable) address = g_network_address_new(host, port);
    g_socket_client_set_timeout(client, CONNECT_TIMEOUT_MS / 1000);
    g_socket_client_set_enable_proxy(client, FALSE);
    g_autoptr(GSocketConnection) connection = g_socket_client_connect(client, address, cancel, &problem);
    if (connection == NULL) {
        if (g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CANCELLED))
            g_propagate_error(error, g_steal_pointer(&problem));
        else
            rm_fail(error, RM_REASON_PEER_UNREACHABLE,
                    "cannot reach %s port %u: %s; is `rdmamigd --listen` running there, and the port open?",
                    host, port, problem->message);
        return NULL;
    }
    g_socket_set_timeout(g_socket_connection_get_socket(connection), 0);
    return g_steal_pointer(&connection);
}

RmControl *rm_connect_control(const RmTarget *target, GCancellable *cancel, GError **error)
{
    g_autoptr(GSocketConnection) connection = connect_to(target->host, target->port, cancel, error);
    g_autoptr(GIOStream) stream = NULL;
    if (connection == NULL)
        return NULL;
    if (target->tls == NULL)
        stream = G_IO_STREAM(g_steal_pointer(&connection));
    else
        stream = rm_tls_connect(target->tls, connection, target->tls_host ?: target->host, CONNECT_TIMEOUT_MS,
                                cancel, error);
    if (stream == NULL) {
        g_prefix_error(error, "%s port %u: ", target->host, target->port);
        return NULL;
    }
    RmControl *control = rm_control_new(stream, NULL, &(RmControlParams){0});
    rm_control_set_peer_name(control, "destination");
    return control;
}

gboolean rm_connect_query(const RmTarget *target, const char *session, const char *token, RmFate *ret_fate,
                          gboolean *ret_done, GError **error)
{
    g_autoptr(RmControl) control = rm_connect_control(target, NULL, error);
    rm_autojson reply = NULL;
    const char *fate;
    gboolean done = FALSE;
    if (control == NULL)
        return FALSE;
    json_object *message = rm_json_message(RM_MSG_QUERY);
    rm_json_add_string(message, "session", session);
    rm_json_add_string(message, "token", token);
    if (!rm_control_request(control, message, CONNECT_TIMEOUT_MS, NULL, &reply, error) ||
        !rm_message_expect(reply, RM_MSG_FATE, error) || !rm_json_string(reply, "fate", &fate, error) ||
        !rm_json_bool_opt(reply, "done", &done, error))
        return FALSE;
    rm_control_expect_end(control);
    *ret_fate = RM_FATE_UNKNOWN;
    if (strcmp(fate, rm_fate_name(RM_FATE_COMMITTED)) == 0)
        *ret_fate = RM_FATE_COMMITTED;
    else if (strcmp(fate, rm_fate_name(RM_FATE_ABORTED)) == 0)
        *ret_fate = RM_FATE_ABORTED;
    *ret_done = *ret_fate == RM_FATE_COMMITTED && done;
    return TRUE;
}

char *rm_connect_format(const char *host, uint16_t port)
{
    return g_strdup_printf(strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host, port);
}
