/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The rdma transport's destination. The source's card writes guest memory by itself; what is left to do here
 * is to let it (connections, registrations), to learn that a round has ended, and to make sure that it no
 * longer can.
 *
 * Threads: the listener's thread hands connections over; a reaper for each channel takes the marks of rounds'
 * ends (mark.h says why a mark that is here proves that the writes before it are); the registration pool's
 * threads register; the session's thread waits and stops. An idle channel says nothing if its peer has
 * vanished: the control channel's keep-alive finds that out, and abort() ends everything.
 *
 * stop(), in this order: nobody new (the listener forgets us), nobody at work (reapers joined, registering
 * ended), then the queue pairs and the regions. Each of the last two alone keeps the source's card from
 * writing any more: without the queue pair no packet finds a way in, and without the region no key is good.
 *
 * Lock order: the listener's, `registering`, `lock`.
 */
#include "transport/verbs/destination.h"

#include "common/fault.h"
#include "common/log-context.h"
#include "memory/chunk.h"
#include "transport/barrier.h"
#include "transport/block-table.h"
#include "transport/verbs/bound.h"
#include "transport/verbs/listener.h"
#include "transport/verbs/mark.h"
#include "transport/verbs/packets.h"
#include "transport/verbs/qp.h"
#include "transport/verbs/target.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Two would do, since the source waits for an answer between two rounds, and between two marks within one. */
#define RECEIVES 8u
/* stop() comes while the guest is paused: what memory cannot be given back in this time is left to it. */
#define TRIM_MS 100

typedef struct Destination Destination;

typedef struct {
    Destination *destination; /* immutable, as are the next two */
    unsigned index;
    int wake_fd; /* eventfd, readable for ever once written */

    gboolean taken;   /* lock */
    GThread *reaper;  /* lock */
    RmVerbsQp qp;     /* lock until `taken`, then immutable but for its reaper and stop() */
    int left;         /* atomic: the source has gone */
    uint32_t round;   /* the reaper's own: the last that ended */
    uint32_t marks;   /* the reaper's own: the last one within a round */
    uint64_t payload; /* the reaper's own */
} Channel;

struct Destination {
    RmRx base;
    RmVerbsAcceptor acceptor;
    RmFailure failure;
    RmBarrier barrier;
    RmVerbsRegions regions;
    uint64_t payload_bytes; /* atomic */
    int stopping;           /* atomic */
    int leaving;            /* atomic: the source has gone from one channel at least */
    int flushed;            /* atomic: a queue pair is at its end, by itself */
    int n_reaping;          /* atomic: reapers that have not come to their channel's end */

    /* Immutable once started. */
    RmVerbsListener *listener; /* NULL again once stopped */
    RmVerbsWish wish;
    RmPacketOptions packets;
    RmBlockTable *blocks;    /* grows by add_block() */
    RmVerbsTarget **targets; /* by block; as blocks */
    uint64_t chunk_size;
    gboolean pin_all;
    unsigned n_channels;
    Channel *channels;

    GRWLock registering; /* read: while registering; write: to end it */
    GMutex lock;
};

static Destination *destination_of(RmRx *rx)
{
    return (Destination *)((uint8_t *)rx - G_STRUCT_OFFSET(Destination, base));
}

static void wake(Channel *channel)
{
    uint64_t one = 1;
    (void)!write(channel->wake_fd, &one, sizeof one); /* fails only when it is readable anyway */
}

static void wake_all(Destination *destination)
{
    for (unsigned i = 0; i < destination->n_channels; i++)
        wake(&destination->channels[i]);
}

/* Ends the reapers and all waiting; destroys nothing. */
static void shut_down(Destination *destination)
{
    g_atomic_int_set(&destination->stopping, TRUE);
    wake_all(destination);
    rm_barrier_stop(&destination->barrier);
}

static void destination_abort(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    rm_failure_set(&destination->failure, -ECANCELED, RM_REASON_CANCELLED,
                   "the data channels were shut down at the destination");
    shut_down(destination);
}

/* ---- the reaper ---- */

