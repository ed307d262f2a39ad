/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A channel's verbs objects: made together, ended in order. */
#include "transport/verbs/qp.h"

#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

static gboolean failed(struct rdma_cm_id *id, const char *what, GError **error)
{
    int code = errno;
    RmReason reason = code == ENOMEM || code == EPERM ? RM_REASON_PRIVILEGE : RM_REASON_TRANSPORT;
    const char *hint =
        code == ENOMEM ? "; raise the limit of locked memory (ulimit -l, LimitMEMLOCK= in the unit)" : "";
    return rm_fail(error, reason, "%s: cannot create %s: %s%s", ibv_get_device_name(id->verbs->device), what,
                   g_strerror(code), hint);
}

static gboolean create_messages(RmVerbsQp *qp, GError **error)
{
    void *page =
        mmap(NULL, RM_VERBS_MESSAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return failed(qp->id, "a page for messages", error);
    qp->messages = page;
    /* Local write only: what arrives is placed by a receive that we post. */
    qp->messages_mr = ibv_reg_mr(qp->pd, page, RM_VERBS_MESSAGE_BYTES, IBV_ACCESS_LOCAL_WRITE);
    return qp->messages_mr != NULL || failed(qp->id, "a registration", error);
}

gboolean rm_verbs_qp_create(RmVerbsQp *qp, struct rdma_cm_id *id, unsigned send_wish, unsigned receives,
                            GError **error)
{
    *qp = (RmVerbsQp){.id = id};
    if (!rm_verbs_limits_probe(id->verbs, id->port_num, &qp->limits, error))
        return FALSE;
    if (receives > qp->limits.max_qp_wr || receives + 2 > qp->limits.max_cqe)
        return rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                       "%s: a queue pair needs %u receives, the device has %u (max_qp_wr)",
                       ibv_get_device_name(id->verbs->device), receives, qp->limits.max_qp_wr);
    /* When a queue pair fails, every request in it completes, whether it asked for that or not: the
     * completion queue has room for all of them, so that it cannot overflow. */
    qp->send_depth = MIN(MIN(send_wish, qp->limits.max_qp_wr), qp->limits.max_cqe - receives - 1);
    qp->pd = ibv_alloc_pd(id->verbs);
    if (qp->pd == NULL)
        return failed(id, "a protection domain", error);
    qp->events = ibv_create_comp_channel(id->verbs);
    if (qp->events == NULL || fcntl(qp->events->fd, F_SETFL, fcntl(qp->events->fd, F_GETFL) | O_NONBLOCK) < 0)
        return failed(id, "a completion channel", error);
    qp->cq = ibv_create_cq(id->verbs, (int)(qp->send_depth + receives + 1), NULL, qp->events, 0);
    if (qp->cq == NULL)
        return failed(id, "a completion queue", error);
    if (!create_messages(qp, error))
        return FALSE;
    struct ibv_qp_init_attr init = {
        .send_cq = qp->cq,
        .recv_cq = qp->cq,
        .cap = {.max_send_wr = qp->send_depth,
                .max_recv_wr = MAX(receives, 1),
                .max_send_sge = 1,
                .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 0,
    };
    return rdma_create_qp(id, qp->pd, &init) == 0 || failed(id, "a queue pair", error);
}

gboolean rm_verbs_qp_break(RmVerbsQp *qp)
{
    if (qp->id == NULL || qp->id->qp == NULL)
        return TRUE;
    rdma_disconnect(qp->id); /* fails if it was never connected, or no longer is */
    if (ibv_destroy_qp(qp->id->qp) != 0)
        return FALSE;
    qp->id->qp = NULL; /* rdma_destroy_qp() would have hidden a failure */
    return TRUE;
}

void rm_verbs_qp_clear(RmVerbsQp *qp)
{
    if (!rm_verbs_qp_break(qp)) {
        /* A device that keeps it may use what belongs to it, which therefore stays. */
        rdma_destroy_id(qp->id);
        *qp = (RmVerbsQp){0};
        return;
    }
    if (qp->messages_mr != NULL)
        ibv_dereg_mr(qp->messages_mr);
    if (qp->cq != NULL)
        ibv_destroy_cq(qp->cq);
    if (qp->events != NULL)
        ibv_destroy_comp_channel(qp->events);
    if (qp->pd != NULL)
        ibv_dealloc_pd(qp->pd);
    if (qp->id != NULL)
        rdma_destroy_id(qp->id);
    if (qp->messages != NULL)
        munmap(qp->messages, RM_VERBS_MESSAGE_BYTES);
    *qp = (RmVerbsQp){0};
}

int rm_verbs_qp_sleep(RmVerbsQp *qp, int wake_fd, int timeout_ms)
{
    if (!qp->armed) {
        int code = ibv_req_notify_cq(qp->cq, 0);
        qp->armed = code == 0;
        return -code;
    }
    struct pollfd fds[] = {{.fd = qp->events->fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    if (poll(fds, G_N_ELEMENTS(fds), timeout_ms) < 0)
        return errno == EINTR ? 0 : -errno;
    struct ibv_cq *cq;
    void *context;
    if (fds[0].revents == 0 || ibv_get_cq_event(qp->events, &cq, &context) != 0)
        return 0;
    ibv_ack_cq_events(cq, 1);
    qp->armed = FALSE;
    return 0;
}
