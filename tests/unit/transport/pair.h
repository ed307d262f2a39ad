/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A source and a destination over real loopback sockets, with the daemon's part in between: a listener that
 * reads preambles, compares tokens and hands connections to the destination. In clear, or inside TLS.
 */
#pragma once

#include "../control/certificates.h"
#include "blocks.h"

#include "common/reason.h"
#include "memory/chunk.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

#include <json-c/json.h>
#include <sys/socket.h>

static gboolean pair_tls; /* of the pairs that are made from here on */

static struct {
    char *dirs[2];
    RmTls *loaded[2];
} pair_creds;

static inline void pair_creds_clear(void)
{
    for (unsigned i = 0; i < 2; i++) {
        g_clear_pointer(&pair_creds.loaded[i], rm_tls_unref);
        g_clear_pointer(&pair_creds.dirs[i], folder_free);
    }
}

/* One end's credentials; made when they are first wanted, and kept to the program's end. */
static inline RmTls *pair_creds_of(RmTlsEnd end)
{
    static const Wish wishes[] = {
        [RM_TLS_SOURCE] = {.names = {"source"}, .purpose = GNUTLS_KP_TLS_WWW_CLIENT},
        [RM_TLS_DESTINATION] = {.names = {"destination"}, .purpose = GNUTLS_KP_TLS_WWW_SERVER}};
    static GMutex lock;
    g_mutex_lock(&lock);
    if (pair_creds.loaded[end] == NULL) {
        Issued ca = issue(&(const Wish){0}, NULL);
        atexit(pair_creds_clear);
        for (unsigned i = 0; i < 2; i++) {
            g_autoptr(GError) error = NULL;
            pair_creds.dirs[i] = creds_new(&ca, i == RM_TLS_DESTINATION, &wishes[i]);
            pair_creds.loaded[i] = rm_tls_load(pair_creds.dirs[i], (RmTlsEnd)i, &error);
            g_assert_no_error(error);
        }
        issued_clear(&ca);
    }
    g_mutex_unlock(&lock);
    return pair_creds.loaded[end];
}

typedef struct {
    gboolean tls; /* and the channels of both ends are inside it */
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

/* The next connection, as the daemon would hand it on. NULL at the end, or if it is none of ours. */
static inline GIOStream *pair_accept(Pair *pair, GCancellable *cancel, GError **error)
{
    g_autoptr(GSocketConnection) connection = g_socket_listener_accept(pair->listener, NULL, cancel, error);
    if (connection == NULL || !pair->tls)
        return (GIOStream *)g_steal_pointer(&connection);
    return rm_tls_accept(pair_creds_of(RM_TLS_DESTINATION), connection, NULL, 20000, cancel, error);
}

static inline void *pair_listen(void *data)
{
    Pair *pair = data;
    while (!g_cancellable_is_cancelled(pair->quit)) {
        g_autoptr(GIOStream) stream = pair_accept(pair, pair->quit, NULL);
        RmTcpPreamble preamble;
        if (stream == NULL ||
            !rm_tcp_preamble_receive(stream, '\0', pair->timeout_ms, pair->quit, &preamble, NULL) ||
            !rm_token_equal(preamble.token, pair->token) ||
            !pair->rx->ops->adopt(pair->rx, stream, preamble.channel, NULL))
            g_atomic_int_inc(&pair->refused);
    }
    return NULL;
}

/* Starts the destination and the listener; `sizes` ends with 0. */
static inline Pair *pair_new(unsigned channels, uint64_t chunk_size, const uint64_t *sizes)
{
    g_autoptr(GError) error = NULL;
    Pair *pair = g_new0(Pair, 1);
    pair->tls = pair_tls;
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
                         .tls = pair->tls ? pair_creds_of(RM_TLS_SOURCE) : NULL,
                         .tls_host = "destination",
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

/* ---- the same test in clear and inside TLS ---- */

typedef struct {
    const char *name;
    void (*run)(void);
} PairTest;

static inline void pair_run_in_clear(const void *test)
{
    pair_tls = FALSE;
    ((const PairTest *)test)->run();
}

static inline void pair_run_in_tls(const void *test)
{
    pair_tls = TRUE;
    ((const PairTest *)test)->run();
}

static inline void pair_add_tests(const char *suite, const PairTest *tests, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *clear = g_strdup_printf("/%s/%s", suite, tests[i].name);
        g_autofree char *tls = g_strdup_printf("/%s-tls/%s", suite, tests[i].name);
        g_test_add_data_func(clear, &tests[i], pair_run_in_clear);
        g_test_add_data_func(tls, &tests[i], pair_run_in_tls);
    }
}
