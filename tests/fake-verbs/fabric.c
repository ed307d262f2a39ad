/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake network: queues, and the thread that moves what is in them. */
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void fake_wake(int fd)
{
    uint64_t one = 1;
    (void)!write(fd, &one, sizeof one);
}

/* ---- completion queues ---- */

static void push_completion(struct ibv_cq *base, FakeQp *qp, struct ibv_wc wc, unsigned slots)
{
    FakeCq *cq = (FakeCq *)base;
    FakeCompletion *completion = g_new0(FakeCompletion, 1);
    *completion = (FakeCompletion){wc, qp, slots};
    if (cq->completions.length >= (unsigned)cq->cq.cqe)
        fake_violation("a completion queue of %d was overrun", cq->cq.cqe);
    g_queue_push_tail(&cq->completions, completion);
    if (!cq->armed)
        return;
    FakeCompChannel *channel = (FakeCompChannel *)cq->cq.channel;
    cq->armed = FALSE;
    g_queue_push_tail(&channel->events, cq);
    fake_wake(channel->channel.fd);
}

int fake_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
    FakeCq *cq = (FakeCq *)base;
    int done = 0;
    fake_verbs_lock();
    while (done < n && cq->completions.length > 0) {
        g_autofree FakeCompletion *completion = g_queue_pop_head(&cq->completions);
        wc[done++] = completion->wc;
        if (completion->qp != NULL)
            completion->qp->used -= completion->slots;
    }
    g_mutex_unlock(&fake_fabric.lock); /* nothing here that the network waits for */
    return done;
}

int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    fake_verbs_lock();
    ((FakeCq *)cq)->armed = TRUE;
    g_mutex_unlock(&fake_fabric.lock);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    FakeCompChannel *channel = g_new0(FakeCompChannel, 1);
    channel->channel.context = context;
    channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    FakeCompChannel *channel = (FakeCompChannel *)base;
    close(channel->channel.fd);
    g_queue_clear(&channel->events);
    g_free(channel);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **ret_cq, void **ret_context)
{
    FakeCompChannel *channel = (FakeCompChannel *)base;
    uint64_t value;
    if (read(channel->channel.fd, &value, sizeof value) != sizeof value)
        return -1;
    fake_verbs_lock();
    *ret_cq = g_queue_pop_head(&channel->events);
    fake_verbs_unlock();
    *ret_context = NULL;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    if (cqe < 1 || cqe > fake_verbs_knobs.max_cqe) {
        errno = EINVAL;
        return NULL;
    }
    FakeCq *cq = g_new0(FakeCq, 1);
    cq->cq.context = context;
    cq->cq.channel = channel;
    cq->cq.cqe = cqe;
    fake_verbs_lock();
    fake_fabric.counts.cqs++;
    fake_verbs_unlock();
    return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    FakeCq *cq = (FakeCq *)base;
    fake_verbs_lock();
    if (cq->users > 0) {
        if (!fake_verbs_knobs.keep_queue_pairs)
            fake_violation("a completion queue was destroyed before its queue pair");
        fake_verbs_unlock();
        return EBUSY;
    }
    g_queue_remove_all(&((FakeCompChannel *)cq->cq.channel)->events, cq);
    g_queue_clear_full(&cq->completions, g_free);
    fake_fabric.counts.cqs--;
    fake_verbs_unlock();
    g_free(cq);
    return 0;
}

/* ---- queue pairs ---- */

static void send_free(gpointer data)
{
    g_free(((FakeSend *)data)->taken);
    g_free(data);
}

FakeQp *fake_qp_new(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    static uint32_t number = 16;
    if (init->cap.max_send_wr > (unsigned)fake_verbs_knobs.max_qp_wr ||
        init->cap.max_recv_wr > (unsigned)fake_verbs_knobs.max_qp_wr) {
        errno = EINVAL;
        return NULL;
    }
    FakeQp *qp = g_new0(FakeQp, 1);
    qp->qp = (struct ibv_qp){.context = pd->context,
                             .pd = pd,
                             .send_cq = init->send_cq,
                             .recv_cq = init->recv_cq,
                             .qp_num = ++number};
    qp->max_send = init->cap.max_send_wr;
    qp->max_receive = init->cap.max_recv_wr;
    ((FakeCq *)init->send_cq)->users++;
    g_ptr_array_add(fake_fabric.qps, qp);
    fake_fabric.counts.qps++;
    return qp;
}

void fake_qp_connect(FakeQp *a, FakeQp *b)
{
    a->peer = b;
    b->peer = a;
    a->connected = b->connected = TRUE;
}

