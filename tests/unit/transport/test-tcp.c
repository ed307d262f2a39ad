/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp transport between two honest ends: bytes, barriers, and how it ends. */
#include "pair.h"

#include "common/reason.h"

#include <errno.h>

/* ---- bytes ---- */

typedef struct {
    RmRun runs[RM_RUNS_MAX];
    unsigned n;
    uint64_t total;
} Batch;

static void flush(Pair *pair, uint32_t block, Batch *batch)
{
    if (batch->n == 0)
        return;
    unsigned channel = pair_channel(pair, block, batch->runs[0].offset);
    g_assert_cmpint(pair->tx->ops->post(pair->tx, channel, block, batch->runs, batch->n), ==, 0);
    batch->n = 0;
    batch->total = 0;
}

/* Changes random runs of a block and posts just these. Returns the bytes posted. */
static uint64_t change_and_post(Pair *pair, uint32_t index)
{
    RmBlock *block = pair_from(pair, index);
    Batch batch = {.n = 0};
    uint64_t chunk = 0, posted = 0;
    for (uint64_t at = PAGES(g_test_rand_int_range(0, 8)); at < block->size;) {
        if (at / pair->chunk_size != chunk)
            flush(pair, index, &batch);
        chunk = at / pair->chunk_size;
        uint64_t end = MIN((chunk + 1) * pair->chunk_size, block->size);
        uint64_t wish = PAGES(g_test_rand_int_range(1, 12)), length = MIN(wish, end - at);
        memset(block->map + at, g_test_rand_int_range(0, 256), length);
        memcpy(block->map + at, &at, sizeof at);
        if (batch.n == RM_RUNS_MAX || batch.total + length > RM_POST_BYTES_MAX)
            flush(pair, index, &batch);
        batch.runs[batch.n++] = (RmRun){at, length};
        batch.total += length;
        posted += length;
        at += length + PAGES(g_test_rand_int_range(0, 30));
    }
    flush(pair, index, &batch);
    return posted;
}

static void test_random_runs(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {9 * MIB + PAGES(3), 3 * MIB, PAGES(1), 0};
    g_autoptr(Pair) pair = pair_up(3, MIB, sizes);
    uint64_t posted = 0;
    for (uint32_t round = 1; round <= 5; round++) {
        for (uint32_t i = 0; i < pair->from->len; i++)
            posted += change_and_post(pair, i);
        pair_end_round(pair, round);
        pair->rx->ops->wait_round(pair->rx, round, NULL, &error);
        g_assert_no_error(error);
        for (unsigned i = 0; i < pair->from->len; i++)
            blocks_assert_equal(pair, i);
        g_assert_cmpuint(pair->rx->ops->payload_bytes(pair->rx), ==, posted);
    }
    g_assert_cmpuint(pair->tx->ops->wire_bytes(pair->tx), >, posted);
}

/* A guest that punches holes: these are sent as zeroes, and stay holes. So with a file that ends too early.
 */
static void test_copies(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {2 * MIB, 0};
    g_autoptr(Pair) pair = pair_new(1, MIB, sizes);
    pair->copy = TRUE;
    pair_start(pair);
    pair_connect(pair, &error);
    g_assert_no_error(error);
    RmBlock *from = pair_from(pair, 0);
    uint64_t before, after;
    for (uint64_t page = 0; page < 512; page += 3)
        memset(from->map + page * RM_PAGE, (int)page | 1, RM_PAGE);
    memset(pair_to(pair, 0)->map, 9, 2 * MIB);
    rm_block_allocated(from, &before, NULL);
    RmRun runs[] = {{0, MIB - 2 * RM_PAGE}, {MIB - RM_PAGE, RM_PAGE}, {MIB, MIB}};
    memset(pair_to(pair, 0)->map + MIB - 2 * RM_PAGE, 0, RM_PAGE); /* which is not sent */
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, runs, 2), ==, 0);
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, runs + 2, 1), ==, 0);
    pair_end_round(pair, 1);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    rm_block_allocated(from, &after, NULL);
    g_assert_cmpuint(after, ==, before);
    blocks_assert_equal(pair, 0);

    g_assert_cmpint(ftruncate(from->fd, MIB), ==, 0);
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, runs + 2, 1), ==, -EFAULT);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_nonnull(strstr(error->message, "truncated"));
}

typedef struct {
    Pair *pair;
    unsigned channel;
} Sender;