static int post_receive(Channel *channel, unsigned slot)
{
    RmVerbsMark *marks = channel->qp.messages;
    struct ibv_sge piece = {(uintptr_t)&marks[slot], sizeof marks[slot], channel->qp.messages_mr->lkey};
    struct ibv_recv_wr request = {.wr_id = slot, .sg_list = &piece, .num_sge = 1}, *bad;
    return -ibv_post_recv(channel->qp.id->qp, &request, &bad);
}
G_STATIC_ASSERT(RECEIVES * sizeof(RmVerbsMark) <= RM_VERBS_MESSAGE_BYTES);

static gboolean channel_failed(Channel *channel, int code, RmReason reason, const char *problem)
{
    rm_failure_set(&channel->destination->failure, code, reason, "data channel %u: %s", channel->index,
                   problem);
    shut_down(channel->destination);
    return FALSE;
}

/* The next end of a round, or the next mark within one. */
static gboolean is_next(const Channel *channel, const RmVerbsMark *mark)
{
    if (mark->magic == RM_VERBS_MARK_ROUND)
        return mark->number == channel->round + 1;
    return mark->magic == RM_VERBS_MARK_WITHIN && mark->number == channel->marks + 1;
}

static gboolean mark_arrived(Channel *channel, const struct ibv_wc *wc)
{
    Destination *destination = channel->destination;
    const RmVerbsMark *wire = (const RmVerbsMark *)channel->qp.messages + wc->wr_id;
    RmVerbsMark mark = {GUINT32_FROM_LE(wire->magic), GUINT32_FROM_LE(wire->number),
                        GUINT64_FROM_LE(wire->payload)};
    if (wc->byte_len != sizeof mark || !is_next(channel, &mark) || mark.payload < channel->payload)
        return channel_failed(channel, -EPROTO, RM_REASON_PROTOCOL,
                              "the source sent something else than the end of the current round");
    if (post_receive(channel, (unsigned)wc->wr_id) < 0)
        return channel_failed(channel, -EIO, RM_REASON_TRANSPORT, "cannot post a receive");
    __atomic_fetch_add(&destination->payload_bytes, mark.payload - channel->payload, __ATOMIC_RELAXED);
    channel->payload = mark.payload;
    if (mark.magic == RM_VERBS_MARK_ROUND) {
        channel->round = mark.number;
        rm_barrier_reached(&destination->barrier, channel->index, mark.number);
    } else {
        channel->marks = mark.number;
        rm_barrier_marked(&destination->barrier, channel->index, mark.number);
    }
    return TRUE;
}

static gboolean completed(Channel *channel, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_SUCCESS)
        return mark_arrived(channel, wc);
    if (wc->status == IBV_WC_WR_FLUSH_ERR) { /* for a reason that is not a receive's */
        g_atomic_int_set(&channel->destination->flushed, TRUE);
        g_atomic_int_set(&channel->left, TRUE);
        return TRUE;
    }
    g_autofree char *text =
        g_strdup_printf("cannot receive: %s (vendor error %#x); look at both hosts' kernel logs",
                        ibv_wc_status_str(wc->status), wc->vendor_err);
    return channel_failed(channel, -EIO, RM_REASON_TRANSPORT, text);
}

/* FALSE at the channel's end. */
static gboolean reap_all(Channel *channel)
{
    struct ibv_wc wc[RECEIVES];
    int n;
    while ((n = ibv_poll_cq(channel->qp.cq, RECEIVES, wc)) > 0)
        for (int i = 0; i < n; i++)
            if (!completed(channel, &wc[i]))
                return FALSE;
    return n == 0 ||
           channel_failed(channel, -EIO, RM_REASON_TRANSPORT, "the completion queue cannot be read");
}

/* The source has gone. It may have sent the end of a round on every channel before; so the failure, which
 * ends all waiting, is set by the last reaper that has looked. */
static void leave(Channel *channel)
{
    Destination *destination = channel->destination;
    g_atomic_int_set(&destination->leaving, TRUE);
    wake_all(destination);
    if (g_atomic_int_dec_and_test(&destination->n_reaping))
        channel_failed(channel, RM_BARRIER_LEFT, RM_REASON_PEER_LOST,
                       g_atomic_int_get(&destination->flushed)
                           ? "the connection has ended, by the source or because it wrote where it may not"
                           : "the source closed the connection");
}

