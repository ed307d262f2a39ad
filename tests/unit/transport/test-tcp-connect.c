/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp source against destinations that are absent, silent, unwilling or stuck. */
#include "pair.h"

#include "common/reason.h"

#include <errno.h>

static const uint64_t one_mib[] = {MIB, 0};

static void expect(gboolean ok, GError **error, RmReason reason)
{
    g_assert_false(ok);
    g_assert_error(*error, RM_ERROR, (int)reason);
    g_clear_error(error);
}

static void test_stranger(void)
{
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    pair_start(pair);
    json_object *address = pair_address("127.0.0.1", pair->port);
    RmTxParams params = pair_params(pair, address);
    params.token[31] ^= 1;
    g_autoptr(RmTx) stranger = rm_transport_tcp.tx_new();
    expect(stranger->ops->connect(stranger, &params, NULL, &error), &error, RM_REASON_TOKEN);
    json_object_put(address);
    g_assert_cmpint(g_atomic_int_get(&pair->refused), ==, 1);

    /* The session lives on. */
    g_assert_true(pair_connect(pair, NULL));
    pair_end_round(pair, 1);
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 1, NULL, NULL));
}

static void test_too_many_channels(void)
{
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(2, MIB, one_mib);
    pair_start(pair);
    json_object *address = pair_address(NULL, pair->port);
    RmTxParams params = pair_params(pair, address);
    params.channels = 3;
    pair->tx = rm_transport_tcp.tx_new();
    expect(pair->tx->ops->connect(pair->tx, &params, NULL, &error), &error, RM_REASON_TOKEN);
    json_object_put(address);
}

static void try_address(json_object *address, const char *source_address, RmReason reason)
{
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    RmTxParams params = pair_params(pair, address);
    params.source_address = source_address;
    g_autoptr(RmTx) tx = rm_transport_tcp.tx_new();
    expect(tx->ops->connect(tx, &params, NULL, &error), &error, reason);
    if (address != NULL)
        json_object_put(address);
}

static void test_bad_address(void)
{
    json_object *word = json_object_new_object(), *empty = json_object_new_object();
    json_object_object_add(word, "port", json_object_new_string("24780"));
    try_address(NULL, NULL, RM_REASON_PROTOCOL);
    try_address(empty, NULL, RM_REASON_PROTOCOL);
    try_address(word, NULL, RM_REASON_PROTOCOL);
    try_address(pair_address("", 24780), NULL, RM_REASON_PROTOCOL);
    try_address(pair_address("127.0.0.1", 0), NULL, RM_REASON_PROTOCOL);
    try_address(pair_address("127.0.0.1", 24780), "not an address", RM_REASON_USAGE);
}

/* A port that somebody holds, but nobody listens on. */
static void test_nobody(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSocket) holder =
        g_socket_new(G_SOCKET_FAMILY_IPV4, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, &error);
    g_autoptr(GSocketAddress) any = g_inet_socket_address_new_from_string("127.0.0.1", 0);
    g_assert_true(g_socket_bind(holder, any, FALSE, &error));
    g_autoptr(GSocketAddress) actual = g_socket_get_local_address(holder, &error);
    guint16 port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(actual));
    try_address(pair_address("127.0.0.1", port), NULL, RM_REASON_PEER_UNREACHABLE);
    /* An address that isn't this host's to send from: TEST-NET-1. */
    try_address(pair_address("127.0.0.1", port), "192.0.2.1", RM_REASON_PEER_UNREACHABLE);
}

/* ---- destinations made by hand ---- */

/* Listens, and takes no connection off the queue until told to; the pair's own listener is that already. */
static GIOStream *accept_raw(Pair *pair)
{
    g_autoptr(GError) error = NULL;
    GIOStream *stream = pair_accept(pair, NULL, &error);
    g_assert_no_error(error);
    return stream;
}

static void put_byte(GIOStream *stream, uint8_t byte)
{
    g_autoptr(GError) error = NULL;
    g_output_stream_write_all(g_io_stream_get_output_stream(stream), &byte, 1, NULL, NULL, &error);
    g_assert_no_error(error);
}