static void forget_completions(FakeCq *cq, FakeQp *qp)
{
    for (GList *item = cq->completions.head, *next; item != NULL; item = next) {
        next = item->next;
        if (((FakeCompletion *)item->data)->qp != qp)
            continue;
        g_free(item->data);
        g_queue_delete_link(&cq->completions, item);
    }
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    FakeQp *qp = (FakeQp *)base;
    fake_verbs_lock();
    if (fake_verbs_knobs.keep_queue_pairs) {
        fake_verbs_unlock();
        return EBUSY;
    }
    if (qp->peer != NULL)
        qp->peer->peer = NULL;
    ((FakeCq *)qp->qp.send_cq)->users--;
    forget_completions((FakeCq *)qp->qp.send_cq, qp);
    g_queue_clear_full(&qp->sends, send_free);
    g_queue_clear_full(&qp->receives, g_free);
    g_ptr_array_remove(fake_fabric.qps, qp);
    fake_fabric.counts.qps--;
    fake_verbs_unlock();
    g_free(qp);
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *init)
{
    *attributes =
        (struct ibv_qp_attr){.path_mtu = IBV_MTU_4096, .ah_attr = {.is_global = 1, .grh = {.sgid_index = 1}}};
    return 0;
}

/* Writes into the chunk of `request`, itself among them. */
static unsigned count_chunk(FakeQp *qp, const struct ibv_send_wr *request)
{
    uint64_t size = fake_verbs_knobs.chunk_size, n = 0;
    for (GList *item = qp->sends.head; size != 0 && item != NULL; item = item->next) {
        const FakeSend *send = item->data;
        n += !send->completed && send->request.opcode == IBV_WR_RDMA_WRITE &&
             send->request.wr.rdma.remote_addr / size == request->wr.rdma.remote_addr / size;
    }
    return request->opcode == IBV_WR_RDMA_WRITE ? (unsigned)n : 0;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    FakeQp *qp = (FakeQp *)base;
    int code = 0;
    fake_verbs_lock();
    for (; request != NULL && code == 0; request = request->next) {
        *bad = request;
        if (!qp->connected || request->num_sge != 1)
            code = EINVAL;
        else if (qp->used >= qp->max_send)
            code = ENOMEM;
        if (code == ENOMEM)
            fake_violation("a send queue of %u was posted to when it was full", qp->max_send);
        if (code != 0)
            break;
        FakeSend *send = g_new0(FakeSend, 1);
        send->request = *request;
        send->piece = request->sg_list[0];
        g_queue_push_tail(&qp->sends, send);
        qp->used++;
        fake_fabric.counts.chunk_most = MAX(fake_fabric.counts.chunk_most, count_chunk(qp, request));
        fake_fabric.counts.in_flight_most = MAX(fake_fabric.counts.in_flight_most, qp->used);
        if (!(request->send_flags & IBV_SEND_SIGNALED))
            fake_fabric.counts.unsignalled++;
    }
    if (qp->broken)
        fake_qp_break(qp);
    fake_verbs_unlock();
    return code;
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    FakeQp *qp = (FakeQp *)base;
    int code = 0;
    fake_verbs_lock();
    *bad = request;
    if (qp->receives.length >= qp->max_receive) {
        code = ENOMEM;
        fake_violation("a receive queue of %u was posted to when it was full", qp->max_receive);
    } else {
        FakeReceive *receive = g_new0(FakeReceive, 1);
        receive->request = *request;
        receive->piece = request->sg_list[0];
        g_queue_push_tail(&qp->receives, receive);
    }
    if (qp->broken)
        fake_qp_break(qp);
    fake_verbs_unlock();
    return code;
}

/* ---- moving ---- */

static void complete_send(FakeQp *qp, FakeSend *send, enum ibv_wc_status status)
{
    struct ibv_wc wc = {.wr_id = send->request.wr_id,
                        .status = status,
                        .opcode = send->request.opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE,
                        .qp_num = qp->qp.qp_num};
    send->completed = TRUE;
    qp->unasked++;
    if (status == IBV_WC_SUCCESS && !(send->request.send_flags & IBV_SEND_SIGNALED))
        return;
    push_completion(qp->qp.send_cq, qp, wc, qp->unasked);
    qp->unasked = 0;
}