/* Posts the chunks of one channel, whole, and ends the round. */
static void *send_all(void *data)
{
    Sender *sender = data;
    Pair *pair = sender->pair;
    const RmBlock *block = pair_from(pair, 0);
    for (uint64_t at = 0; at < block->size; at += MIB) {
        RmRun run = {at, MIB};
        if (pair_channel(pair, 0, at) == sender->channel)
            g_assert_cmpint(pair->tx->ops->post(pair->tx, sender->channel, 0, &run, 1), ==, 0);
    }
    g_assert_cmpint(pair->tx->ops->end_round(pair->tx, sender->channel, 1), ==, 0);
    return NULL;
}

static void test_parallel(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {64 * MIB, 0};
    g_autoptr(Pair) pair = pair_up(2, 4 * MIB, sizes);
    uint64_t *words = (uint64_t *)pair_from(pair, 0)->map, state = 88172645463325252u;
    for (uint64_t i = 0; i < 64 * MIB / sizeof *words; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
    Sender senders[2] = {{pair, 0}, {pair, 1}};
    GThread *threads[2];
    for (unsigned i = 0; i < 2; i++)
        threads[i] = g_thread_new("sender", send_all, &senders[i]);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    for (unsigned i = 0; i < 2; i++)
        g_thread_join(threads[i]);
    blocks_assert_equal(pair, 0);
    g_assert_cmpuint(pair->rx->ops->payload_bytes(pair->rx), ==, 64 * MIB);
}

static void test_added_block(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(RmBlock) from = blocks_one("state", PAGES(5), FALSE), to = blocks_one("state", PAGES(5), FALSE);
    g_autoptr(Pair) pair = pair_up(2, MIB, sizes);
    pair->rx->ops->add_block(pair->rx, to);
    pair->tx->ops->add_block(pair->tx, from);
    memset(from->map, 0x5a, from->size);
    RmRun run = {0, from->size};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, pair_channel(pair, 1, 0), 1, &run, 1), ==, 0);
    pair_end_round(pair, 1);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    g_assert_true(memcmp(from->map, to->map, from->size) == 0);
    g_clear_pointer(&pair, pair_free); /* before the blocks it borrows */
}

/* ---- barriers ---- */

typedef struct {
    Pair *pair;
    uint32_t round;
    GCancellable *cancellable;
    gboolean ok;
    GError *error;
    int done; /* atomic */
} Waiter;

static void *wait_in_thread(void *data)
{
    Waiter *waiter = data;
    RmRx *rx = waiter->pair->rx;
    waiter->ok = rx->ops->wait_round(rx, waiter->round, waiter->cancellable, &waiter->error);
    g_atomic_int_set(&waiter->done, TRUE);
    return NULL;
}

static void test_barrier(void)
{
    const uint64_t sizes[] = {2 * MIB, 0};
    g_autoptr(Pair) pair = pair_up(2, MIB, sizes);
    for (uint32_t round = 1; round <= 3; round++) {
        Waiter waiter = {.pair = pair, .round = round};
        GThread *thread = g_thread_new("waiter", wait_in_thread, &waiter);
        g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 0, round), ==, 0);
        g_usleep(20000);
        g_assert_false(g_atomic_int_get(&waiter.done)); /* the other channel is still in the round */
        RmRun run = {MIB, PAGES(1)};
        pair_from(pair, 0)->map[MIB] = (uint8_t)round;
        g_assert_cmpint(pair->tx->ops->post(pair->tx, 1, 0, &run, 1), ==, 0);
        g_usleep(20000);
        g_assert_false(g_atomic_int_get(&waiter.done));
        g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 1, round), ==, 0);
        g_thread_join(thread);
        g_assert_no_error(waiter.error);
        g_assert_true(waiter.ok);
        g_assert_cmpuint(pair_to(pair, 0)->map[MIB], ==, round);
    }
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 2, NULL, NULL)); /* an earlier one is over, too */
}

/* Ends a wait for a round that never comes by `how`, and expects `reason`. */
static void end_wait(void (*how)(Waiter *waiter), RmReason reason)
{
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_up(2, MIB, sizes);
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    Waiter waiter = {.pair = pair, .round = 1, .cancellable = cancellable};
    GThread *thread = g_thread_new("waiter", wait_in_thread, &waiter);
    g_usleep(10000);
    how(&waiter);
    g_thread_join(thread);
    g_assert_false(waiter.ok);
    g_assert_error(waiter.error, RM_ERROR, (int)reason);
    g_clear_error(&waiter.error);
}

