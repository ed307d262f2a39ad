/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rdma transport's entry in the table. */
#include "transport/verbs/destination.h"
#include "transport/verbs/device.h"
#include "transport/verbs/source.h"

const RmTransport rm_transport_rdma = {
    .name = "rdma",
    .tx_new = rm_verbs_source_new,
    .rx_new = rm_verbs_destination_new,
    .available = rm_verbs_device_present,
};