void fake_qp_break(FakeQp *qp)
{
    qp->broken = TRUE;
    for (FakeSend *send; (send = g_queue_pop_head(&qp->sends)) != NULL; send_free(send))
        if (!send->completed)
            complete_send(qp, send, send->status != IBV_WC_SUCCESS ? send->status : IBV_WC_WR_FLUSH_ERR);
    for (FakeReceive *receive; (receive = g_queue_pop_head(&qp->receives)) != NULL; g_free(receive)) {
        struct ibv_wc wc = {
            .wr_id = receive->request.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV};
        push_completion(qp->qp.recv_cq, qp, wc, 0);
    }
}

/* Requests before it have completed as they were; it fails, the rest is flushed. A responder that refuses is
 * at its end, too. */
static void fail_send(FakeQp *qp, FakeSend *send, enum ibv_wc_status status)
{
    FakeQp *peer = qp->peer;
    for (GList *item = qp->sends.head; item != NULL && item->data != send; item = item->next)
        if (!((FakeSend *)item->data)->completed)
            complete_send(qp, item->data, IBV_WC_SUCCESS);
    send->status = status;
    if (!send->completed)
        complete_send(qp, send, status);
    fake_qp_break(qp);
    if (peer != NULL && status == IBV_WC_REM_ACCESS_ERR)
        fake_qp_break(peer);
}

/* Where the bytes of a request are read from; NULL if the local key is no good. */
static const uint8_t *local_bytes(FakeQp *qp, const FakeSend *send)
{
    if (send->taken != NULL)
        return send->taken;
    FakeMr *mr = fake_mr_find(qp->qp.pd, send->piece.lkey, send->piece.addr, send->piece.length, 0);
    return mr != NULL ? (const uint8_t *)mr->mr.addr + (send->piece.addr - mr->iova) : NULL;
}

