/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a connection's packets are marked and waited for, as far as the operator said so.
 *
 * What of it has an effect where: retries and the wait for an acknowledgement belong to who sends requests,
 * and here that is the source alone (the destination only answers); the number of retries goes with its
 * connection request, and what an accepting end says about it is ignored (rdma_accept(3)). The mark of the
 * source's packets goes with the request, too: on InfiniBand and RoCE the destination's answers carry the
 * same, on iWARP they carry that of the listener.
 */
#pragma once

#include "transport/transport.h"

#include <rdma/rdma_cma.h>

/* Sets TOS and time-out, if they are given or have a value of our own choice. At the source before an address
 * is resolved; at the destination the TOS before listening, the time-out before a connection is accepted.
 * What the system can't do is left as it is, with a warning if the operator wanted it. */
void rm_verbs_packets_set(struct rdma_cm_id *id, const RmPacketOptions *options);
/* Says at level info what a channel has been set to. */
void rm_verbs_packets_tell(unsigned channel, const RmPacketOptions *options);

/* 4.096 us * 2^exponent (IBTA vol. 1, local ACK timeout). */
static inline uint64_t rm_verbs_ack_timeout_us(unsigned exponent)
{
    return (UINT64_C(4096) << exponent) / 1000;
}