static void *adopt_raw(void *data)
{
    GIOStream *stream = accept_raw(data);
    put_byte(stream, RM_TCP_ACK);
    return stream;
}

/* Connects `pair` to a destination that adopts and then does nothing; returns that one's connection. */
static GIOStream *connect_to_sleeper(Pair *pair)
{
    g_autoptr(GError) error = NULL;
    GThread *thread = g_thread_new("sleeper", adopt_raw, pair);
    pair_connect(pair, &error);
    g_assert_no_error(error);
    return g_thread_join(thread);
}

static void test_silent(void)
{
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    pair->timeout_ms = 100;
    expect(pair_connect(pair, &error), &error, RM_REASON_PEER_TIMEOUT); /* never adopted */
}

static void *wrong_ack(void *data)
{
    GIOStream *stream = accept_raw(data);
    put_byte(stream, '{');
    return stream;
}

static void test_wrong_ack(void)
{
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    GThread *thread = g_thread_new("other-daemon", wrong_ack, pair);
    expect(pair_connect(pair, &error), &error, RM_REASON_TOKEN);
    g_object_unref(g_thread_join(thread));
}

typedef struct {
    Pair *pair;
    GCancellable *cancellable;
    GError *error;
    gboolean ok;
} Connector;

static void *connect_in_thread(void *data)
{
    Connector *connector = data;
    json_object *address = pair_address(NULL, connector->pair->port);
    RmTxParams params = pair_params(connector->pair, address);
    RmTx *tx = connector->pair->tx;
    connector->ok = tx->ops->connect(tx, &params, connector->cancellable, &connector->error);
    json_object_put(address);
    return NULL;
}

static void connect_and_end(gboolean by_abort)
{
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    pair->tx = rm_transport_tcp.tx_new();
    Connector connector = {.pair = pair, .cancellable = cancellable};
    GThread *thread = g_thread_new("connector", connect_in_thread, &connector);
    g_autoptr(GIOStream) stream = accept_raw(pair); /* it's waiting for the ACK now, or soon */
    if (by_abort)
        pair->tx->ops->abort(pair->tx);
    else
        g_cancellable_cancel(cancellable);
    g_thread_join(thread);
    expect(connector.ok, &connector.error, RM_REASON_CANCELLED);
}

static void test_cancelled(void)
{
    connect_and_end(FALSE);
    connect_and_end(TRUE);
    /* Before it began. */
    GError *error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    pair->tx = rm_transport_tcp.tx_new();
    pair->tx->ops->abort(pair->tx);
    Connector connector = {.pair = pair};
    connect_in_thread(&connector);
    error = connector.error;
    expect(connector.ok, &error, RM_REASON_CANCELLED);
}

static void test_source_address(void)
{
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    g_autoptr(GError) error = NULL;
    json_object *address = pair_address("127.0.0.1", pair->port);
    RmTxParams params = pair_params(pair, address);
    params.source_address = "127.0.0.2";
    pair->tx = rm_transport_tcp.tx_new();
    GThread *thread = g_thread_new("sleeper", adopt_raw, pair);
    pair->tx->ops->connect(pair->tx, &params, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GIOStream) stream = g_thread_join(thread);
    g_autoptr(GSocketAddress) remote = g_socket_get_remote_address(rm_tls_socket(stream), &error);
    g_autofree char *text =
        g_inet_address_to_string(g_inet_socket_address_get_address(G_INET_SOCKET_ADDRESS(remote)));
    g_assert_cmpstr(text, ==, "127.0.0.2");
    json_object_put(address);
}

