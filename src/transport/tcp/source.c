/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp transport's source: one connection a channel, frames sent straight out of guest memory, or inside
 * TLS from copies of it (socket.h).
 *
 * Threads: each channel's buffers belong to its sender thread. `lock` guards the table of channels against
 * abort(), which may come from any thread: it shuts the sockets down, which ends every blocked call, but
 * closes nothing, for a number that is closed here may be another file's at the next moment. Only free()
 * closes.
 *
 * A failure on one channel ends all: the session can't go on without it, and a sender that is blocked on
 * another one must hear of it.
 *
 * sendmsg() has copied the bytes when it returns, so a page may be sent, changed and tracked as dirty again
 * at any time; end_round() has nothing to wait for. A guest that punches holes is sent through a buffer all
 * the same: sendmsg() would read through the mapping, and so put back the pages that the guest has just given
 * away. The buffer is filled and sent piece by piece, frame by frame: small runs share a piece, and inside
 * TLS a record.
 */
#include "transport/tcp/source.h"

#include "common/autoptr.h"
#include "transport/address.h"
#include "transport/failure.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/wire.h"

#include <errno.h>
#include <string.h>

/* A multiple of a TLS record's 16 KiB, small enough for a core's cache: it is written once and read once or
 * twice. Larger than a frame's header and runs. */
#define COPIES_BYTES ((size_t)256 << 10)

typedef struct {
    RmTcpLine line; /* opened once, under the lock, before the sender thread starts; no stream: not yet */

    /* The sender thread's own. */
    uint32_t next_round;
    uint8_t *copies; /* COPIES_BYTES; NULL if RAM is sent from its mapping */
    struct {
        RmTcpHeader header;
        RmRun runs[RM_RUNS_MAX];
    } frame;
    struct iovec iov[RM_RUNS_MAX + 1];
} Channel;

typedef struct {
    RmTx base;
    RmFailure failure;
    uint64_t wire_bytes;       /* atomic */
    GCancellable *cancellable; /* ends connect(); cancelled by abort() and by the caller's own */

    /* Immutable once connected. */
    RmBlockTable *blocks; /* grows by add_block() */
    uint64_t chunk_size;
    unsigned n_channels;
    unsigned timeout_ms;

    GMutex lock;
    gboolean aborted;  /* lock */
    Channel *channels; /* lock for connection and fd of each; n_channels of them, NULL before connect() */
} Source;

static Source *source_of(RmTx *tx)
{
    return (Source *)((uint8_t *)tx - G_STRUCT_OFFSET(Source, base));
}

/* Wakes whoever is blocked on a channel, and lets no later call through. */
static void shut_down(Source *source)
{
    g_mutex_lock(&source->lock);
    source->aborted = TRUE;
    for (unsigned i = 0; source->channels != NULL && i < source->n_channels; i++)
        rm_tcp_line_shut_down(&source->channels[i].line);
    g_mutex_unlock(&source->lock);
}

static void source_abort(RmTx *tx)
{
    Source *source = source_of(tx);
    rm_failure_set(&source->failure, -ECANCELED, RM_REASON_CANCELLED,
                   "the data channels were shut down at the source");
    g_cancellable_cancel(source->cancellable);
    shut_down(source);
}

/* ---- connecting ---- */

static RmReason reason_of(const GError *problem)
{
    if (g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CANCELLED))
        return RM_REASON_CANCELLED;
    if (g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_TIMED_OUT))
        return RM_REASON_PEER_TIMEOUT;
    return RM_REASON_PEER_UNREACHABLE;
}

static GSocketClient *new_client(const RmTxParams *params, GError **error)
{
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_socket_client_set_protocol(client, G_SOCKET_PROTOCOL_TCP);
    /* RAM goes where the operator said, not to a proxy that happens to be in the environment. */
    g_socket_client_set_enable_proxy(client, FALSE);
    g_socket_client_set_timeout(client, (params->timeout_ms + 999) / 1000); /* of each address */
    g_autoptr(GSocketAddress) local = NULL;
    if (!rm_address_source(params, &local, error))
        return NULL;
    if (local != NULL)
        g_socket_client_set_local_address(client, local);
    return g_steal_pointer(&client);
}

