/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp destination against sources that lie, stammer or die: refused, told why, and not a byte written. */
#include "pair.h"

#include "common/reason.h"

#include <netinet/in.h>

#define PAGE RM_PAGE
#define N_BLOCKS 2 /* 4 MiB and 1 MiB + 1 page, in chunks of 1 MiB, on 2 channels */

static Pair *new_pair(void)
{
    const uint64_t sizes[] = {4 * MIB, MIB + PAGE, 0};
    Pair *pair = pair_new(2, MIB, sizes);
    pair_start(pair);
    return pair;
}

static int dial(Pair *pair)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(pair->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&address, sizeof address), ==, 0);
    return fd;
}

static void put(int fd, const void *bytes, size_t n)
{
    g_assert_cmpint(send(fd, bytes, n, MSG_NOSIGNAL), ==, (ssize_t)n);
}

/* TRUE if the destination answers with an ACK, FALSE if it closes. */
static gboolean acknowledged(int fd)
{
    uint8_t answer = 0;
    ssize_t n = recv(fd, &answer, 1, 0);
    g_assert_cmpint(n, <=, 1);
    return n == 1 && answer == RM_TCP_ACK;
}

static int join_channel(Pair *pair, uint32_t channel)
{
    RmTcpPreamble preamble = {.channel = channel};
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    memcpy(preamble.token, pair->token, sizeof preamble.token);
    rm_tcp_preamble_format(&preamble, bytes);
    int fd = dial(pair);
    put(fd, bytes, sizeof bytes);
    g_assert_true(acknowledged(fd));
    return fd;
}

static void put_frame(int fd, RmTcpHeader header, const RmRun *runs, unsigned n)
{
    RmRun table[RM_RUNS_MAX + 1];
    for (unsigned i = 0; i < n; i++)
        table[i] = runs[i];
    rm_tcp_header_swap(&header);
    rm_tcp_runs_swap(table, n);
    put(fd, &header, sizeof header);
    if (n > 0)
        put(fd, table, n * sizeof table[0]);
}

static void assert_untouched(Pair *pair)
{
    for (unsigned i = 0; i < N_BLOCKS; i++) {
        uint64_t allocated = 1;
        g_assert_true(rm_block_allocated(pair_to(pair, i), &allocated, NULL));
        g_assert_cmpuint(allocated, ==, 0);
    }
}

static void expect(Pair *pair, uint32_t round, RmReason reason, const char *word)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(pair->rx->ops->wait_round(pair->rx, round, NULL, &error));
    g_assert_error(error, RM_ERROR, (int)reason);
    if (strstr(error->message, word) == NULL)
        g_error("\"%s\" does not say \"%s\"", error->message, word);
}

#define WRITE(block, n, total)                                                                               \
    {                                                                                                        \
        RM_TCP_OP_WRITE, block, n, total, 0, 0                                                               \
    }

