/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mutual TLS. */
#include "control/tls.h"

GSocket *rm_tls_socket(GIOStream *stream)
{
    if (G_IS_SOCKET_CONNECTION(stream))
        return g_socket_connection_get_socket(G_SOCKET_CONNECTION(stream));
    g_autoptr(GIOStream) base = NULL; /* the other one keeps it */
    g_object_get(stream, "base-io-stream", &base, NULL);
    return g_socket_connection_get_socket(G_SOCKET_CONNECTION(base));
}
