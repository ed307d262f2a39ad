/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp transport's destination: one receiver thread a channel, reading straight into guest memory, or
 * from inside TLS by way of a buffer (socket.h).
 *
 * The peer is not trusted with our memory: no byte is read into a block before its frame's header and runs
 * have been checked against what the session agreed on (wire.h). A bad frame ends all channels.
 *
 * Threads: a channel's buffers belong to its receiver; what others look at is under `lock`. stop() shuts the
 * sockets down, which ends every blocked read, and joins: no receiver may write guest memory once the device
 * state is loaded, and joining is the only proof. A receiver also looks at `stopping` before each frame,
 * because a socket that has been shut down still gives out what had arrived before.
 *
 * The lock is never held while a receiver is joined, since that waits for somebody who may want it.
 */
#include "transport/tcp/destination.h"

#include "common/log-context.h"
#include "transport/barrier.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/wire.h"

#include <errno.h>
#include <sys/socket.h>

typedef struct Destination Destination;

typedef struct {
    Destination *destination; /* immutable, as index is */
    unsigned index;

    RmTcpLine line;  /* opened and closed under the lock, while no receiver runs; no stream: not adopted */
    GThread *thread; /* lock */

    /* The receiver's own. */
    RmTcpHeader header;
    RmRun runs[RM_RUNS_MAX];
    struct iovec iov[RM_RUNS_MAX];
} Channel;

struct Destination {
    RmRx base;
    RmFailure failure;
    RmBarrier barrier;
    uint64_t payload_bytes; /* atomic */
    int stopping;           /* atomic, set under the lock */

    /* Immutable once started. */
    RmBlockTable *blocks; /* grows by add_block() */
    uint64_t chunk_size;
    unsigned n_channels;
    unsigned timeout_ms;
    RmChoice tos;
    Channel *channels;

    GMutex lock;
};

static Destination *destination_of(RmRx *rx)
{
    return (Destination *)((uint8_t *)rx - G_STRUCT_OFFSET(Destination, base));
}

/* Ends blocked reads and lets no further frame through; closes nothing (see free). */
static void shut_down(Destination *destination)
{
    g_mutex_lock(&destination->lock);
    g_atomic_int_set(&destination->stopping, TRUE);
    for (unsigned i = 0; i < destination->n_channels; i++)
        rm_tcp_line_shut_down(&destination->channels[i].line);
    g_mutex_unlock(&destination->lock);
    rm_barrier_stop(&destination->barrier);
}

static void destination_abort(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    rm_failure_set(&destination->failure, -ECANCELED, RM_REASON_CANCELLED,
                   "the data channels were shut down at the destination");
    shut_down(destination);
}

static gboolean destination_start(RmRx *rx, const RmRxParams *params, GError **error)
{
    Destination *destination = destination_of(rx);
    g_assert(destination->channels == NULL);
    g_assert(params->channels >= 1 && params->channels <= RM_CHANNELS_MAX && params->chunk_size > 0);
    destination->blocks = rm_block_table_new(params->blocks);
    destination->chunk_size = params->chunk_size;
    destination->timeout_ms = params->timeout_ms;
    destination->tos = params->packets.tos;
    destination->channels = g_new0(Channel, params->channels);
    for (unsigned i = 0; i < params->channels; i++) {
        destination->channels[i].destination = destination;
        destination->channels[i].index = i;
    }
    destination->n_channels = params->channels;
    rm_barrier_start(&destination->barrier, params->channels, params->timeout_ms);
    return TRUE;
}

static json_object *destination_offer(RmRx *rx)
{
    return NULL; /* the daemon's own port takes data connections, too */
}

/* ---- the receiver ---- */

static void protocol_failure(Channel *channel, const char *problem)
{
    Destination *destination = channel->destination;
    rm_failure_set(&destination->failure, -EPROTO, RM_REASON_PROTOCOL,
                   "data channel %u: the source sent a bad frame: %s (operation %#x, block %u, %u runs, %u "
                   "bytes, round %u)",
                   channel->index, problem, channel->header.op, channel->header.block, channel->header.n,
                   channel->header.total, channel->header.round);
    shut_down(destination);
}

