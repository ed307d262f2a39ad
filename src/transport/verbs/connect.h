/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connecting at the source: address, route, queue pair, connection, each asked for and waited for, within one
 * time-out a channel. A wait also ends when a failure is set (RmVerbsShared), which is how it is cancelled.
 */
#pragma once

#include "transport/transport.h"
#include "transport/verbs/writer.h"

typedef struct {
    const RmTxParams *params;
    RmVerbsShared *shared;
    struct rdma_event_channel *channel; /* of all connections of this source */
    RmVerbsWish wish;
} RmVerbsConnector;

/* Connects `index` with the preamble that introduces it. On success *qp is connected; on failure it is
 * cleared. Reasons usage, protocol, peer-unreachable, peer-timeout, token-rejected, transport-unavailable,
 * privilege, cancelled. */
gboolean rm_verbs_connect(RmVerbsConnector *connector, unsigned index, RmVerbsQp *qp, RmVerbsPath *ret_path,
                          GError **error);
