/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp transport's source: one connection a channel, frames sent straight out of guest memory.
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
 * away.
 */
#include "transport/tcp/source.h"

#include "common/autoptr.h"
#include "transport/address.h"
#include "transport/failure.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

typedef struct {
    /* Written once, under the lock, before the sender thread starts. */
    GSocketConnection *connection; /* keeps fd open; never used for I/O once tuned */
    int fd;

    /* The sender thread's own. */
    uint32_t next_round;
    uint8_t *copies; /* RM_POST_BYTES_MAX; NULL if RAM is sent from its mapping */
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
        if (source->channels[i].connection != NULL)
            shutdown(source->channels[i].fd, SHUT_RDWR);
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

/* Sends the preamble and waits until the channel has been adopted. */
static gboolean introduce(Source *source, GSocket *socket, const RmTxParams *params, unsigned index,
                          GError **error)
{
    RmTcpPreamble preamble = {.channel = index};
    memcpy(preamble.token, params->token, sizeof preamble.token);
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES], answer = 0;
    rm_tcp_preamble_format(&preamble, bytes);

    g_autoptr(GError) problem = NULL;
    /* 48 bytes into an empty buffer go whole or not at all. */
    gssize n = g_socket_send(socket, (const char *)bytes, sizeof bytes, source->cancellable, &problem);
    if (n == sizeof bytes && g_socket_condition_timed_wait(socket, G_IO_IN, (gint64)params->timeout_ms * 1000,
                                                           source->cancellable, &problem))
        n = g_socket_receive(socket, (char *)&answer, 1, source->cancellable, &problem);
    if (problem != NULL && !g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CONNECTION_CLOSED) &&
        !g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_BROKEN_PIPE))
        return rm_fail(error, reason_of(problem), "data channel %u was not accepted: %s", index,
                       problem->message);
    if (problem != NULL || n != 1 || answer != RM_TCP_ACK)
        return rm_fail(
            error, RM_REASON_TOKEN,
            "data channel %u was rejected by the destination; its log says why. Is there a proxy or another "
            "rdmamigd behind the offered address?",
            index);
    return TRUE;
}

static gboolean connect_channel(Source *source, const RmTxParams *params, GSocketClient *client,
                                GSocketConnectable *address, unsigned index, GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(GSocketConnection) connection =
        g_socket_client_connect(client, address, source->cancellable, &problem);
    if (connection == NULL) {
        g_autofree char *where = g_socket_connectable_to_string(address);
        return rm_fail(error, reason_of(problem),
                       "data channel %u cannot connect to %s%s%s: %s; check that a firewall "
                       "lets data connections through",
                       index, where, params->source_address != NULL ? " from " : "",
                       params->source_address ?: "", problem->message);
    }
    GSocket *socket = g_socket_connection_get_socket(connection);
    if (!introduce(source, socket, params, index, error))
        return FALSE;
    int result = rm_tcp_tune(g_socket_get_fd(socket), params->timeout_ms, params->packets.tos);
    if (result < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, -result, "data channel %u: cannot set socket options",
                            index);

    g_mutex_lock(&source->lock);
    gboolean aborted = source->aborted;
    if (!aborted) {
        Channel *channel = &source->channels[index];
        channel->fd = g_socket_get_fd(socket);
        channel->connection = g_steal_pointer(&connection);
        channel->next_round = 1;
        channel->copies = params->copy ? g_malloc(RM_POST_BYTES_MAX) : NULL;
    }
    g_mutex_unlock(&source->lock);
    return aborted ? rm_failure_get(&source->failure, error) : TRUE;
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
        source->channels[index].connection == NULL) {
        *ret_code = misuse(source, index, "no such channel");
        return NULL;
    }
    return &source->channels[index];
}

/* Fills the vector behind the frame's part. Returns the number of pieces or a negative errno. */
static int gather(Channel *channel, const RmBlock *block, const RmRun *runs, unsigned n)
{
    uint64_t done = 0;
    for (unsigned i = 0; i < n; i++) {
        channel->frame.runs[i] = runs[i];
        channel->iov[i + 1] = (struct iovec){block->map + runs[i].offset, runs[i].length};
        if (channel->copies == NULL)
            continue;
        int code = rm_block_read(block, runs[i].offset, channel->copies + done, runs[i].length);
        if (code < 0)
            return code;
        done += runs[i].length;
    }
    if (channel->copies == NULL)
        return (int)n;
    channel->iov[1] = (struct iovec){channel->copies, done};
    return 1;
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
    int pieces = gather(channel, block, runs, n);
    if (pieces < 0)
        return channel_failed(source, index, block, pieces);
    rm_tcp_header_swap(header);
    rm_tcp_runs_swap(channel->frame.runs, n);
    channel->iov[0] = (struct iovec){&channel->frame, sizeof *header + n * sizeof(RmRun)};
    code = rm_tcp_send(channel->fd, channel->iov, (unsigned)pieces + 1, &source->wire_bytes);
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
    code = rm_tcp_send(channel->fd, channel->iov, 1, &source->wire_bytes);
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
    shut_down(source);
    for (unsigned i = 0; source->channels != NULL && i < source->n_channels; i++) {
        g_clear_object(&source->channels[i].connection);
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