/* `code` from rm_tcp_receive(); `between` if no part of a frame had been read before. */
static void receive_failure(Channel *channel, int code, gboolean between)
{
    Destination *destination = channel->destination;
    RmFailure *failure = &destination->failure;
    if (g_atomic_int_get(&destination->stopping))
        return; /* the end is ours, or another channel's failure has been told */
    if (code == -ENODATA && between) {
        rm_failure_set(failure, RM_BARRIER_LEFT, RM_REASON_PEER_LOST,
                       "data channel %u: the source closed the connection", channel->index);
    } else if (code == -ENODATA || code == -EPIPE || code == -ECONNRESET ||
               (code == -ECONNABORTED && !between)) {
        rm_failure_set(failure, -EPIPE, RM_REASON_PEER_LOST,
                       "data channel %u: the source's connection broke in the middle of a frame",
                       channel->index);
    } else if (code == -ECONNABORTED) {
        rm_failure_set(failure, -EPIPE, RM_REASON_PEER_LOST,
                       "data channel %u: the source's connection was cut", channel->index);
    } else if (code == -EBADMSG) {
        rm_failure_set(
            failure, code, RM_REASON_TRANSPORT,
            "data channel %u: what came is not what the source sent: TLS found it altered on its way",
            channel->index);
    } else if (code == -ETIMEDOUT) {
        rm_failure_set(failure, code, RM_REASON_PEER_TIMEOUT,
                       "data channel %u: nothing heard from the source's host for %u ms", channel->index,
                       destination->timeout_ms);
    } else if (code == -EFAULT) {
        const RmBlock *block = rm_block_table_get(destination->blocks, channel->header.block);
        rm_failure_set(failure, code, RM_REASON_MEMORY_SHORT,
                       "data channel %u: no memory for RAM block %s; free memory or huge pages on this host, "
                       "or raise the "
                       "tmpfs size",
                       channel->index, block != NULL ? block->name : "?");
    } else {
        rm_failure_set(failure, code, RM_REASON_TRANSPORT, "data channel %u: cannot receive: %s",
                       channel->index, g_strerror(-code));
    }
    shut_down(destination);
}

static gboolean receive(Channel *channel, struct iovec *iov, unsigned n, gboolean between)
{
    gboolean payload = iov == channel->iov;
    int code = rm_tcp_receive(&channel->line, iov, n, payload ? &channel->destination->payload_bytes : NULL);
    if (code < 0)
        receive_failure(channel, code, between);
    return code == 0;
}

static gboolean receive_write(Channel *channel, const RmTcpLimits *limits)
{
    RmTcpHeader *header = &channel->header;
    struct iovec table = {channel->runs, header->n * sizeof channel->runs[0]};
    if (!receive(channel, &table, 1, FALSE))
        return FALSE;
    rm_tcp_runs_swap(channel->runs, header->n);
    const char *problem = rm_tcp_runs_check(header, channel->runs, limits);
    if (problem != NULL) {
        protocol_failure(channel, problem);
        return FALSE;
    }
    const RmBlock *block = rm_block_table_get(limits->blocks, header->block);
    for (unsigned i = 0; i < header->n; i++)
        channel->iov[i] = (struct iovec){block->map + channel->runs[i].offset, channel->runs[i].length};
    return receive(channel, channel->iov, header->n, FALSE);
}

static gboolean receive_frame(Channel *channel, RmTcpLimits *limits)
{
    Destination *destination = channel->destination;
    struct iovec iov = {&channel->header, sizeof channel->header};
    if (!receive(channel, &iov, 1, TRUE))
        return FALSE;
    if (g_atomic_int_get(&destination->stopping))
        return FALSE;
    rm_tcp_header_swap(&channel->header);
    const char *problem = rm_tcp_header_check(&channel->header, limits);
    if (problem != NULL) {
        protocol_failure(channel, problem);
        return FALSE;
    }
    if (channel->header.op == RM_TCP_OP_WRITE)
        return receive_write(channel, limits);

    /* All bytes before this frame have been copied into guest memory. */
    limits->next_round++;
    rm_barrier_reached(&destination->barrier, channel->index, channel->header.round);
    return TRUE;
}

static void *receiver(void *data)
{
    Channel *channel = data;
    Destination *destination = channel->destination;
    RmTcpLimits limits = {destination->blocks, destination->chunk_size, destination->n_channels,
                          channel->index, 1};
    while (receive_frame(channel, &limits))
        ;
    return NULL;
}

/* ---- adopting connections ---- */