static void test_ipv6(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    g_autoptr(GSocketAddress) loopback = g_inet_socket_address_new_from_string("::1", 0), actual = NULL;
    if (!g_socket_listener_add_address(pair->listener, loopback, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP,
                                       NULL, &actual, &error)) {
        g_test_skip("no IPv6 loopback here");
        return;
    }
    json_object *address = pair_address("::1", g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(actual)));
    RmTxParams params = pair_params(pair, address);
    pair->tx = rm_transport_tcp.tx_new();
    GThread *thread = g_thread_new("sleeper", adopt_raw, pair);
    pair->tx->ops->connect(pair->tx, &params, NULL, &error);
    g_assert_no_error(error);
    g_object_unref(g_thread_join(thread));
    json_object_put(address);
}

/* ---- a destination that stops reading ---- */

typedef struct {
    Pair *pair;
    int code;
} Poster;

static void *post_until_failure(void *data)
{
    Poster *poster = data;
    RmRun run = {0, MIB};
    while (poster->code == 0)
        poster->code = poster->pair->tx->ops->post(poster->pair->tx, 0, 0, &run, 1);
    return NULL;
}

/* Until the sender has made no progress for a while: it's blocked in the kernel then. */
static void await_block(RmTx *tx)
{
    for (uint64_t before = 0, now; (now = tx->ops->wire_bytes(tx)) != before || now == 0; before = now)
        g_usleep(50000);
}

static void test_abort_while_blocked(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    g_autoptr(GIOStream) sleeper = connect_to_sleeper(pair);
    Poster poster = {.pair = pair};
    GThread *thread = g_thread_new("poster", post_until_failure, &poster);
    await_block(pair->tx);
    pair->tx->ops->abort(pair->tx);
    g_thread_join(thread); /* the test's time-out is the bound */
    g_assert_cmpint(poster.code, ==, -ECANCELED);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
    g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 0, 1), ==, -ECANCELED);
}

static void test_peer_takes_nothing(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    pair->timeout_ms = 500;
    g_autoptr(GIOStream) sleeper = connect_to_sleeper(pair);
    Poster poster = {.pair = pair};
    post_until_failure(&poster);
    g_assert_cmpint(poster.code, ==, -ETIMEDOUT);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
}

static void test_peer_closes(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, one_mib);
    g_object_unref(connect_to_sleeper(pair));
    Poster poster = {.pair = pair};
    post_until_failure(&poster);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
}

/* One channel's failure ends the others, blocked or not. */
static void test_failure_spreads(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(2, MIB, (const uint64_t[]){2 * MIB, 0});
    pair->tx = rm_transport_tcp.tx_new();
    Connector connector = {.pair = pair};
    GThread *thread = g_thread_new("connector", connect_in_thread, &connector);
    g_autoptr(GIOStream) first = adopt_raw(pair), second = adopt_raw(pair);
    g_thread_join(thread);
    g_assert_true(connector.ok);

    Poster poster = {.pair = pair};
    GThread *blocked = g_thread_new("poster", post_until_failure, &poster);
    await_block(pair->tx);
    g_clear_object(&second);
    RmRun run = {MIB, MIB};
    while (pair->tx->ops->post(pair->tx, 1, 0, &run, 1) == 0)
        ;
    g_thread_join(blocked);
    g_assert_cmpint(poster.code, <, 0);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    g_assert_nonnull(strstr(error->message, "channel 1"));
}

int main(int argc, char **argv)
{
    static const PairTest tests[] = {
        {"stranger", test_stranger},
        {"too-many-channels", test_too_many_channels},
        {"silent", test_silent},
        {"wrong-ack", test_wrong_ack},
        {"cancelled", test_cancelled},
        {"source-address", test_source_address},
        {"ipv6", test_ipv6},
        {"abort-while-blocked", test_abort_while_blocked},
        {"peer-takes-nothing", test_peer_takes_nothing},
        {"peer-closes", test_peer_closes},
        {"failure-spreads", test_failure_spreads},
    };
    g_test_init(&argc, &argv, NULL);
    pair_add_tests("tcp-connect", tests, G_N_ELEMENTS(tests));
    g_test_add_func("/tcp-connect/bad-address", test_bad_address);
    g_test_add_func("/tcp-connect/nobody", test_nobody);
    return g_test_run();
}
