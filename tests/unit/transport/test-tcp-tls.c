/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Data channels inside TLS, with somebody on the wire between the ends: what he sees, and what he can do. And
 * what only happens inside TLS: an end that is announced, and one that is not.
 */
#include "pair.h"

#include "transport/tcp/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>

/* ---- the wire ---- */

typedef enum {
    WIRE_PASS,
    WIRE_CUT,    /* both connections closed */
    WIRE_ALTER,  /* one bit flipped */
    WIRE_REPEAT, /* what was passed on last is passed on again */
    WIRE_STALL,  /* nothing is read any more */
} WireTrick;

/* One connection at a time goes through here, to the pair's listener. */
typedef struct {
    Pair *pair;
    GSocketListener *listener;
    guint16 port;
    GThread *thread;
    int trick;       /* atomic, WireTrick; played once, on what comes from the source */
    uint64_t passed; /* atomic: bytes from the source */
    int first_byte;  /* atomic */
    uint64_t seen;   /* atomic: how often `pattern` came by, in either direction */
    uint8_t pattern[16];
} Wire;

static void look(Wire *wire, const uint8_t *bytes, size_t n)
{
    for (const uint8_t *at = bytes, *end = bytes + n;
         (at = memmem(at, (size_t)(end - at), wire->pattern, sizeof wire->pattern)) != NULL; at++)
        __atomic_fetch_add(&wire->seen, 1, __ATOMIC_RELAXED);
}

static void put_all(int fd, const uint8_t *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, bytes + done, n - done, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the test sees it at the ends */
        done += (size_t)sent;
    }
}

/* FALSE at the end. */
static gboolean pass(Wire *wire, int from, int to, gboolean source)
{
    uint8_t bytes[4096];
    ssize_t n = recv(from, bytes, sizeof bytes, 0);
    if (n <= 0)
        return FALSE;
    look(wire, bytes, (size_t)n);
    if (source && __atomic_load_n(&wire->passed, __ATOMIC_RELAXED) == 0)
        g_atomic_int_set(&wire->first_byte, bytes[0]);
    WireTrick trick = source ? (WireTrick)g_atomic_int_get(&wire->trick) : WIRE_PASS;
    if (trick == WIRE_ALTER || trick == WIRE_REPEAT)
        g_atomic_int_set(&wire->trick, WIRE_PASS);
    if (trick == WIRE_ALTER)
        bytes[n / 2] ^= 1;
    if (trick == WIRE_CUT)
        n /= 2;
    put_all(to, bytes, (size_t)n);
    if (trick == WIRE_REPEAT)
        put_all(to, bytes, (size_t)n);
    if (source)
        __atomic_fetch_add(&wire->passed, (uint64_t)n, __ATOMIC_RELAXED);
    return trick != WIRE_CUT;
}

static int dial(Pair *pair)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(pair->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&address, sizeof address), ==, 0);
    return fd;
}

static void *wire_main(void *data)
{
    Wire *wire = data;
    for (;;) {
        g_autoptr(GSocketConnection) connection =
            g_socket_listener_accept(wire->listener, NULL, wire->pair->quit, NULL);
        if (connection == NULL)
            return NULL;
        int near = g_socket_get_fd(g_socket_connection_get_socket(connection)), far = dial(wire->pair);
        gboolean open = TRUE;
        while (open && !g_cancellable_is_cancelled(wire->pair->quit)) {
            gboolean stalled = g_atomic_int_get(&wire->trick) == WIRE_STALL;
            struct pollfd ends[] = {{.fd = stalled ? -1 : near, .events = POLLIN},
                                    {.fd = far, .events = POLLIN}};
            poll(ends, 2, 20);
            if (ends[0].revents != 0)
                open = pass(wire, near, far, TRUE);
            if (open && ends[1].revents != 0)
                open = pass(wire, far, near, FALSE);
        }
        close(far);
    }
}

static Wire *wire_new(Pair *pair)
{
    Wire *wire = g_new0(Wire, 1);
    wire->pair = pair;
    wire->listener = g_socket_listener_new();
    wire->port = g_socket_listener_add_any_inet_port(wire->listener, NULL, NULL);
    blocks_random(wire->pattern, sizeof wire->pattern);
    wire->thread = g_thread_new("wire", wire_main, wire);
    return wire;
}

static void wire_free(Wire *wire)
{
    g_cancellable_cancel(wire->pair->quit);
    g_thread_join(wire->thread);
    g_socket_listener_close(wire->listener);
    g_object_unref(wire->listener);
    g_free(wire);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Wire, wire_free)