static void *reaper(void *data)
{
    Channel *channel = data;
    Destination *destination = channel->destination;
    for (;;) {
        /* In this order: what the source had sent before it left is looked for after it is known to have
         * left. */
        gboolean left = g_atomic_int_get(&channel->left) || g_atomic_int_get(&destination->leaving);
        if (g_atomic_int_get(&destination->stopping) || !reap_all(channel))
            return NULL;
        if (left) {
            leave(channel);
            return NULL;
        }
        if (g_atomic_int_get(&channel->left))
            continue;
        int code = rm_verbs_qp_sleep(&channel->qp, channel->wake_fd, -1);
        if (code < 0) {
            channel_failed(channel, code, RM_REASON_TRANSPORT, "cannot wait for completions");
            return NULL;
        }
    }
}

/* ---- connections: the listener's thread ---- */

/* All receives are there before the source may send: a SEND never finds the receiver not ready. */
static gboolean connect_channel(Channel *channel, struct rdma_cm_id *id, GError **error)
{
    struct rdma_conn_param accept = {.rnr_retry_count = 7}; /* packets.h says why no more */
    if (!rm_verbs_qp_create(&channel->qp, id, 1, RECEIVES, error))
        return FALSE;
    for (unsigned i = 0; i < RECEIVES; i++) {
        int code = post_receive(channel, i);
        if (code < 0)
            return rm_set_errno(error, RM_REASON_TRANSPORT, -code, "data channel %u: cannot post a receive",
                                channel->index);
    }
    rm_verbs_packets_set(id, &(RmPacketOptions){.ack_timeout = channel->destination->packets.ack_timeout});
    /* No reads or atomics: neither end has any use for them. */
    if (rdma_accept(id, &accept) != 0)
        return rm_set_errno(error, RM_REASON_TRANSPORT, errno,
                            "data channel %u: cannot accept the connection", channel->index);
    g_atomic_int_inc(&channel->destination->n_reaping);
    channel->reaper = rm_log_thread_try_new("rm-rdma-rx", reaper, channel, error);
    if (channel->reaper == NULL)
        g_atomic_int_add(&channel->destination->n_reaping, -1);
    return channel->reaper != NULL;
}

/* Back to how it was before a connection that could not be made; `id` stays. */
static void disconnect_channel(Channel *channel)
{
    rm_verbs_qp_break(&channel->qp);
    channel->qp.id = NULL;
    rm_verbs_qp_clear(&channel->qp);
}

/* Under the lock. */
static gboolean take_locked(Destination *destination, struct rdma_cm_id *id, unsigned index, GError **error)
{
    if (g_atomic_int_get(&destination->stopping))
        return rm_fail(error, RM_REASON_TRANSPORT, "data channel %u came when the session takes none", index);
    if (index >= destination->n_channels)
        return rm_fail(error, RM_REASON_PROTOCOL, "data channel %u came, but only %u were agreed on", index,
                       destination->n_channels);
    Channel *channel = &destination->channels[index];
    if (channel->taken)
        return rm_fail(error, RM_REASON_PROTOCOL, "data channel %u came twice", index);
    if (!rm_verbs_wish_check(&destination->wish, id, error))
        return FALSE;
    if (!connect_channel(channel, id, error)) {
        disconnect_channel(channel);
        return FALSE;
    }
    RmVerbsPath path;
    rm_verbs_path_query(id, &path);
    g_message("data channel %u: %s", index, path.text);
    rm_verbs_path_clear(&path);
    rm_verbs_packets_tell(index, &destination->packets);
    channel->taken = TRUE;
    return TRUE;
}

static gboolean acceptor_take(RmVerbsAcceptor *acceptor, struct rdma_cm_id *id, unsigned index,
                              GError **error)
{
    Destination *destination = (Destination *)((uint8_t *)acceptor - G_STRUCT_OFFSET(Destination, acceptor));
    g_mutex_lock(&destination->lock);
    gboolean ok = take_locked(destination, id, index, error);
    g_mutex_unlock(&destination->lock);
    if (ok)
        rm_barrier_arrived(&destination->barrier);
    return ok;
}

