/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The rdma transport's source: a writer for each channel, and where guest memory is read from.
 *
 * Threads: a channel's writer and the registrations of its chunks belong to its sender thread. An event
 * thread listens for the end of a connection, so that a sender which waits for completions hears of it at
 * once, and not when the card has tried for long enough. A failure on one channel ends all: the session can't
 * go on without it.
 *
 * abort() sets the failure and wakes everybody; it destroys nothing, since a sender may be in the middle of a
 * call. What is in flight then may still land at the destination, which is its own guard (destination.c).
 */
#include "transport/verbs/source.h"

#include "memory/chunk.h"
#include "transport/block-table.h"
#include "transport/tcp/wire.h"
#include "transport/verbs/bound.h"
#include "transport/verbs/connect.h"
#include "transport/verbs/events.h"
#include "transport/verbs/origin.h"
#include "transport/window.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
    RmVerbsWriter writer;
    RmVerbsWindow window; /* the sender thread's own but for what has its lock */
    gboolean connected;
    uint32_t next_round; /* the sender thread's own */
} Channel;

typedef struct {
    RmTx base;
    RmVerbsShared shared;
    RmVerbsRegions regions;

    /* Immutable once connected. */
    RmBlockTable *blocks;    /* grows by add_block() */
    RmVerbsOrigin **origins; /* by block; as blocks */
    uint64_t **written;      /* as origins, then by chunk, its channel's thread's own: what to wait for before
                                the next write into it; NULL unless writes into a chunk are serialised */
    uint64_t chunk_size;
    uint64_t max_pinned; /* 0: no bound */
    gboolean copy;
    unsigned n_channels;
    Channel *channels;
    RmVerbsEvents events;

    int told; /* atomic: that registering failed, and copies are sent */
} Source;

static Source *source_of(RmTx *tx)
{
    return (Source *)((uint8_t *)tx - G_STRUCT_OFFSET(Source, base));
}

static void source_abort(RmTx *tx)
{
    rm_verbs_shared_fail(&source_of(tx)->shared, -ECANCELED, RM_REASON_CANCELLED,
                         "the data channels were shut down at the source");
}

/* ---- connecting ---- */

static void handle_event(void *data, struct rdma_cm_event *event)
{
    Source *source = data;
    enum rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_DISCONNECTED)
        rm_verbs_shared_fail(&source->shared, -EPIPE, RM_REASON_PEER_LOST,
                             "the destination closed the data channels; its log says why");
    else if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
        rm_verbs_shared_fail(&source->shared, -ENODEV, RM_REASON_TRANSPORT,
                             "the RDMA device of this host has been removed");
}

static gboolean connect_channel(Source *source, RmVerbsConnector *connector, unsigned index, GError **error)
{
    Channel *channel = &source->channels[index];
    RmVerbsPath path;
    if (!rm_verbs_connect(connector, index, &channel->writer.qp, &path, error))
        return FALSE;
    g_message("data channel %u: %s", index, path.text);
    rm_verbs_writer_init(&channel->writer, &source->shared, index);
    channel->writer.mtu = path.mtu;
    channel->writer.overhead = path.overhead;
    channel->next_round = 1;
    channel->connected = TRUE;
    rm_verbs_path_clear(&path);
    return TRUE;
}

static gboolean connect_all(Source *source, const RmTxParams *params, GError **error)
{
    RmVerbsConnector connector = {params, &source->shared, source->events.channel, {0}};
    gboolean ok = rm_verbs_wish_parse(&connector.wish, params->device, params->gid_index, error);
    for (unsigned i = 0; ok && i < params->channels; i++)
        ok = connect_channel(source, &connector, i, error);
    rm_verbs_wish_clear(&connector.wish);
    return ok;
}

static void on_cancelled(GCancellable *cancellable, Source *source)
{
    rm_verbs_shared_fail(&source->shared, -ECANCELED, RM_REASON_CANCELLED,
                         "cancelled while connecting the data channels");
}

/* Rings first: a window has to leave room for them, whether or not anything is copied. */
static gboolean open_windows(Source *source, const RmTxParams *params, GError **error)
{
    const uint64_t own = params->channels * (RM_VERBS_MESSAGE_BYTES + RM_VERBS_SMALL_RING_BYTES);
    if (source->max_pinned == 0)
        return TRUE;
    source->regions.most = source->max_pinned - own;
    for (unsigned i = 0; i < params->channels; i++) {
        Channel *channel = &source->channels[i];
        channel->writer.ring_most = RM_VERBS_SMALL_RING_BYTES;
        if (rm_verbs_writer_make_ring(&channel->writer) < 0)
            return rm_failure_get(&source->shared.failure, error);
        channel->window.limit =
            rm_window_part(source->regions.most, params->blocks, params->chunk_size, params->channels, i);
    }
    return TRUE;
}

static void add_origin(Source *source, unsigned index, const RmBlock *block)
{
    source->origins[index] = rm_verbs_origin_new(block, source->chunk_size);
    if (source->written != NULL)
        source->written[index] = g_new0(uint64_t, rm_chunk_count(block, source->chunk_size));
}