/* One channel, 4 MiB of random bytes in one chunk, by way of `*ret_wire`. */
static Pair *new_pair(Wire **ret_wire)
{
    g_autoptr(GError) error = NULL;
    Pair *pair = pair_new(1, 4 * MIB, (const uint64_t[]){4 * MIB, 0});
    pair_start(pair);
    *ret_wire = wire_new(pair);
    json_object *address = pair_address(NULL, (*ret_wire)->port);
    RmTxParams params = pair_params(pair, address);
    pair->tx = rm_transport_tcp.tx_new();
    pair->tx->ops->connect(pair->tx, &params, NULL, &error);
    g_assert_no_error(error);
    json_object_put(address);
    blocks_random(pair_from(pair, 0)->map, 4 * MIB);
    return pair;
}

static int post(Pair *pair, uint64_t offset, uint64_t length)
{
    RmRun run = {offset, length};
    return pair->tx->ops->post(pair->tx, 0, 0, &run, 1);
}

static void expect_lost(Pair *pair, uint32_t round, RmReason reason, const char *word)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(pair->rx->ops->wait_round(pair->rx, round, NULL, &error));
    g_assert_error(error, RM_ERROR, (int)reason);
    if (strstr(error->message, word) == NULL)
        g_error("\"%s\" does not say \"%s\"", error->message, word);
}

/* ---- what is seen ---- */

/* Every page has the pattern, and so has the token: in clear both are seen, which shows that the look works.
 */
static void test_seen(void)
{
    g_autoptr(GError) error = NULL;
    Wire *wire_of_pair;
    g_autoptr(Pair) pair = new_pair(&wire_of_pair);
    g_autoptr(Wire) wire = wire_of_pair;
    for (uint64_t page = 0; page < 1024; page++)
        memcpy(pair_from(pair, 0)->map + page * RM_PAGE + 100, wire->pattern, sizeof wire->pattern);
    g_assert_cmpint(post(pair, 0, 4 * MIB), ==, 0);
    pair_end_round(pair, 1);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    blocks_assert_equal(pair, 0);
    g_assert_cmpint(g_atomic_int_get(&wire->first_byte), ==, pair_tls ? 0x16 : RM_TCP_MAGIC[0]);
    uint64_t seen = __atomic_load_n(&wire->seen, __ATOMIC_RELAXED);
    if (pair_tls)
        g_assert_cmpuint(seen, ==, 0);
    else
        g_assert_cmpuint(seen, >, 500); /* not where it lay across two pieces */
    /* And what the records add to the bytes is little: they are full. */
    uint64_t passed = __atomic_load_n(&wire->passed, __ATOMIC_RELAXED);
    g_assert_cmpuint(passed, <, 4 * MIB + 4 * MIB / 256);
}

/* Runs of one page each share records, too. */
static void test_small_runs(void)
{
    g_autoptr(GError) error = NULL;
    Wire *wire_of_pair;
    g_autoptr(Pair) pair = new_pair(&wire_of_pair);
    g_autoptr(Wire) wire = wire_of_pair;
    uint64_t before = __atomic_load_n(&wire->passed, __ATOMIC_RELAXED);
    RmRun runs[RM_RUNS_MAX];
    for (unsigned i = 0; i < RM_RUNS_MAX; i++)
        runs[i] = (RmRun){2 * i * RM_PAGE, RM_PAGE};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, runs, RM_RUNS_MAX), ==, 0);
    pair_end_round(pair, 1);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    for (unsigned i = 0; i < RM_RUNS_MAX; i++)
        g_assert_true(memcmp(pair_from(pair, 0)->map + runs[i].offset, pair_to(pair, 0)->map + runs[i].offset,
                             RM_PAGE) == 0);
    uint64_t payload = RM_RUNS_MAX * (RM_PAGE + sizeof(RmRun)) + 2 * sizeof(RmTcpHeader);
    uint64_t added = __atomic_load_n(&wire->passed, __ATOMIC_RELAXED) - before - payload;
    g_assert_cmpuint(added, <, 40 * (payload / 16384 + 3)); /* a record a run would be 256 times that */
}

/* ---- what is done to it ---- */

/* The trick is played in the middle of a long frame. */
static void play(WireTrick trick, RmReason reason, const char *word)
{
    Wire *wire_of_pair;
    g_autoptr(Pair) pair = new_pair(&wire_of_pair);
    g_autoptr(Wire) wire = wire_of_pair;
    g_assert_cmpint(post(pair, 0, MIB), ==, 0);
    g_atomic_int_set(&wire->trick, trick);
    int code = post(pair, MIB, 2 * MIB);
    if (code == 0) /* all of it was in the socket's buffers */
        code = pair->tx->ops->end_round(pair->tx, 0, 1);
    expect_lost(pair, 1, reason, word);
}