/* Under the lock. */
static gboolean adopt_locked(Destination *destination, GIOStream *stream, unsigned index, GError **error)
{
    if (destination->channels == NULL || g_atomic_int_get(&destination->stopping))
        return rm_fail(error, RM_REASON_TRANSPORT, "data channel %u came when the session takes none", index);
    if (index >= destination->n_channels)
        return rm_fail(error, RM_REASON_PROTOCOL, "data channel %u came, but only %u were agreed on", index,
                       destination->n_channels);
    Channel *channel = &destination->channels[index];
    if (channel->line.stream != NULL)
        return rm_fail(error, RM_REASON_PROTOCOL, "data channel %u came twice", index);

    int code = rm_tcp_line_open(&channel->line, stream, RM_TCP_LINE_RECEIVES, destination->timeout_ms,
                                destination->tos);
    if (code < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, -code, "data channel %u: cannot set its socket up",
                            index);
    channel->thread = rm_log_thread_try_new("rm-tcp-rx", receiver, channel, error);
    if (channel->thread == NULL) {
        rm_tcp_line_close(&channel->line);
        g_prefix_error(error, "data channel %u: cannot start its receiver: ", index);
        return FALSE;
    }
    rm_barrier_arrived(&destination->barrier);
    rm_tcp_line_try(&channel->line,
                    RM_TCP_ACK); /* if it can't go, the receiver finds the connection broken */
    return TRUE;
}

static gboolean destination_adopt(RmRx *rx, GIOStream *stream, unsigned index, GError **error)
{
    Destination *destination = destination_of(rx);
    g_mutex_lock(&destination->lock);
    gboolean ok = adopt_locked(destination, stream, index, error);
    g_mutex_unlock(&destination->lock);
    if (!ok)
        g_io_stream_close(stream, NULL, NULL); /* how the other end hears of it */
    return ok;
}

static void destination_add_block(RmRx *rx, RmBlock *block)
{
    rm_block_table_add(destination_of(rx)->blocks, block);
}

static gboolean destination_register_chunk(RmRx *rx, uint32_t block_index, uint64_t chunk,
                                           const RmExtent *extents, unsigned n, GArray *regions,
                                           GError **error)
{
    Destination *destination = destination_of(rx);
    RmBlock *block = rm_block_table_check_chunk(destination->blocks, destination->chunk_size, block_index,
                                                chunk, extents, n, error);
    if (block == NULL)
        return FALSE;
    for (unsigned i = 0; i < n; i++)
        if (!rm_block_populate(block, extents[i].start, extents[i].end - extents[i].start, error))
            return FALSE;
    return TRUE;
}

/* ---- the barrier ---- */

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

/* ---- the end ---- */

static void destination_stop(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    shut_down(destination); /* from here on nothing is adopted */
    for (unsigned i = 0; i < destination->n_channels; i++) {
        Channel *channel = &destination->channels[i];
        g_mutex_lock(&destination->lock);
        GThread *thread = g_steal_pointer(&channel->thread);
        g_mutex_unlock(&destination->lock);
        if (thread != NULL)
            g_thread_join(thread);
        g_mutex_lock(&destination->lock);
        rm_tcp_line_close(&channel->line);
        g_mutex_unlock(&destination->lock);
    }
}

static void destination_free(RmRx *rx)
{
    Destination *destination = destination_of(rx);
    destination_stop(rx);
    g_free(destination->channels);
    rm_block_table_free(destination->blocks);
    rm_barrier_clear(&destination->barrier);
    rm_failure_clear(&destination->failure);
    g_mutex_clear(&destination->lock);
    g_free(destination);
}

static const RmRxOps destination_ops = {
    .name = "tcp",
    .pins = FALSE,
    .start = destination_start,
    .offer = destination_offer,
    .adopt = destination_adopt,
    .add_block = destination_add_block,
    .register_chunk = destination_register_chunk,
    .release_chunk = rm_rx_release_nothing,
    .wait_round = destination_wait_round,
    .abort = destination_abort,
    .payload_bytes = destination_payload_bytes,
    .registered_bytes = rm_rx_registers_nothing,
    .stop = destination_stop,
    .free = destination_free,
};

RmRx *rm_tcp_destination_new(void)
{
    Destination *destination = g_new0(Destination, 1);
    destination->base.ops = &destination_ops;
    rm_failure_init(&destination->failure);
    rm_barrier_init(&destination->barrier, &destination->failure);
    g_mutex_init(&destination->lock);
    return &destination->base;
}