/* The destination's word on the preamble. With TLS it is also its first word on our certificate. */
static gboolean await_ack(Source *source, GIOStream *stream, const RmTxParams *params, unsigned index,
                          GError **error)
{
    g_autoptr(GError) problem = NULL;
    uint8_t answer = 0;
    gint64 deadline = g_get_monotonic_time() + (gint64)params->timeout_ms * 1000;
    gboolean read = rm_tcp_read(stream, &answer, 1, deadline, source->cancellable, &problem);
    if (read && answer == RM_TCP_ACK)
        return TRUE;
    if (read || g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CONNECTION_CLOSED) ||
        g_error_matches(problem, G_TLS_ERROR, G_TLS_ERROR_EOF))
        return rm_fail(
            error, RM_REASON_TOKEN,
            "data channel %u was rejected by the destination; its log says why. Is there a proxy or another "
            "rdmamigd behind the offered address?",
            index);
    if (problem->domain == G_TLS_ERROR) {
        g_autofree char *text = rm_tls_explain(stream);
        return rm_fail(error, RM_REASON_TLS, "data channel %u: %s: %s", index, text, problem->message);
    }
    return rm_fail(error, reason_of(problem), "data channel %u was not accepted: %s", index,
                   problem->message);
}

/* Sends the preamble and waits until the channel has been adopted. */
static gboolean introduce(Source *source, GIOStream *stream, const RmTxParams *params, unsigned index,
                          GError **error)
{
    RmTcpPreamble preamble = {.channel = index};
    memcpy(preamble.token, params->token, sizeof preamble.token);
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    rm_tcp_preamble_format(&preamble, bytes);

    g_autoptr(GError) problem = NULL;
    /* 48 bytes into an empty buffer do not block. A connection that is closed already tells why when read. */
    if (!g_output_stream_write_all(g_io_stream_get_output_stream(stream), bytes, sizeof bytes, NULL,
                                   source->cancellable, &problem) &&
        !g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CONNECTION_CLOSED))
        return rm_fail(error, reason_of(problem), "data channel %u was not accepted: %s", index,
                       problem->message);
    return await_ack(source, stream, params, index, error);
}

/* The connection of a channel, inside TLS if that is wished for. */
static GIOStream *dial(Source *source, const RmTxParams *params, GSocketClient *client,
                       GSocketConnectable *address, unsigned index, GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(GSocketConnection) connection =
        g_socket_client_connect(client, address, source->cancellable, &problem);
    if (connection == NULL) {
        g_autofree char *where = g_socket_connectable_to_string(address);
        rm_fail(error, reason_of(problem),
                "data channel %u cannot connect to %s%s%s: %s; check that a firewall "
                "lets data connections through",
                index, where, params->source_address != NULL ? " from " : "", params->source_address ?: "",
                problem->message);
        return NULL;
    }
    if (params->tls == NULL)
        return G_IO_STREAM(g_steal_pointer(&connection));
    GIOStream *stream = rm_tls_connect(params->tls, connection, params->tls_host, params->timeout_ms,
                                       source->cancellable, error);
    if (stream == NULL)
        g_prefix_error(error, "data channel %u: ", index);
    return stream;
}

static gboolean connect_channel(Source *source, const RmTxParams *params, GSocketClient *client,
                                GSocketConnectable *address, unsigned index, GError **error)
{
    g_autoptr(GIOStream) stream = dial(source, params, client, address, index, error);
    if (stream == NULL || !introduce(source, stream, params, index, error))
        return FALSE;
    Channel *channel = &source->channels[index];
    int result = -ECANCELED;
    g_mutex_lock(&source->lock);
    if (!source->aborted) {
        result = rm_tcp_line_open(&channel->line, stream, RM_TCP_LINE_SENDS, params->timeout_ms,
                                  params->packets.tos);
        channel->next_round = 1;
        channel->copies = params->copy || channel->line.tls ? g_malloc(COPIES_BYTES) : NULL;
    }
    gboolean aborted = source->aborted;
    g_mutex_unlock(&source->lock);
    if (aborted)
        return rm_failure_get(&source->failure, error);
    return result == 0 || rm_set_errno(error, RM_REASON_INTERNAL, -result,
                                       "data channel %u: cannot set its socket up", index);
}