static void test_cut(void)
{
    /* In the middle of a frame, unless that was in the record which has the frame's first byte. */
    play(WIRE_CUT, RM_REASON_PEER_LOST, "the source's connection ");
}

static void test_altered(void)
{
    play(WIRE_ALTER, RM_REASON_TRANSPORT, "altered on its way");
}

static void test_repeated(void)
{
    play(WIRE_REPEAT, RM_REASON_TRANSPORT, "altered on its way");
}

typedef struct {
    Pair *pair;
    int code;
} Poster;

static void *post_until_failure(void *data)
{
    Poster *poster = data;
    while (poster->code == 0)
        poster->code = post(poster->pair, 0, MIB);
    return NULL;
}

/* Both ends are blocked, the source in a write and the destination in a read; each ends its own by abort().
 */
static void test_abort_while_blocked(void)
{
    g_autoptr(GError) error = NULL;
    Wire *wire_of_pair;
    g_autoptr(Pair) pair = new_pair(&wire_of_pair);
    g_autoptr(Wire) wire = wire_of_pair;
    g_atomic_int_set(&wire->trick, WIRE_STALL);
    Poster poster = {.pair = pair};
    GThread *thread = g_thread_new("poster", post_until_failure, &poster);
    for (uint64_t before = 0, now; (now = pair->tx->ops->wire_bytes(pair->tx)) != before || now == 0;
         before = now)
        g_usleep(50000);
    pair->tx->ops->abort(pair->tx); /* first: it would hear of the other's end */
    g_thread_join(thread);          /* the test's time-out is the bound */
    g_assert_cmpint(poster.code, ==, -ECANCELED);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
    pair->rx->ops->abort(pair->rx);
    pair->rx->ops->stop(pair->rx); /* joins its receiver */
}

/* ---- ends ---- */

/* Between two frames: a source that goes says so. One whose connection is cut there does not. */
static void test_announced_end(void)
{
    g_autoptr(Pair) pair = pair_up(1, MIB, (const uint64_t[]){MIB, 0});
    pair_end_round(pair, 1);
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 1, NULL, NULL));
    g_clear_pointer(&pair->tx, rm_tx_free);
    expect_lost(pair, 2, RM_REASON_PEER_LOST, "the source closed the connection");
}

static void test_unannounced_end(void)
{
    Wire *wire_of_pair;
    g_autoptr(Pair) pair = new_pair(&wire_of_pair);
    g_autoptr(Wire) wire = wire_of_pair;
    pair_end_round(pair, 1);
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 1, NULL, NULL));
    g_cancellable_cancel(pair->quit); /* the wire closes both */
    expect_lost(pair, 2, RM_REASON_PEER_LOST, "was cut");
    expect_lost(pair, 1, RM_REASON_PEER_LOST, "was cut"); /* a break, and not a source that has left */
}

/* A source that fails says nothing more: its end is no end of a round. */
static void test_failed_source(void)
{
    g_autoptr(Pair) pair = pair_up(1, MIB, (const uint64_t[]){MIB, 0});
    pair->tx->ops->abort(pair->tx);
    g_clear_pointer(&pair->tx, rm_tx_free);
    expect_lost(pair, 1, RM_REASON_PEER_LOST, "was cut");
}

/* ---- the pieces ---- */

/* As many channels as there may be, and every size of frame around the records', the copies' and the
 * landing's. */
static void test_many_channels(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_up(RM_CHANNELS_MAX, MIB, (const uint64_t[]){RM_CHANNELS_MAX * MIB, 0});
    uint8_t *map = pair_from(pair, 0)->map;
    for (uint64_t chunk = 0; chunk < RM_CHANNELS_MAX; chunk++) {
        uint64_t length = PAGES(4 * chunk + 1 + chunk % 3);
        RmRun run = {chunk * MIB, length};
        memset(map + chunk * MIB, (int)chunk + 1, length);
        for (uint64_t at = 0; at < length; at += 512)
            memcpy(map + chunk * MIB + at, &at, sizeof at);
        g_assert_cmpint(pair->tx->ops->post(pair->tx, pair_channel(pair, 0, run.offset), 0, &run, 1), ==, 0);
    }
    pair_end_round(pair, 1);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    blocks_assert_equal(pair, 0);
}

