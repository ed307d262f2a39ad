/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The transports built in. */
#include "transport/transport.h"

#include "common/reason.h"
#include "config.h"

#include <errno.h>
#include <string.h>

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

gboolean rm_transport_is_wished(const RmTransport *transport, const char *wish)
{
    return strcmp(wish, "auto") == 0 || strcmp(wish, transport->name) == 0;
}

void rm_transports_probe(const char *wish)
{
    for (unsigned i = 0; rm_transports[i] != NULL; i++) {
        g_autofree char *why = NULL;
        if (rm_transport_is_wished(rm_transports[i], wish) && !rm_transports[i]->available(&why))
            g_info("transport %s: %s", rm_transports[i]->name, why);
    }
}

/* ---- transports that register nothing ---- */

int rm_tx_prepare_nothing(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n)
{
    return 0;
}

uint64_t rm_tx_no_window(RmTx *tx, unsigned channel)
{
    return 0;
}

int rm_tx_release_nothing(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n)
{
    return 0;
}

int rm_tx_no_mark(RmTx *tx, unsigned channel, uint32_t *ret_mark)
{
    return -EOPNOTSUPP;
}

uint64_t rm_rx_registers_nothing(RmRx *rx)
{
    return 0;
}

gboolean rm_rx_release_nothing(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents, unsigned n,
                               uint32_t mark, GError **error)
{
    return rm_fail(error, RM_REASON_PROTOCOL, "`release` over %s, which registers nothing", rx->ops->name);
}