static const struct {
    const char *word; /* of the error */
    RmTcpHeader header;
    unsigned n; /* runs that are sent */
    RmRun runs[3];
} bad_frames[] = {
    {"unknown operation", {0, 0, 1, PAGE, 0, 0}, 1, {{0, PAGE}}},
    {"unknown operation", {0x7b7d7b7d, 0, 1, PAGE, 0, 0}, 1, {{0, PAGE}}},
    {"reserved", {RM_TCP_OP_WRITE, 0, 1, PAGE, 0, 1}, 1, {{0, PAGE}}},
    {"round number", {RM_TCP_OP_WRITE, 0, 1, PAGE, 1, 0}, 1, {{0, PAGE}}},
    {"no such block", WRITE(2, 1, PAGE), 1, {{0, PAGE}}},
    {"no such block", WRITE(UINT32_MAX, 1, PAGE), 1, {{0, PAGE}}},
    {"number of runs", WRITE(0, 0, PAGE), 0, {{0}}},
    {"number of runs", WRITE(0, RM_RUNS_MAX + 1, PAGE), 1, {{0, PAGE}}},
    {"number of runs", WRITE(0, UINT32_MAX, PAGE), 1, {{0, PAGE}}},
    {"total length out", WRITE(0, 1, 0), 1, {{0, PAGE}}},
    {"total length out", WRITE(0, 1, (uint32_t)RM_POST_BYTES_MAX + PAGE), 1, {{0, PAGE}}},
    {"not page-aligned", WRITE(0, 1, PAGE), 1, {{1, PAGE}}},
    {"not page-aligned", WRITE(0, 1, PAGE), 1, {{0, PAGE - 1}}},
    {"empty", WRITE(0, 1, PAGE), 1, {{0, 0}}},
    {"empty", WRITE(0, 3, 2 * PAGE), 3, {{0, PAGE}, {PAGE, 0}, {2 * PAGE, PAGE}}},
    {"past the end", WRITE(0, 1, PAGE), 1, {{4 * MIB, PAGE}}},
    {"past the end", WRITE(1, 1, 2 * PAGE), 1, {{MIB, 2 * PAGE}}},
    {"past the end", WRITE(0, 1, PAGE), 1, {{UINT64_MAX - PAGE + 1, PAGE}}},
    {"past the end", WRITE(0, 1, PAGE), 1, {{PAGE, UINT64_MAX - PAGE + 1}}},
    {"past the end", WRITE(0, 2, PAGE), 2, {{0, 2 * PAGE}, {PAGE, UINT64_MAX - PAGE + 1}}},
    {"more than one chunk", WRITE(0, 1, 2 * PAGE), 1, {{MIB - PAGE, 2 * PAGE}}},
    {"more than one chunk", WRITE(0, 2, 2 * PAGE), 2, {{0, PAGE}, {2 * MIB, PAGE}}},
    {"not the sum", WRITE(0, 1, PAGE), 1, {{0, 2 * PAGE}}},
    {"not the sum", WRITE(0, 2, 3 * PAGE), 2, {{0, PAGE}, {PAGE, PAGE}}},
    {"another channel", WRITE(0, 1, PAGE), 1, {{MIB, PAGE}}},
    {"another channel", WRITE(1, 1, PAGE), 1, {{0, PAGE}}},
    {"another round", {RM_TCP_OP_ROUND_END, 0, 0, 0, 0, 0}, 0, {{0}}},
    {"another round", {RM_TCP_OP_ROUND_END, 0, 0, 0, 2, 0}, 0, {{0}}},
    {"another round", {RM_TCP_OP_ROUND_END, 0, 0, 0, UINT32_MAX, 0}, 0, {{0}}},
    {"fields of a write", {RM_TCP_OP_ROUND_END, 0, 0, PAGE, 1, 0}, 0, {{0}}},
};

/* Each on channel 0, with bytes behind it that must not be written anywhere. */
static void test_bad_frames(void)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(bad_frames); i++) {
        g_test_message("frame %u: %s", i, bad_frames[i].word);
        g_autoptr(Pair) pair = new_pair();
        int bad = join_channel(pair, 0), other = join_channel(pair, 1);
        uint8_t junk[2 * PAGE];
        memset(junk, 0xee, sizeof junk);
        put_frame(bad, bad_frames[i].header, bad_frames[i].runs, bad_frames[i].n);
        (void)!send(bad, junk, sizeof junk, MSG_NOSIGNAL); /* it may have been cut off already */
        expect(pair, 1, RM_REASON_PROTOCOL, bad_frames[i].word);
        assert_untouched(pair);
        /* The other channel is over, too. */
        uint8_t byte;
        g_assert_cmpint(recv(other, &byte, 1, 0), <=, 0);
        close(bad);
        close(other);
    }
}

static void test_round_skipped_later(void)
{
    g_autoptr(Pair) pair = new_pair();
    int fds[] = {join_channel(pair, 0), join_channel(pair, 1)};
    for (unsigned i = 0; i < 2; i++)
        put_frame(fds[i], (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = 1}, NULL, 0);
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 1, NULL, NULL));
    put_frame(fds[0], (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = 1}, NULL, 0); /* once more */
    expect(pair, 2, RM_REASON_PROTOCOL, "another round");
    /* After a lie, what had landed is worth nothing either. */
    expect(pair, 1, RM_REASON_PROTOCOL, "another round");
    close(fds[0]);
    close(fds[1]);
}

/* Strangers are turned away one by one, and the session doesn't notice. */
static void test_strangers(void)
{
    g_autoptr(Pair) pair = new_pair();
    uint8_t good[RM_TCP_PREAMBLE_BYTES], bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble preamble = {.channel = 0};
    memcpy(preamble.token, pair->token, sizeof preamble.token);
    rm_tcp_preamble_format(&preamble, good);
    static const unsigned spoilt[] = {0, 7, 8, 39, 47}; /* magic, token, reserved */
    for (unsigned i = 0; i < G_N_ELEMENTS(spoilt); i++) {
        memcpy(bytes, good, sizeof bytes);
        bytes[spoilt[i]] ^= 0x80;
        int fd = dial(pair);
        put(fd, bytes, sizeof bytes);
        g_assert_false(acknowledged(fd));
        close(fd);
    }
    int brief = dial(pair);
    put(brief, good, 20);
    shutdown(brief, SHUT_WR);
    g_assert_false(acknowledged(brief));
    close(brief);

    memcpy(bytes, good, sizeof bytes);
    bytes[40] = 2; /* a channel too many */
    int third = dial(pair);
    put(third, bytes, sizeof bytes);
    g_assert_false(acknowledged(third));
    close(third);

    int first = join_channel(pair, 0), again = dial(pair);
    put(again, good, sizeof good); /* channel 0 once more */
    g_assert_false(acknowledged(again));
    close(again);

    int second = join_channel(pair, 1);
    g_assert_cmpint(g_atomic_int_get(&pair->refused), ==, 8);
    put_frame(first, (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = 1}, NULL, 0);
    put_frame(second, (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = 1}, NULL, 0);
    g_autoptr(GError) error = NULL;
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    close(first);
    close(second);
}