static gboolean source_connect(RmTx *tx, const RmTxParams *params, GCancellable *cancellable, GError **error)
{
    Source *source = source_of(tx);
    g_assert(source->channels == NULL);
    g_assert(params->channels >= 1 && params->channels <= RM_CHANNELS_MAX &&
             rm_chunk_size_valid(params->chunk_size));
    source->blocks = rm_block_table_new(params->blocks);
    source->chunk_size = params->chunk_size;
    source->origins = g_new0(RmVerbsOrigin *, source->blocks->capacity);
    if (params->serialise)
        source->written = g_new0(uint64_t *, source->blocks->capacity);
    for (guint i = 0; i < params->blocks->len; i++)
        add_origin(source, i, params->blocks->pdata[i]);
    source->shared.timeout_ms = params->timeout_ms;
    source->channels = g_new0(Channel, params->channels);
    source->n_channels = params->channels;
    for (unsigned i = 0; i < params->channels; i++)
        rm_verbs_window_init(&source->channels[i].window);

    if (!rm_verbs_bound_source(params, &source->max_pinned, &source->copy, error))
        return FALSE;
    if (source->shared.wake_fd < 0)
        return rm_fail(error, RM_REASON_INTERNAL, "no event descriptor for the data channels");
    if (!rm_verbs_events_open(&source->events, error))
        return FALSE;
    gulong handler = 0;
    if (cancellable != NULL)
        handler = g_cancellable_connect(cancellable, G_CALLBACK(on_cancelled), source, NULL);
    gboolean ok = connect_all(source, params, error) && open_windows(source, params, error);
    g_cancellable_disconnect(cancellable, handler);
    return ok && rm_verbs_events_start(&source->events, handle_event, source, error);
}

static void source_add_block(RmTx *tx, RmBlock *block)
{
    Source *source = source_of(tx);
    /* Written before the count that lets other threads see it. */
    add_origin(source, source->blocks->count, block);
    rm_block_table_add(source->blocks, block);
}

static int source_registered(RmTx *tx, uint32_t block, const RmRegion *regions, unsigned n)
{
    Source *source = source_of(tx);
    if (rm_block_table_get(source->blocks, block) != NULL &&
        rm_verbs_origin_add(source->origins[block], regions, n))
        return 0;
    return rm_verbs_shared_fail(&source->shared, -EPROTO, RM_REASON_PROTOCOL,
                                "the destination registered memory that is not within one chunk of a block");
}

/* ---- the data path ---- */

static int misuse(Source *source, unsigned index, const char *problem)
{
    return rm_verbs_shared_fail(&source->shared, -EINVAL, RM_REASON_INTERNAL,
                                "data channel %u: this daemon tried a bad write: %s", index, problem);
}

/* NULL and a failure if the channel can't be used at all. */
static Channel *get_channel(Source *source, unsigned index, int *ret_code)
{
    *ret_code = rm_failure_code(&source->shared.failure);
    if (*ret_code < 0)
        return NULL;
    if (index >= source->n_channels || !source->channels[index].connected) {
        *ret_code = misuse(source, index, "no such channel");
        return NULL;
    }
    return &source->channels[index];
}

static void tell(Source *source, const GError *problem)
{
    if (problem == NULL || g_atomic_int_get(&source->told))
        return;
    g_atomic_int_set(&source->told, TRUE);
    g_warning("%s. Guest memory is copied before it is sent, which costs time", problem->message);
}

static int source_prepare(RmTx *tx, unsigned index, uint32_t block, const RmExtent *extents, unsigned n)
{
    Source *source = source_of(tx);
    int code;
    Channel *channel = get_channel(source, index, &code);
    if (channel == NULL)
        return code;
    g_autoptr(GError) problem = NULL;
    for (unsigned i = 0; i < n && code == 0 && !source->copy; i++)
        code = rm_verbs_origin_prepare(source->origins[block], extents[i].start, extents[i].end,
                                       channel->next_round, &channel->window, &source->regions,
                                       &channel->writer, &problem);
    tell(source, problem);
    return code;
}

static uint64_t source_window(RmTx *tx, unsigned index)
{
    Source *source = source_of(tx);
    return source->copy ? 0 : source->channels[index].window.limit;
}

static int source_release(RmTx *tx, unsigned index, uint32_t block, const RmExtent *extents, unsigned n)
{
    Source *source = source_of(tx);
    for (unsigned i = 0; i < n; i++)
        rm_verbs_origin_forget(source->origins[block], extents[i].start, extents[i].end);
    return rm_failure_code(&source->shared.failure);
}

static int source_mark(RmTx *tx, unsigned index, uint32_t *ret_mark)
{
    int code;
    Channel *channel = get_channel(source_of(tx), index, &code);
    return channel != NULL ? rm_verbs_writer_mark(&channel->writer, ret_mark) : code;
}