static void land_write(FakeQp *qp, FakeSend *send)
{
    uint64_t remote = send->request.wr.rdma.remote_addr, length = send->piece.length;
    const uint8_t *bytes = local_bytes(qp, send);
    if (bytes == NULL) {
        fail_send(qp, send, IBV_WC_LOC_PROT_ERR);
        return;
    }
    if (qp->peer == NULL || qp->peer->broken) {
        fail_send(qp, send, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    FakeMr *mr =
        fake_mr_find(qp->peer->qp.pd, send->request.wr.rdma.rkey, remote, length, IBV_ACCESS_REMOTE_WRITE);
    if (mr == NULL || length > fake_verbs_knobs.max_msg_sz) {
        fail_send(qp, send, mr == NULL ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_LEN_ERR);
        return;
    }
    uint64_t left = length - send->landed;
    uint64_t piece = left > 4096 && g_rand_boolean(fake_fabric.rand) ? left / 2 : left;
    memcpy((uint8_t *)mr->mr.addr + (remote - mr->iova) + send->landed, bytes + send->landed, piece);
    send->landed += piece;
    if (send->landed < length)
        return;
    send->done = TRUE;
    fake_fabric.counts.writes++;
    fake_fabric.counts.longest = MAX(fake_fabric.counts.longest, length);
}

static void land_send(FakeQp *qp, FakeSend *send)
{
    const uint8_t *bytes = local_bytes(qp, send);
    FakeQp *peer = qp->peer;
    if (bytes == NULL || peer == NULL || peer->broken) {
        fail_send(qp, send, bytes == NULL ? IBV_WC_LOC_PROT_ERR : IBV_WC_RETRY_EXC_ERR);
        return;
    }
    g_autofree FakeReceive *receive = g_queue_pop_head(&peer->receives);
    if (receive == NULL)
        return; /* not ready: again later, without end */
    struct ibv_wc wc = {
        .wr_id = receive->request.wr_id, .opcode = IBV_WC_RECV, .byte_len = send->piece.length};
    FakeMr *mr = fake_mr_find(peer->qp.pd, receive->piece.lkey, receive->piece.addr, receive->piece.length,
                              IBV_ACCESS_LOCAL_WRITE);
    wc.status = mr == NULL                                   ? IBV_WC_LOC_PROT_ERR
                : send->piece.length > receive->piece.length ? IBV_WC_LOC_LEN_ERR
                                                             : IBV_WC_SUCCESS;
    if (wc.status == IBV_WC_SUCCESS)
        memcpy((uint8_t *)(uintptr_t)receive->piece.addr, bytes, send->piece.length);
    if (fake_verbs_knobs.garble_sends)
        ((uint8_t *)(uintptr_t)receive->piece.addr)[g_rand_int_range(fake_fabric.rand, 0, 8)] ^= 0x80;
    push_completion(peer->qp.recv_cq, peer, wc, 0);
    send->done = TRUE;
    fake_fabric.counts.sends++;
}

/* Completes the oldest request that has not been, if it may. TRUE if so. */
static gboolean complete_next(FakeQp *qp)
{
    GList *item = qp->sends.head;
    while (item != NULL && ((FakeSend *)item->data)->completed)
        item = item->next;
    FakeSend *send = item != NULL ? item->data : NULL;
    if (send == NULL || (!send->done && (!fake_verbs_knobs.iwarp || send->landed > 0)))
        return FALSE;
    if (!send->done) {
        const uint8_t *bytes = local_bytes(qp, send);
        if (bytes == NULL) {
            fail_send(qp, send, IBV_WC_LOC_PROT_ERR);
            return TRUE;
        }
        send->taken = g_memdup2(bytes, send->piece.length);
    }
    complete_send(qp, send, IBV_WC_SUCCESS);
    return TRUE;
}

/* Lands a piece of a request: any write before the first SEND that has not landed, or that SEND if there is
 * none. */
static gboolean land_any(FakeQp *qp)
{
    FakeSend *chosen = NULL;
    unsigned n = 0;
    for (GList *item = qp->sends.head; item != NULL; item = item->next) {
        FakeSend *send = item->data;
        gboolean fence = send->request.opcode == IBV_WR_SEND;
        if (send->done)
            continue;
        if ((!fence && g_rand_int_range(fake_fabric.rand, 0, (gint32)++n) == 0) || (fence && n == 0))
            chosen = send;
        if (fence)
            break;
    }
    if (chosen == NULL)
        return FALSE;
    gboolean last = chosen->request.opcode == IBV_WR_SEND;
    if (fake_verbs_knobs.fail_in > 0 && chosen->landed == 0 && --fake_verbs_knobs.fail_in == 0)
        fail_send(qp, chosen, fake_verbs_knobs.fail_status);
    else if (last)
        land_send(qp, chosen);
    else
        land_write(qp, chosen);
    return qp->broken || !last || chosen->done; /* a broken one's requests are gone */
}

static gboolean step(FakeQp *qp)
{
    gboolean moved;
    if (qp->broken || fake_verbs_knobs.stalled)
        return FALSE;
    /* The further placement lags behind, the more it takes a barrier at the receiver. */
    if (fake_verbs_knobs.iwarp ? g_rand_int_range(fake_fabric.rand, 0, 16) != 0
                               : g_rand_boolean(fake_fabric.rand))
        moved = complete_next(qp) || land_any(qp);
    else
        moved = land_any(qp) || complete_next(qp);
    for (FakeSend *send; (send = g_queue_peek_head(&qp->sends)) != NULL && send->done && send->completed;)
        send_free(g_queue_pop_head(&qp->sends));
    return moved;
}

static void *engine(void *data)
{
    g_mutex_lock(&fake_fabric.lock);
    for (;;) {
        guint n = fake_fabric.qps->len;
        guint first = n > 0 ? (guint)g_rand_int_range(fake_fabric.rand, 0, (gint32)n) : 0;
        gboolean moved = FALSE;
        for (guint i = 0; i < n && !moved; i++)
            moved = step(fake_fabric.qps->pdata[(first + i) % n]);
        if (!moved) {
            g_cond_wait(&fake_fabric.changed, &fake_fabric.lock);
        } else if (g_rand_int_range(fake_fabric.rand, 0, 8) == 0) {
            g_mutex_unlock(&fake_fabric.lock);
            g_usleep((gulong)g_rand_int_range(fake_fabric.rand, 0, 30));
            g_mutex_lock(&fake_fabric.lock);
        }
    }
    return NULL;
}

void fake_fabric_start(void)
{
    static gsize once;
    if (!g_once_init_enter(&once))
        return;
    FakeFabric *fabric = &fake_fabric;
    fabric->mrs = g_hash_table_new(NULL, NULL);
    fabric->registered = g_array_new(FALSE, FALSE, sizeof(FakeMr));
    fabric->qps = g_ptr_array_new();
    fabric->rand = g_rand_new();
    strcpy(fabric->device.name, "fake0");
    fabric->device.transport_type = IBV_TRANSPORT_IB;
    fabric->context.device = &fabric->device;
    fabric->context.ops.poll_cq = fake_poll_cq;
    fabric->context.ops.req_notify_cq = fake_req_notify_cq;
    fabric->context.ops.post_send = fake_post_send;
    fabric->context.ops.post_recv = fake_post_recv;
    fabric->engine = g_thread_new("fake-verbs", engine, NULL);
    g_once_init_leave(&once, 1);
}