static void test_slow_preamble(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, (const uint64_t[]){MIB, 0});
    int fd = dial(pair);
    put(fd, RM_TCP_MAGIC, 8);
    g_autoptr(GSocketConnection) connection = g_socket_listener_accept(pair->listener, NULL, NULL, NULL);
    RmTcpPreamble preamble;
    g_assert_false(rm_tcp_preamble_receive(G_IO_STREAM(connection), '\0', 50, NULL, &preamble, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    close(fd);
}

/* The source dies after `n` bytes of a frame of 3 pages in 2 runs. */
static void die_after(size_t n)
{
    g_autoptr(Pair) pair = new_pair();
    int fd = join_channel(pair, 0), other = join_channel(pair, 1);
    struct {
        RmTcpHeader header;
        RmRun runs[2];
        uint8_t payload[3 * PAGE];
    } frame = {WRITE(0, 2, 3 * PAGE), {{0, PAGE}, {8 * PAGE, 2 * PAGE}}, {0}};
    rm_tcp_header_swap(&frame.header);
    rm_tcp_runs_swap(frame.runs, 2);
    g_assert_cmpuint(n, <=, sizeof frame);
    put(fd, &frame, n);
    close(fd);
    expect(pair, 1, RM_REASON_PEER_LOST,
           n == 0 || n == sizeof frame ? "closed the connection" : "middle of a frame");
    close(other);
}

static void test_dying(void)
{
    const size_t whole = sizeof(RmTcpHeader) + 2 * sizeof(RmRun) + 3 * PAGE;
    const size_t points[] = {0, 1, 24, 30, 56, 57, 56 + PAGE, 56 + PAGE + 100, whole - 1, whole};
    for (unsigned i = 0; i < G_N_ELEMENTS(points); i++)
        die_after(points[i]);
}

/* A frame that comes in pieces of every kind of size is one frame. */
static void test_dribble(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = new_pair();
    int fd = join_channel(pair, 0), other = join_channel(pair, 1);
    struct {
        RmTcpHeader header;
        RmRun runs[2];
        uint8_t payload[3 * PAGE];
        RmTcpHeader end;
    } frame = {
        WRITE(0, 2, 3 * PAGE), {{0, PAGE}, {8 * PAGE, 2 * PAGE}}, {0}, {RM_TCP_OP_ROUND_END, 0, 0, 0, 1, 0}};
    G_STATIC_ASSERT(sizeof frame == 2 * sizeof(RmTcpHeader) + 2 * sizeof(RmRun) + 3 * PAGE);
    blocks_random(frame.payload, sizeof frame.payload);
    rm_tcp_header_swap(&frame.header);
    rm_tcp_runs_swap(frame.runs, 2);
    rm_tcp_header_swap(&frame.end);
    for (size_t at = 0, n = 1; at < sizeof frame; at += n) {
        n = MIN(at < 64 ? 1 : 777, sizeof frame - at);
        put(fd, (uint8_t *)&frame + at, n);
        g_usleep(100);
    }
    put_frame(other, (RmTcpHeader){.op = RM_TCP_OP_ROUND_END, .round = 1}, NULL, 0);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    g_assert_true(memcmp(pair_to(pair, 0)->map, frame.payload, PAGE) == 0);
    g_assert_true(memcmp(pair_to(pair, 0)->map + 8 * PAGE, frame.payload + PAGE, 2 * PAGE) == 0);
    uint64_t allocated = 0;
    g_assert_true(rm_block_allocated(pair_to(pair, 0), &allocated, NULL));
    g_assert_cmpuint(allocated, ==, 3 * PAGE);
    close(fd);
    close(other);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/tcp-peer/bad-frames", test_bad_frames);
    g_test_add_func("/tcp-peer/round-skipped-later", test_round_skipped_later);
    g_test_add_func("/tcp-peer/strangers", test_strangers);
    g_test_add_func("/tcp-peer/slow-preamble", test_slow_preamble);
    g_test_add_func("/tcp-peer/dying", test_dying);
    g_test_add_func("/tcp-peer/dribble", test_dribble);
    return g_test_run();
}
