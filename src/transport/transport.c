/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transports built in. */
#include "transport/transport.h"

#include "config.h"

const RmTransport *const rm_transports[] = {
#if RM_RDMA
    &rm_transport_rdma,
#endif
    &rm_transport_tcp,
    NULL,
};

const RmTransport *rm_transport_find(const char *name)
{
    for (unsigned i = 0; rm_transports[i] != NULL; i++)
        if (g_strcmp0(rm_transports[i]->name, name) == 0)
            return rm_transports[i];
    return NULL;
}
