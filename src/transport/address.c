/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Addresses of data channels at the source. */
#include "transport/address.h"

#include "common/reason.h"
#include "control/json.h"

GSocketConnectable *rm_address_target(const RmTxParams *params, GError **error)
{
    const char *host = params->host;
    uint64_t port = 0;
    if (params->address == NULL) {
        rm_fail(error, RM_REASON_PROTOCOL, "the destination offered no address for data connections");
        return NULL;
    }
    if (!rm_json_string_opt(params->address, "host", &host, error) ||
        !rm_json_uint(params->address, "port", &port, error))
        return NULL;
    if (host == NULL || *host == '\0' || port == 0 || port > G_MAXUINT16) {
        rm_fail(error, RM_REASON_PROTOCOL,
                "the destination offered an impossible address for data connections: %s",
                json_object_to_json_string(params->address));
        return NULL;
    }
    /* Parses numeric addresses too, and keeps the scope of a link-local one. */
    return g_network_address_new(host, (guint16)port);
}

gboolean rm_address_source(const RmTxParams *params, GSocketAddress **ret_address, GError **error)
{
    const char *text = params->source_address;
    if (text == NULL)
        return TRUE;
    *ret_address = g_inet_socket_address_new_from_string(text, 0);
    return *ret_address != NULL ||
           rm_fail(error, RM_REASON_USAGE, "--data-source %s: not a numeric IP address of this host", text);
}