static void acceptor_left(RmVerbsAcceptor *acceptor, struct rdma_cm_id *id)
{
    Destination *destination = (Destination *)((uint8_t *)acceptor - G_STRUCT_OFFSET(Destination, acceptor));
    g_mutex_lock(&destination->lock);
    for (unsigned i = 0; i < destination->n_channels; i++) {
        Channel *channel = &destination->channels[i];
        if (channel->taken && channel->qp.id == id) {
            g_atomic_int_set(&channel->left, TRUE);
            wake(channel);
        }
    }
    g_mutex_unlock(&destination->lock);
}

/* ---- starting ---- */

/* Where to listen: at the wished-for device's address, else where the daemon's data addresses say. */
static gboolean join_listener(Destination *destination, const RmRxParams *params, GError **error)
{
    g_autoptr(GSocketAddress) address = NULL;
    g_autofree char *text = NULL;
    if (!rm_verbs_wish_parse(&destination->wish, params->device, params->gid_index, error) ||
        !rm_verbs_wish_address(&destination->wish, &address, error))
        return FALSE;
    char *only[] = {NULL, NULL};
    char *const *addresses = params->data_addresses;
    if (addresses == NULL && address != NULL) {
        GInetSocketAddress *inet = G_INET_SOCKET_ADDRESS(address);
        text = g_inet_address_to_string(g_inet_socket_address_get_address(inet));
        if (g_socket_address_get_family(address) == G_SOCKET_FAMILY_IPV6 &&
            g_inet_socket_address_get_scope_id(inet) != 0) {
            g_autofree char *bare = text;
            text = g_strdup_printf("%s%%%u", bare, g_inet_socket_address_get_scope_id(inet));
        }
        only[0] = text;
        addresses = only;
    }
    destination->listener =
        rm_verbs_listener_join(params->port, addresses, params->packets.tos, &destination->acceptor, error);
    return destination->listener != NULL;
}

static gboolean destination_start(RmRx *rx, const RmRxParams *params, GError **error)
{
    Destination *destination = destination_of(rx);
    g_assert(destination->channels == NULL);
    g_assert(rm_chunk_size_valid(params->chunk_size));
    memcpy(destination->acceptor.token, params->token, sizeof destination->acceptor.token);
    destination->acceptor.take = acceptor_take;
    destination->acceptor.left = acceptor_left;
    destination->blocks = rm_block_table_new(params->blocks);
    destination->chunk_size = params->chunk_size;
    destination->packets = params->packets;
    destination->targets = g_new0(RmVerbsTarget *, destination->blocks->capacity);
    for (guint i = 0; i < params->blocks->len; i++)
        destination->targets[i] = rm_verbs_target_new(params->blocks->pdata[i], params->chunk_size);
    destination->channels = g_new0(Channel, params->channels);
    for (unsigned i = 0; i < params->channels; i++) {
        Channel *channel = &destination->channels[i];
        channel->destination = destination;
        channel->index = i;
        channel->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        destination->n_channels = i + 1;
        if (channel->wake_fd < 0)
            return rm_set_errno(error, RM_REASON_INTERNAL, errno, "data channel %u: no event descriptor", i);
    }
    rm_barrier_start(&destination->barrier, params->channels, params->timeout_ms);
    if (!rm_verbs_bound_destination(params, &destination->regions.most, error))
        return FALSE;
    destination->base.window = destination->regions.most;
    destination->pin_all = params->pin_all;
    return join_listener(destination, params, error);
}

static json_object *destination_offer(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    const char *host = rm_verbs_listener_host(destination->listener);
    json_object *address = json_object_new_object();
    json_object_object_add(address, "port",
                           json_object_new_int(rm_verbs_listener_port(destination->listener)));
    if (host != NULL)
        json_object_object_add(address, "host", json_object_new_string(host));
    return address;
}

static gboolean destination_adopt(RmRx *rx, GIOStream *stream, unsigned index, GError **error)
{
    g_io_stream_close(stream, NULL, NULL);
    return rm_fail(error, RM_REASON_PROTOCOL,
                   "data channel %u came over TCP, but RDMA was agreed on for this session", index);
}

static void destination_add_block(RmRx *rx, RmBlock *block)
{
    Destination *destination = destination_of(rx);
    /* Written before the count that lets other threads see it. */
    destination->targets[destination->blocks->count] = rm_verbs_target_new(block, destination->chunk_size);
    rm_block_table_add(destination->blocks, block);
}

