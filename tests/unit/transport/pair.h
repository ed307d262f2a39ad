/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A source and a destination over real loopback sockets, with the daemon's part in between: a listener that
 * reads preambles, compares tokens and hands connections to the destination.
 */
#pragma once

#include "blocks.h"

#include "memory/chunk.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

#include <json-c/json.h>
#include <sys/socket.h>

typedef struct {
    GSocketListener *listener;
    guint16 port;
    GThread *thread;
    GCancellable *quit;
    uint8_t token[RM_TOKEN_BYTES];
    GPtrArray *from, *to; /* RmBlock* */
    uint64_t chunk_size;
    unsigned channels;
    unsigned timeout_ms;
    gboolean copy; /* as for a guest that punches holes */
    RmPacketOptions source, destination;
    RmTx *tx;
    RmRx *rx;
    int refused; /* atomic: connections the daemon's part or adopt() turned away */
} Pair;

static inline void *pair_listen(void *data)
{
    Pair *pair = data;
    for (;;) {
        g_autoptr(GSocketConnection) connection =
            g_socket_listener_accept(pair->listener, NULL, pair->quit, NULL);
        if (connection == NULL)
            return NULL;
        RmTcpPreamble preamble;
        GSocket *socket = g_socket_connection_get_socket(connection);
        if (!rm_tcp_preamble_receive(socket, pair->timeout_ms, pair->quit, &preamble, NULL) ||
            !rm_token_equal(preamble.token, pair->token) ||
            !pair->rx->ops->adopt(pair->rx, G_IO_STREAM(connection), preamble.channel, NULL))
            g_atomic_int_inc(&pair->refused);
    }
}

/* Starts the destination and the listener; `sizes` ends with 0. */
static inline Pair *pair_new(unsigned channels, uint64_t chunk_size, const uint64_t *sizes)
{
    g_autoptr(GError) error = NULL;
    Pair *pair = g_new0(Pair, 1);
    pair->channels = channels;
    pair->chunk_size = chunk_size;
    pair->timeout_ms = 20000;
    pair->quit = g_cancellable_new();
    pair->from = blocks_new("from", sizes, FALSE);
    pair->to = blocks_new("to", sizes, FALSE);
    blocks_random(pair->token, sizeof pair->token);
    pair->listener = g_socket_listener_new();
    g_autoptr(GSocketAddress) any = g_inet_socket_address_new_from_string("127.0.0.1", 0), actual = NULL;
    g_socket_listener_add_address(pair->listener, any, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, NULL,
                                  &actual, &error);
    g_assert_no_error(error);
    pair->port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(actual));
    return pair;
}

static inline void pair_start(Pair *pair)
{
    g_autoptr(GError) error = NULL;
    RmRxParams params = {.channels = pair->channels,
                         .blocks = pair->to,
                         .chunk_size = pair->chunk_size,
                         .timeout_ms = pair->timeout_ms,
                         .packets = pair->destination};
    memcpy(params.token, pair->token, sizeof params.token);
    pair->rx = rm_transport_tcp.rx_new();
    pair->rx->ops->start(pair->rx, &params, &error);
    g_assert_no_error(error);
    pair->thread = g_thread_new("listener", pair_listen, pair);
}

static inline json_object *pair_address(const char *host, guint16 port)
{
    json_object *address = json_object_new_object();
    if (host != NULL)
        json_object_object_add(address, "host", json_object_new_string(host));
    json_object_object_add(address, "port", json_object_new_int(port));
    return address;
}

static inline RmTxParams pair_params(Pair *pair, json_object *address)
{
    RmTxParams params = {.channels = pair->channels,
                         .blocks = pair->from,
                         .chunk_size = pair->chunk_size,
                         .address = address,
                         .host = "127.0.0.1",
                         .copy = pair->copy,
                         .packets = pair->source,
                         .timeout_ms = pair->timeout_ms};
    memcpy(params.token, pair->token, sizeof params.token);
    return params;
}

static inline gboolean pair_connect(Pair *pair, GError **error)
{
    json_object *address = pair_address(NULL, pair->port);
    RmTxParams params = pair_params(pair, address);
    pair->tx = rm_transport_tcp.tx_new();
    gboolean ok = pair->tx->ops->connect(pair->tx, &params, NULL, error);
    json_object_put(address);
    return ok;
}

/* The usual case: both ends up and joined. */
static inline Pair *pair_up(unsigned channels, uint64_t chunk_size, const uint64_t *sizes)
{
    g_autoptr(GError) error = NULL;
    Pair *pair = pair_new(channels, chunk_size, sizes);
    pair_start(pair);
    pair_connect(pair, &error);
    g_assert_no_error(error);
    return pair;
}

static inline void pair_free(Pair *pair)
{
    g_cancellable_cancel(pair->quit);
    if (pair->thread != NULL)
        g_thread_join(pair->thread);
    rm_tx_free(pair->tx);
    rm_rx_free(pair->rx);
    g_socket_listener_close(pair->listener);
    g_object_unref(pair->listener);
    g_object_unref(pair->quit);
    g_ptr_array_unref(pair->from);
    g_ptr_array_unref(pair->to);
    g_free(pair);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Pair, pair_free)

static inline RmBlock *pair_from(Pair *pair, unsigned index)
{
    return g_ptr_array_index(pair->from, index);
}

static inline RmBlock *pair_to(Pair *pair, unsigned index)
{
    return g_ptr_array_index(pair->to, index);
}

static inline unsigned pair_channel(Pair *pair, uint32_t block, uint64_t offset)
{
    return rm_chunk_channel(block, offset / pair->chunk_size, pair->channels);
}

static inline void pair_end_round(Pair *pair, uint32_t round)
{
    for (unsigned i = 0; i < pair->channels; i++)
        g_assert_cmpint(pair->tx->ops->end_round(pair->tx, i, round), ==, 0);
}
