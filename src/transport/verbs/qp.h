/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One end of a data channel: a connected queue pair with its own protection domain, completion queue and a
 * page for messages.
 *
 * A domain of its own for each channel makes the device enforce what the protocol says: a key of one
 * channel's chunk is worth nothing on another channel, of this session or any other.
 *
 * Fork: nothing needs to be done for it. Shared mappings (guest RAM, and the buffers made here) are not
 * copied on write, and of pinned private pages the child gets the copy since Linux 5.12; registering
 * needs 5.14 anyway (rm_block_populate()).
 */
#pragma once

#include "transport/verbs/device.h"

typedef struct {
    struct rdma_cm_id *id; /* owned */
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_cq *cq;
    void *messages; /* RM_VERBS_MESSAGE_BYTES, shared anonymous memory */
    struct ibv_mr *messages_mr;
    RmVerbsLimits limits;
    unsigned send_depth; /* work requests that may be outstanding */
    gboolean armed;      /* the owner thread's: an event will come */
} RmVerbsQp;

#define RM_VERBS_MESSAGE_BYTES 4096u

/* Makes everything on `id`, whose device must be known; takes `id` in any case. At most `send_wish` and
 * exactly `receives` requests can be outstanding. On failure *qp holds what there is: clear it. */
gboolean rm_verbs_qp_create(RmVerbsQp *qp, struct rdma_cm_id *id, unsigned send_wish, unsigned receives,
                            GError **error);

/* Disconnects and destroys the queue pair: once it has returned TRUE the device takes no packet for it any
 * more, and reads and writes no memory through it. FALSE if the device refused. Idempotent. */
gboolean rm_verbs_qp_break(RmVerbsQp *qp);

/* The rest; the channel's regions must have been deregistered. Accepts half-built and cleared ones. */
void rm_verbs_qp_clear(RmVerbsQp *qp);

/* Sleeps until there may be a completion, `wake_fd` is readable, or timeout_ms (-1: none) is over; the caller
 * then polls the queue again. The first call after a completion returns at once: it arms the event, and what
 * came before that gives none. 0 or a negative errno. */
int rm_verbs_qp_sleep(RmVerbsQp *qp, int wake_fd, int timeout_ms);