/* ---- registering ---- */

/* With --pin all: before the first byte rather than in the middle. The device is known only now. */
static gboolean check_regions(Destination *destination, const RmVerbsLimits *limits, GError **error)
{
    uint64_t need = 0;
    for (unsigned i = 0; destination->pin_all && i < destination->blocks->count; i++) {
        uint64_t most = MIN(destination->chunk_size, limits->max_mr_size);
        need += (destination->blocks->blocks[i]->size + most - 1) / most;
    }
    return need <= limits->max_mr ||
           rm_fail(error, RM_REASON_TRANSPORT,
                   "--pin all needs %" G_GUINT64_FORMAT
                   " memory regions, and the card has %u (max_mr); a larger --chunk-size needs fewer",
                   need, limits->max_mr);
}

/* Under `registering`. The channel, if there may still be registered for it. */
static Channel *usable_channel(Destination *destination, uint32_t block, uint64_t chunk, GError **error)
{
    Channel *channel = &destination->channels[rm_chunk_channel(block, chunk, destination->n_channels)];
    g_mutex_lock(&destination->lock);
    gboolean taken = channel->taken;
    g_mutex_unlock(&destination->lock);
    if (g_atomic_int_get(&destination->stopping)) {
        if (rm_failure_get(&destination->failure, error))
            rm_fail(error, RM_REASON_TRANSPORT,
                    "a chunk was to be registered or released when the session had been stopped");
        return NULL;
    }
    if (!taken) {
        rm_fail(error, RM_REASON_PROTOCOL, "a chunk was to be registered before data channel %u was there",
                channel->index);
        return NULL;
    }
    return channel;
}

static gboolean destination_register_chunk(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents,
                                           unsigned n, GArray *regions, GError **error)
{
    Destination *destination = destination_of(rx);
    if (rm_block_table_check_chunk(destination->blocks, destination->chunk_size, block, chunk, extents, n,
                                   error) == NULL)
        return FALSE;
    g_rw_lock_reader_lock(&destination->registering);
    Channel *channel = usable_channel(destination, block, chunk, error);
    gboolean ok =
        channel != NULL && check_regions(destination, &channel->qp.limits, error) &&
        rm_verbs_target_register(destination->targets[block], chunk, extents, n, &destination->regions,
                                 channel->qp.pd, &channel->qp.limits, regions, error);
    g_rw_lock_reader_unlock(&destination->registering);
    return ok;
}

/* Never under a write: the source has forgotten the keys before it sent the mark, and a mark that has been
 * reaped says that all before it has been placed (mark.h). */
static gboolean destination_release_chunk(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents,
                                          unsigned n, uint32_t mark, GError **error)
{
    Destination *destination = destination_of(rx);
    unsigned index = rm_chunk_channel(block, chunk, destination->n_channels);
    if (rm_block_table_check_chunk(destination->blocks, destination->chunk_size, block, chunk, extents, n,
                                   error) == NULL)
        return FALSE;
    if (!rm_fault("release-before-mark") && !rm_barrier_wait_mark(&destination->barrier, index, mark, error))
        return FALSE;
    g_rw_lock_reader_lock(&destination->registering);
    gboolean ok =
        usable_channel(destination, block, chunk, error) != NULL &&
        rm_verbs_target_release(destination->targets[block], chunk, extents, n, &destination->regions, error);
    g_rw_lock_reader_unlock(&destination->registering);
    return ok;
}

/* ---- rounds ---- */

static gboolean destination_wait_round(RmRx *rx, uint32_t round, GCancellable *cancellable, GError **error)
{
    Destination *destination = destination_of(rx);
    gboolean ok = rm_barrier_wait(&destination->barrier, round, cancellable, error);
    if (!ok && rm_failure_code(&destination->failure) < 0)
        shut_down(destination);
    return ok;
}

static uint64_t destination_payload_bytes(RmRx *rx)
{
    return __atomic_load_n(&destination_of(rx)->payload_bytes, __ATOMIC_RELAXED);
}

static uint64_t destination_registered_bytes(RmRx *rx)
{
    return __atomic_load_n(&destination_of(rx)->regions.bytes, __ATOMIC_RELAXED);
}

