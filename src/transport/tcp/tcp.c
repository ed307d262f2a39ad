/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp transport's entry in the table. */
#include "transport/tcp/destination.h"
#include "transport/tcp/source.h"

static gboolean tcp_available(char **ret_why)
{
    return TRUE; /* the control channel came over it */
}

const RmTransport rm_transport_tcp = {
    .name = "tcp",
    .tx_new = rm_tcp_source_new,
    .rx_new = rm_tcp_destination_new,
    .available = tcp_available,
};