static void by_cancel(Waiter *waiter)
{
    g_cancellable_cancel(waiter->cancellable);
}

static void by_abort(Waiter *waiter)
{
    waiter->pair->rx->ops->abort(waiter->pair->rx);
}

static void by_stop(Waiter *waiter)
{
    waiter->pair->rx->ops->stop(waiter->pair->rx);
}

static void by_source_leaving(Waiter *waiter)
{
    g_clear_pointer(&waiter->pair->tx, rm_tx_free);
}

static void test_wait_ends(void)
{
    end_wait(by_cancel, RM_REASON_CANCELLED);
    end_wait(by_abort, RM_REASON_CANCELLED);
    end_wait(by_stop, RM_REASON_TRANSPORT);
    end_wait(by_source_leaving, RM_REASON_PEER_LOST);
}

static void test_channels_missing(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_new(2, MIB, sizes);
    pair->timeout_ms = 100;
    pair_start(pair);
    g_assert_false(pair->rx->ops->wait_round(pair->rx, 1, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    /* Too late now. */
    g_clear_error(&error);
    pair->timeout_ms = 20000;
    g_assert_false(pair_connect(pair, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TOKEN);
}

/* A source that goes once its last round is over has done nothing wrong. */
static void test_leaving_after_round(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_up(1, MIB, sizes);
    pair_end_round(pair, 1);
    g_clear_pointer(&pair->tx, rm_tx_free);
    pair->rx->ops->wait_round(pair->rx, 1, NULL, &error);
    g_assert_no_error(error);
    g_assert_false(pair->rx->ops->wait_round(pair->rx, 2, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
}

/* ---- stopping ---- */

typedef struct {
    Pair *pair;
    int quit; /* atomic */
    int code;
} Hammer;

static void *hammer(void *data)
{
    Hammer *state = data;
    RmBlock *block = pair_from(state->pair, 0);
    RmRun run = {0, MIB};
    for (int value = 1; state->code == 0 && !g_atomic_int_get(&state->quit); value++) {
        memset(block->map, value, MIB);
        state->code = state->pair->tx->ops->post(state->pair->tx, 0, 0, &run, 1);
    }
    return NULL;
}

/* Nothing is written once stop() has returned, though the source is in the middle of sending. */
static void test_stop(void)
{
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_up(1, MIB, sizes);
    Hammer state = {.pair = pair};
    GThread *thread = g_thread_new("hammer", hammer, &state);
    while (pair->rx->ops->payload_bytes(pair->rx) < 4 * MIB)
        g_usleep(1000);
    pair->rx->ops->stop(pair->rx);
    g_autofree uint8_t *before = g_memdup2(pair_to(pair, 0)->map, MIB);
    g_usleep(50000);
    g_assert_true(memcmp(before, pair_to(pair, 0)->map, MIB) == 0);
    g_thread_join(thread); /* its connection is gone */
    g_assert_cmpint(state.code, <, 0);
    g_autoptr(GError) error = NULL;
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    pair->rx->ops->stop(pair->rx); /* idempotent */
}

/* ---- memory ---- */

static void test_register_chunk(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {3 * MIB + PAGES(1), 0};
    g_autoptr(Pair) pair = pair_new(1, MIB, sizes);
    pair_start(pair);
    RmRx *rx = pair->rx;
    g_autoptr(GArray) regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    uint64_t allocated = 0;
    const RmExtent good[] = {{MIB, MIB + PAGES(2)}, {2 * MIB - PAGES(1), 2 * MIB}};
    rx->ops->register_chunk(rx, 0, 1, good, 2, regions, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(regions->len, ==, 0);
    g_assert_true(rm_block_allocated(pair_to(pair, 0), &allocated, NULL));
    g_assert_cmpuint(allocated, ==, PAGES(3));

    static const struct {
        uint32_t block;
        uint64_t chunk;
        RmExtent extent;
    } bad[] = {
        {1, 0, {0, PAGES(1)}},                    /* no such block */
        {0, 4, {4 * MIB, 4 * MIB}},               /* no such chunk */
        {0, UINT64_MAX, {0, 0}},                  /* would overflow */
        {0, 1, {0, PAGES(1)}},                    /* another chunk's */
        {0, 1, {MIB, 2 * MIB + PAGES(1)}},        /* past the chunk */
        {0, 3, {3 * MIB, 3 * MIB + PAGES(2)}},    /* past the block */
        {0, 1, {MIB + PAGES(2), MIB + PAGES(1)}}, /* backwards */
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_assert_false(
            rx->ops->register_chunk(rx, bad[i].block, bad[i].chunk, &bad[i].extent, 1, regions, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
        g_clear_error(&error);
    }
}

/* No memory at the destination (here: no file) is an answer, not a signal. */
static void test_destination_truncated(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_up(1, MIB, sizes);
    g_assert_cmpint(ftruncate(pair_to(pair, 0)->fd, (off_t)PAGES(8)), ==, 0);
    RmRun run = {PAGES(4), PAGES(8)};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, &run, 1), ==, 0);
    g_assert_false(pair->rx->ops->wait_round(pair->rx, 1, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
}

static void test_source_truncated(void)
{
    g_autoptr(GError) error = NULL;
    const uint64_t sizes[] = {MIB, 0};
    g_autoptr(Pair) pair = pair_up(1, MIB, sizes);
    g_assert_cmpint(ftruncate(pair_from(pair, 0)->fd, (off_t)PAGES(8)), ==, 0);
    RmRun run = {PAGES(4), PAGES(8)};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, &run, 1), ==, -EFAULT);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TRANSPORT);
    g_assert_nonnull(strstr(error->message, "truncated"));
    g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 0, 1), ==, -EFAULT);
}

/* A mistake of the caller is refused before it reaches the wire. */
static void test_misuse(void)
{
    const uint64_t sizes[] = {4 * MIB, 0};
    static const struct {
        unsigned channel;
        uint32_t block;
        RmRun run;
        unsigned n;
    } bad[] = {
        {0, 0, {0, PAGES(1)}, 0},
        {0, 0, {0, PAGES(1)}, RM_RUNS_MAX + 1},
        {0, 1, {0, PAGES(1)}, 1},
        {0, 0, {0, 100}, 1},
        {0, 0, {100, PAGES(1)}, 1},
        {0, 0, {0, 0}, 1},
        {0, 0, {4 * MIB, PAGES(1)}, 1},
        {0, 0, {0, UINT64_MAX - 4095}, 1},
        {0, 0, {MIB - PAGES(1), PAGES(2)}, 1},
        {1, 0, {0, PAGES(1)}, 1},
        {2, 0, {0, PAGES(1)}, 1},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Pair) pair = pair_up(2, MIB, sizes);
        RmRun runs[RM_RUNS_MAX + 1] = {bad[i].run};
        g_assert_cmpint(pair->tx->ops->post(pair->tx, bad[i].channel, bad[i].block, runs, bad[i].n), ==,
                        -EINVAL);
        g_assert_false(pair->tx->ops->error(pair->tx, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_INTERNAL);
        uint64_t sent = pair->tx->ops->wire_bytes(pair->tx);
        g_assert_cmpuint(sent, ==, 0);
    }
    g_autoptr(Pair) pair = pair_up(1, MIB, sizes);
    g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 0, 2), ==, -EINVAL);
}

static void test_find(void)
{
    char *why = NULL;
    g_assert_true(rm_transport_find("tcp") == &rm_transport_tcp);
    g_assert_null(rm_transport_find("fake"));
    g_assert_null(rm_transport_find(NULL));
    g_assert_true(rm_transport_tcp.available(&why));
    g_assert_null(why);
    rm_tx_free(rm_transport_tcp.tx_new()); /* never connected */
    rm_rx_free(rm_transport_tcp.rx_new()); /* never started */
    rm_tx_free(NULL);
    rm_rx_free(NULL);
}

int main(int argc, char **argv)
{
    static const PairTest tests[] = {
        {"random-runs", test_random_runs},
        {"copies", test_copies},
        {"parallel", test_parallel},
        {"added-block", test_added_block},
        {"barrier", test_barrier},
        {"wait-ends", test_wait_ends},
        {"channels-missing", test_channels_missing},
        {"leaving-after-round", test_leaving_after_round},
        {"stop", test_stop},
        {"destination-truncated", test_destination_truncated},
        {"source-truncated", test_source_truncated},
    };
    g_test_init(&argc, &argv, NULL);
    pair_add_tests("tcp", tests, G_N_ELEMENTS(tests));
    g_test_add_func("/tcp/register-chunk", test_register_chunk);
    g_test_add_func("/tcp/misuse", test_misuse);
    g_test_add_func("/tcp/find", test_find);
    return g_test_run();
}