/* ---- the end ---- */

static void join_reapers(Destination *destination)
{
    for (unsigned i = 0; i < destination->n_channels; i++) {
        g_mutex_lock(&destination->lock);
        GThread *thread = g_steal_pointer(&destination->channels[i].reaper);
        g_mutex_unlock(&destination->lock);
        if (thread != NULL)
            g_thread_join(thread);
    }
}

/* Takes every right to write from the source's card. Only a device that keeps both a queue pair and a region,
 * which none may (nothing else uses them), leaves a way in. Then the guest must not be loaded into this
 * memory: ending the process makes the kernel take both away, and the source, which still has the guest, runs
 * it on. */
static void revoke_all(Destination *destination)
{
    gboolean broken = TRUE, closed = TRUE;
    for (unsigned i = 0; i < destination->n_channels; i++)
        broken = rm_verbs_qp_break(&destination->channels[i].qp) && broken;
    for (unsigned i = 0; i < destination->blocks->count; i++)
        closed = rm_verbs_target_close(destination->targets[i], &destination->regions) && closed;
    if (!broken && !closed)
        g_error("the RDMA device keeps a connection and a registration of guest memory, and might write it "
                "any time; ending");
    for (unsigned i = 0; i < destination->n_channels; i++)
        rm_verbs_qp_clear(&destination->channels[i].qp);
}

static void trim(Destination *destination)
{
    const char *patience = rm_fault_value("trim-ms");
    gint64 ms = patience != NULL ? g_ascii_strtoll(patience, NULL, 10) : TRIM_MS;
    gint64 start = g_get_monotonic_time(), deadline = start + ms * G_TIME_SPAN_MILLISECOND;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < destination->blocks->count; i++)
        bytes += rm_verbs_target_trim(destination->targets[i], deadline);
    gint64 took = g_get_monotonic_time() - start;
    g_debug("%" G_GUINT64_FORMAT
            " bytes that were registered and never written given back in %" G_GINT64_FORMAT " us%s",
            bytes, took, start + took < deadline ? "" : ", not all");
}

static void destination_stop(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    if (destination->listener == NULL)
        return; /* never started, or stopped already */
    rm_verbs_listener_mute(destination->listener, &destination->acceptor);
    shut_down(destination);
    join_reapers(destination);
    g_rw_lock_writer_lock(&destination->registering); /* whoever comes later sees `stopping` */
    g_rw_lock_writer_unlock(&destination->registering);
    revoke_all(destination);
    rm_verbs_listener_leave(g_steal_pointer(&destination->listener));
    trim(destination);
}

static void destination_free(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    destination_stop(rx);
    for (unsigned i = 0; i < destination->n_channels; i++)
        if (destination->channels[i].wake_fd >= 0)
            close(destination->channels[i].wake_fd);
    for (unsigned i = 0; destination->blocks != NULL && i < destination->blocks->count; i++)
        rm_verbs_target_free(destination->targets[i]);
    g_free(destination->targets);
    g_free(destination->channels);
    rm_block_table_free(destination->blocks);
    rm_verbs_wish_clear(&destination->wish);
    rm_barrier_clear(&destination->barrier);
    rm_failure_clear(&destination->failure);
    g_rw_lock_clear(&destination->registering);
    g_mutex_clear(&destination->lock);
    g_free(destination);
}

static const RmRxOps destination_ops = {
    .name = "rdma",
    .pins = TRUE,
    .start = destination_start,
    .offer = destination_offer,
    .adopt = destination_adopt,
    .add_block = destination_add_block,
    .register_chunk = destination_register_chunk,
    .release_chunk = destination_release_chunk,
    .wait_round = destination_wait_round,
    .abort = destination_abort,
    .payload_bytes = destination_payload_bytes,
    .registered_bytes = destination_registered_bytes,
    .stop = destination_stop,
    .free = destination_free,
};

RmRx *rm_verbs_destination_new(void)
{
    Destination *destination = g_new0(Destination, 1);
    destination->base.ops = &destination_ops;
    rm_failure_init(&destination->failure);
    rm_barrier_init(&destination->barrier, &destination->failure);
    g_rw_lock_init(&destination->registering);
    g_mutex_init(&destination->lock);
    return &destination->base;
}