/* A destination inside TLS that is called in clear, and the other way round. */
static void test_only_one_end(void)
{
    for (unsigned i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Pair) pair = pair_new(1, MIB, (const uint64_t[]){MIB, 0});
        pair->tls = i == 0;
        pair_start(pair);
        json_object *address = pair_address(NULL, pair->port);
        RmTxParams params = pair_params(pair, address);
        params.tls = i == 0 ? NULL : pair_creds_of(RM_TLS_SOURCE);
        pair->tx = rm_transport_tcp.tx_new();
        g_assert_false(pair->tx->ops->connect(pair->tx, &params, NULL, &error));
        json_object_put(address);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, "data channel 0"));
    }
}

/* ---- keys ---- */

/* After so many records TLS changes its keys by itself: of full ones, after 256 GiB. */
#define RECORDS_OF_A_KEY (1u << 24)
#define RECORDS_AT_A_TIME 1024u

static void *accept_in_thread(void *data)
{
    return pair_accept(data, NULL, NULL);
}

static void *send_records(void *data)
{
    uint8_t bytes[RECORDS_AT_A_TIME];
    struct iovec iov[RECORDS_AT_A_TIME];
    for (uint32_t at = 0; at < RECORDS_OF_A_KEY + 2 * RECORDS_AT_A_TIME; at += RECORDS_AT_A_TIME) {
        for (unsigned i = 0; i < RECORDS_AT_A_TIME; i++) {
            bytes[i] = (uint8_t)(at / RECORDS_AT_A_TIME + i);
            iov[i] = (struct iovec){&bytes[i], 1};
        }
        if (rm_tcp_send(data, iov, RECORDS_AT_A_TIME, NULL) < 0)
            break;
    }
    return NULL;
}

/* With a byte in each record, for else it would take long. */
static void test_new_keys(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, (const uint64_t[]){MIB, 0});
    g_autoptr(GSocketClient) client = g_socket_client_new();
    GThread *thread = g_thread_new("accept", accept_in_thread, pair);
    g_autoptr(GSocketConnection) connection =
        g_socket_client_connect_to_host(client, "127.0.0.1", pair->port, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GIOStream) near =
        rm_tls_connect(pair_creds_of(RM_TLS_SOURCE), connection, "destination", 20000, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GIOStream) far = g_thread_join(thread);
    RmTcpLine from = {0}, to = {0};
    g_assert_cmpint(rm_tcp_line_open(&from, near, RM_TCP_LINE_SENDS, 20000, (RmChoice){0}), ==, 0);
    g_assert_cmpint(rm_tcp_line_open(&to, far, RM_TCP_LINE_RECEIVES, 20000, (RmChoice){0}), ==, 0);
    thread = g_thread_new("sender", send_records, &from);
    for (uint32_t at = 0; at < RECORDS_OF_A_KEY + 2 * RECORDS_AT_A_TIME; at += RECORDS_AT_A_TIME) {
        uint8_t bytes[RECORDS_AT_A_TIME];
        struct iovec iov = {bytes, sizeof bytes};
        g_assert_cmpint(rm_tcp_receive(&to, &iov, 1, NULL), ==, 0);
        for (unsigned i = 0; i < RECORDS_AT_A_TIME; i++)
            g_assert_cmpint(bytes[i], ==, (uint8_t)(at / RECORDS_AT_A_TIME + i));
    }
    g_thread_join(thread);
    rm_tcp_line_close(&from);
    rm_tcp_line_close(&to);
}

int main(int argc, char **argv)
{
    static const PairTest either[] = {{"seen", test_seen}};
    static const PairTest tests[] = {
        {"small-runs", test_small_runs},
        {"cut", test_cut},
        {"altered", test_altered},
        {"repeated", test_repeated},
        {"abort-while-blocked", test_abort_while_blocked},
        {"announced-end", test_announced_end},
        {"unannounced-end", test_unannounced_end},
        {"failed-source", test_failed_source},
        {"many-channels", test_many_channels},
        {"only-one-end", test_only_one_end},
    };
    g_test_init(&argc, &argv, NULL);
    pair_add_tests("tcp-wire", either, G_N_ELEMENTS(either));
    for (unsigned i = 0; i < G_N_ELEMENTS(tests); i++) {
        g_autofree char *path = g_strdup_printf("/tcp-wire-tls/%s", tests[i].name);
        g_test_add_data_func(path, &tests[i], pair_run_in_tls);
    }
    static const PairTest new_keys = {"new-keys", test_new_keys};
    if (g_test_slow()) /* minutes: with -m slow */
        g_test_add_data_func("/tcp-wire-tls/new-keys", &new_keys, pair_run_in_tls);
    return g_test_run();
}