static void cancel_ours(GCancellable *theirs, GCancellable *ours)
{
    g_cancellable_cancel(ours);
}

static gboolean source_connect(RmTx *tx, const RmTxParams *params, GCancellable *cancellable, GError **error)
{
    Source *source = source_of(tx);
    g_assert(source->channels == NULL);
    g_assert(params->channels >= 1 && params->channels <= RM_CHANNELS_MAX && params->chunk_size > 0);
    source->blocks = rm_block_table_new(params->blocks);
    source->chunk_size = params->chunk_size;
    source->timeout_ms = params->timeout_ms;
    g_mutex_lock(&source->lock);
    source->n_channels = params->channels;
    source->channels = g_new0(Channel, params->channels);
    g_mutex_unlock(&source->lock);

    g_autoptr(GSocketConnectable) address = rm_address_target(params, error);
    g_autoptr(GSocketClient) client = address != NULL ? new_client(params, error) : NULL;
    if (client == NULL)
        return FALSE;
    gulong handler = 0;
    if (cancellable != NULL)
        handler = g_cancellable_connect(cancellable, G_CALLBACK(cancel_ours), source->cancellable, NULL);
    gboolean ok = TRUE;
    for (unsigned i = 0; ok && i < params->channels; i++)
        ok = connect_channel(source, params, client, address, i, error);
    g_cancellable_disconnect(cancellable, handler);
    return ok;
}

static void source_add_block(RmTx *tx, RmBlock *block)
{
    rm_block_table_add(source_of(tx)->blocks, block);
}

static int source_registered(RmTx *tx, uint32_t block, const RmRegion *regions, unsigned n)
{
    return 0; /* populated ahead at the far side; nobody waits for it */
}

/* ---- the data path ---- */

static int channel_failed(Source *source, unsigned index, const RmBlock *block, int code)
{
    RmFailure *failure = &source->failure;
    if (code == -EPIPE || code == -ECONNRESET)
        code =
            rm_failure_set(failure, code, RM_REASON_PEER_LOST,
                           "data channel %u: the destination closed the connection; its log says why", index);
    else if (code == -ETIMEDOUT)
        code = rm_failure_set(failure, code, RM_REASON_PEER_TIMEOUT,
                              "data channel %u: the destination took no data for %u ms", index,
                              source->timeout_ms);
    else if (code == -EFAULT)
        code = rm_failure_set(failure, code, RM_REASON_TRANSPORT,
                              "data channel %u: RAM block %s cannot be read: its file has been truncated",
                              index, block != NULL ? block->name : "?");
    else
        code = rm_failure_set(failure, code, RM_REASON_TRANSPORT, "data channel %u: cannot send: %s", index,
                              g_strerror(-code));
    shut_down(source);
    return code;
}

static int misuse(Source *source, unsigned index, const char *problem)
{
    int code = rm_failure_set(&source->failure, -EINVAL, RM_REASON_INTERNAL,
                              "data channel %u: this daemon tried to send a bad frame: %s", index, problem);
    shut_down(source);
    return code;
}

/* NULL and a failure if the channel can't be used at all. */
static Channel *get_channel(Source *source, unsigned index, int *ret_code)
{
    *ret_code = rm_failure_code(&source->failure);
    if (*ret_code < 0)
        return NULL;
    if (source->channels == NULL || index >= source->n_channels ||
        source->channels[index].line.stream == NULL) {
        *ret_code = misuse(source, index, "no such channel");
        return NULL;
    }
    return &source->channels[index];
}

/* The frame's first part, in wire order, and all of its runs straight out of the mapping. */
static int send_mapped(Source *source, Channel *channel, const RmBlock *block, const RmRun *runs, unsigned n,
                       size_t head)
{
    channel->iov[0] = (struct iovec){&channel->frame, head};
    for (unsigned i = 0; i < n; i++)
        channel->iov[i + 1] = (struct iovec){block->map + runs[i].offset, runs[i].length};
    return rm_tcp_send(&channel->line, channel->iov, n + 1, &source->wire_bytes);
}