/* Through the registrations of both sides where there are, else as a copy. */
static int write_run(Source *source, Channel *channel, unsigned index, uint32_t block_index, const RmRun *run)
{
    const RmBlock *block = rm_block_table_get(source->blocks, block_index);
    RmVerbsOrigin *origin = source->origins[block_index];
    RmVerbsWriter *writer = &channel->writer;
    uint64_t offset = run->offset, end = run->offset + run->length;
    uint64_t *written =
        source->written != NULL ? &source->written[block_index][offset / source->chunk_size] : NULL;
    if (written != NULL) {
        int code = rm_verbs_writer_wait(&channel->writer, *written);
        if (code < 0)
            return code;
    }
    while (offset < end) {
        RmRegion region;
        uint64_t until;
        if (!rm_verbs_origin_find(origin, offset, &region))
            return misuse(source, index, "the destination has not registered it");
        until = MIN(end, region.offset + region.length);
        RmVerbsPiece *piece = rm_verbs_origin_piece(origin, offset, until, &until);
        int code = piece != NULL ? rm_verbs_writer_write(writer, block->map + offset, piece->mr->lkey, offset,
                                                         region.key, until - offset)
                                 : rm_verbs_writer_copy(writer, block, offset, region.key, until - offset);
        if (code < 0)
            return code;
        if (piece != NULL)
            piece->last_request = rm_verbs_writer_number(writer);
        offset = until;
    }
    if (written != NULL)
        *written = rm_verbs_writer_number(&channel->writer);
    return 0;
}

static int source_post(RmTx *tx, unsigned index, uint32_t block, const RmRun *runs, unsigned n)
{
    Source *source = source_of(tx);
    int code;
    Channel *channel = get_channel(source, index, &code);
    if (channel == NULL)
        return code;
    RmTcpLimits limits = {source->blocks, source->chunk_size, source->n_channels, index, channel->next_round};
    RmTcpHeader header; /* as tcp's, for the checks alone */
    const char *problem = rm_tcp_post_check(block, runs, n, &limits, &header);
    if (problem != NULL)
        return misuse(source, index, problem);
    code = rm_verbs_writer_reap(&channel->writer);
    for (unsigned i = 0; i < n && code == 0; i++)
        code = write_run(source, channel, index, block, &runs[i]);
    return code == 0 ? rm_verbs_writer_flush(&channel->writer) : code;
}

static int source_end_round(RmTx *tx, unsigned index, uint32_t round)
{
    Source *source = source_of(tx);
    int code;
    Channel *channel = get_channel(source, index, &code);
    if (channel == NULL)
        return code;
    if (round != channel->next_round)
        return misuse(source, index, "end of another round than the current one");
    code = rm_verbs_writer_end_round(&channel->writer, round);
    if (code == 0)
        channel->next_round++;
    return code;
}

static gboolean source_error(RmTx *tx, GError **error)
{
    return rm_failure_get(&source_of(tx)->shared.failure, error);
}

static uint64_t source_wire_bytes(RmTx *tx)
{
    return __atomic_load_n(&source_of(tx)->shared.wire_bytes, __ATOMIC_RELAXED);
}

/* ---- the end ---- */

/* Queue pairs before the memory that they read, and that before the rest. */
static void source_free(RmTx *tx)
{
    Source *source = source_of(tx);
    rm_verbs_events_stop(&source->events);
    for (unsigned i = 0; i < source->n_channels; i++)
        rm_verbs_qp_break(&source->channels[i].writer.qp);
    for (unsigned i = 0; source->blocks != NULL && i < source->blocks->count; i++)
        rm_verbs_origin_free(source->origins[i], &source->regions);
    for (unsigned i = 0; i < source->n_channels; i++) {
        rm_verbs_window_clear(&source->channels[i].window);
        rm_verbs_writer_clear(&source->channels[i].writer);
        rm_verbs_qp_clear(&source->channels[i].writer.qp);
    }
    rm_verbs_events_close(&source->events);
    close(source->shared.wake_fd);
    rm_failure_clear(&source->shared.failure);
    for (unsigned i = 0; source->written != NULL && i < source->blocks->count; i++)
        g_free(source->written[i]);
    g_free(source->written);
    rm_block_table_free(source->blocks);
    g_free(source->origins);
    g_free(source->channels);
    g_free(source);
}

static const RmTxOps source_ops = {
    .name = "rdma",
    .connect = source_connect,
    .add_block = source_add_block,
    .registered = source_registered,
    .prepare = source_prepare,
    .window = source_window,
    .release = source_release,
    .mark = source_mark,
    .post = source_post,
    .end_round = source_end_round,
    .abort = source_abort,
    .error = source_error,
    .wire_bytes = source_wire_bytes,
    .free = source_free,
};

RmTx *rm_verbs_source_new(void)
{
    Source *source = g_new0(Source, 1);
    source->base.ops = &source_ops;
    rm_failure_init(&source->shared.failure);
    source->shared.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return &source->base;
}