static int flush(Source *source, Channel *channel, size_t *filled)
{
    struct iovec piece = {channel->copies, *filled};
    *filled = 0;
    return piece.iov_len > 0 ? rm_tcp_send(&channel->line, &piece, 1, &source->wire_bytes) : 0;
}

/* The same by way of the buffer. */
static int send_copies(Source *source, Channel *channel, const RmBlock *block, const RmRun *runs, unsigned n,
                       size_t head)
{
    size_t filled = head;
    memcpy(channel->copies, &channel->frame, head);
    for (unsigned i = 0; i < n; i++) {
        for (uint64_t done = 0; done < runs[i].length;) {
            size_t part = MIN(runs[i].length - done, COPIES_BYTES - filled);
            int code = rm_block_read(block, runs[i].offset + done, channel->copies + filled, part);
            filled += part;
            done += part;
            if (code == 0 && filled == COPIES_BYTES)
                code = flush(source, channel, &filled);
            if (code < 0)
                return code;
        }
    }
    return flush(source, channel, &filled);
}

static int source_post(RmTx *tx, unsigned index, uint32_t block_index, const RmRun *runs, unsigned n)
{
    Source *source = source_of(tx);
    int code;
    Channel *channel = get_channel(source, index, &code);
    if (channel == NULL)
        return code;

    RmTcpHeader *header = &channel->frame.header;
    RmTcpLimits limits = {source->blocks, source->chunk_size, source->n_channels, index, channel->next_round};
    const char *problem = rm_tcp_post_check(block_index, runs, n, &limits, header);
    if (problem != NULL)
        return misuse(source, index, problem);

    const RmBlock *block = rm_block_table_get(source->blocks, block_index);
    memcpy(channel->frame.runs, runs, n * sizeof *runs);
    rm_tcp_header_swap(header);
    rm_tcp_runs_swap(channel->frame.runs, n);
    size_t head = sizeof *header + n * sizeof *runs;
    code = channel->copies == NULL ? send_mapped(source, channel, block, runs, n, head)
                                   : send_copies(source, channel, block, runs, n, head);
    return code < 0 ? channel_failed(source, index, block, code) : 0;
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

    RmTcpHeader *header = &channel->frame.header;
    *header = (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = round};
    rm_tcp_header_swap(header);
    channel->iov[0] = (struct iovec){header, sizeof *header};
    code = rm_tcp_send(&channel->line, channel->iov, 1, &source->wire_bytes);
    if (code < 0)
        return channel_failed(source, index, NULL, code);
    channel->next_round++;
    return 0;
}

static gboolean source_error(RmTx *tx, GError **error)
{
    return rm_failure_get(&source_of(tx)->failure, error);
}

static uint64_t source_wire_bytes(RmTx *tx)
{
    return __atomic_load_n(&source_of(tx)->wire_bytes, __ATOMIC_RELAXED);
}

static void source_free(RmTx *tx)
{
    Source *source = source_of(tx);
    for (unsigned i = 0; rm_failure_code(&source->failure) == 0 && i < source->n_channels; i++)
        rm_tcp_line_finish(&source->channels[i].line);
    shut_down(source);
    for (unsigned i = 0; source->channels != NULL && i < source->n_channels; i++) {
        rm_tcp_line_close(&source->channels[i].line);
        g_free(source->channels[i].copies);
    }
    g_free(source->channels);
    rm_block_table_free(source->blocks);
    g_object_unref(source->cancellable);
    rm_failure_clear(&source->failure);
    g_mutex_clear(&source->lock);
    g_free(source);
}

static const RmTxOps source_ops = {
    .name = "tcp",
    .connect = source_connect,
    .add_block = source_add_block,
    .registered = source_registered,
    .prepare = rm_tx_prepare_nothing,
    .window = rm_tx_no_window,
    .release = rm_tx_release_nothing,
    .mark = rm_tx_no_mark,
    .post = source_post,
    .end_round = source_end_round,
    .abort = source_abort,
    .error = source_error,
    .wire_bytes = source_wire_bytes,
    .free = source_free,
};

RmTx *rm_tcp_source_new(void)
{
    Source *source = g_new0(Source, 1);
    source->base.ops = &source_ops;
    source->cancellable = g_cancellable_new();
    rm_failure_init(&source->failure);
    g_mutex_init(&source->lock);
    return &source->base;
}
