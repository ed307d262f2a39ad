/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The rdma transport between two honest ends. Built twice: over the fake provider, and over the real
 * libraries (skipped where there is no RDMA device).
 */
#ifdef FAKE_VERBS
#include "fake-rig.h"
#else
#include "rig.h"
#endif

/* All that was registered for nothing is given back, however slow this machine is. */
#define PATIENT "trim-ms=60000"

/* ---- bytes ---- */

static void run_rounds(const RigParams *params, unsigned rounds)
{
    g_autoptr(Rig) rig = rig_up(params);
    uint64_t posted = 0;
    for (uint32_t round = 1; round <= rounds; round++) {
        for (unsigned i = 0; i < rig->from->len; i++)
            posted += rig_change(rig, i);
        rig_end_round(rig, round);
        for (unsigned i = 0; i < rig->from->len; i++)
            blocks_assert_equal(rig, i);
        g_assert_cmpuint(rig->rx->ops->payload_bytes(rig->rx), ==, posted);
    }
    g_assert_cmpuint(rig->tx->ops->wire_bytes(rig->tx), >, posted);
    g_assert_cmpuint(rig->rx->ops->registered_bytes(rig->rx), >, 0);
    rig->rx->ops->stop(rig->rx);
    g_assert_cmpuint(rig->rx->ops->registered_bytes(rig->rx), ==, 0);
    for (unsigned i = 0; i < rig->from->len; i++)
        blocks_assert_equal(rig, i);
}

static void test_random_runs(void)
{
    for (unsigned channels = 1; channels <= 4; channels++)
        run_rounds(&(RigParams){.channels = channels,
                                .chunk_size = MIB,
                                .sizes = {9 * MIB + PAGES(3), 3 * MIB, PAGES(1)}},
                   4);
}

static void test_large_chunks(void)
{
    run_rounds(&(RigParams){.channels = 2, .chunk_size = 64 * MIB, .sizes = {20 * MIB}}, 3);
}

static void test_copies(void)
{
    run_rounds(&(RigParams){.channels = 2, .chunk_size = 4 * MIB, .copy = TRUE, .sizes = {13 * MIB, 2 * MIB}},
               3);
}

/* A sparse source: what has holes is copied, and does not grow by being sent. */
static void test_sparse_source(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = 8 * MIB, .sparse = TRUE, .sizes = {32 * MIB}});
    RmBlock *from = rig_from(rig, 0);
    memset(from->map + 9 * MIB, 7, PAGES(5));
    uint64_t before = rig_allocated(from);
    rig_write(rig, 0, &(RmRun){9 * MIB, PAGES(5)}, 1);
    rig_end_round(rig, 1);
    g_assert_cmpuint(rig_allocated(from), ==, before);
    rig->rx->ops->stop(rig->rx);
    g_assert_cmpuint(rig_allocated(rig_to(rig, 0)), ==, before);
    blocks_assert_equal(rig, 0);
}

/* Balloon: the page behind an offset is punched out and filled again, so that it is another one. */
static void test_punched_source(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .copy = TRUE, .sizes = {2 * MIB}});
    RmBlock *from = rig_from(rig, 0);
    g_autoptr(GError) error = NULL;
    memset(from->map, 1, from->size);
    rig_write(rig, 0, &(RmRun){0, MIB}, 1);
    rig_write(rig, 0, &(RmRun){MIB, MIB}, 1);
    rig_end_round(rig, 1);
    rm_block_zero(from, PAGES(3), PAGES(9), TRUE, &error);
    g_assert_no_error(error);
    memset(from->map + PAGES(3), 2, PAGES(6));
    uint64_t before = rig_allocated(from);
    rig_write(rig, 0, &(RmRun){PAGES(3), PAGES(9)}, 1);
    rig_end_round(rig, 2);
    g_assert_cmpuint(rig_allocated(from), ==, before); /* three holes are sent as zeroes, and stay holes */
    blocks_assert_equal(rig, 0);
}

/* The device state: a private block that comes when the session runs. */
static void test_added_block(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 3, .chunk_size = MIB, .sizes = {2 * MIB}});
    uint64_t size = 2 * MIB + PAGES(7);
    GPtrArray *sides[] = {rig->from, rig->to};
    for (unsigned i = 0; i < 2; i++) {
        RmBlock *block = rm_block_new("state", size);
        block->map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        g_ptr_array_add(sides[i], block);
    }
    rig->tx->ops->add_block(rig->tx, rig_from(rig, 1));
    rig->rx->ops->add_block(rig->rx, rig_to(rig, 1));
    memset(rig_from(rig, 1)->map, 0x5a, size);
    for (uint64_t at = 0; at < size; at += MIB)
        rig_write(rig, 1, &(RmRun){at, MIN(MIB, size - at)}, 1);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 1);
}

/* ---- registration ---- */

static GArray *ask(Rig *rig, uint64_t offset, uint64_t length)
{
    g_autoptr(GError) error = NULL;
    GArray *answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    rig_ask(rig, 0, &(RmRun){offset, length}, 1, answer, &error);
    g_assert_no_error(error);
    return answer;
}

static void assert_region(const GArray *answer, unsigned index, uint64_t offset, uint64_t length)
{
    g_assert_cmpuint(index, <, answer->len);
    g_assert_cmpuint(g_array_index(answer, RmRegion, index).offset, ==, offset);
    g_assert_cmpuint(g_array_index(answer, RmRegion, index).length, ==, length);
}

static void test_regions(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 2, .chunk_size = 8 * MIB, .sizes = {20 * MIB + PAGES(5)}});
    /* The granules touched, neighbours together, and no others however many these are. */
    g_autoptr(GArray) dense = ask(rig, PAGES(1), 7 * MIB - PAGES(1)), again = ask(rig, 2 * MIB, PAGES(1));
    assert_region(dense, 0, 0, 7 * MIB);
    assert_region(again, 0, 0, 7 * MIB);
    g_assert_cmpuint(dense->len, ==, 1);
    g_assert_cmpuint(g_array_index(dense, RmRegion, 0).key, ==, g_array_index(again, RmRegion, 0).key);
    g_autoptr(GArray) sparse = ask(rig, 10 * MIB - PAGES(1), PAGES(2)), more = ask(rig, 9 * MIB, 3 * MIB);
    assert_region(sparse, 0, 9 * MIB, 2 * MIB);
    assert_region(more, 0, 9 * MIB, 2 * MIB);
    assert_region(more, 1, 11 * MIB, MIB);
    g_assert_cmpuint(g_array_index(sparse, RmRegion, 0).key, ==, g_array_index(more, RmRegion, 0).key);
    /* The last chunk is short. */
    g_autoptr(GArray) last = ask(rig, 20 * MIB, PAGES(5));
    assert_region(last, 0, 20 * MIB, PAGES(5));
}

static void test_bad_requests(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    const struct {
        uint32_t block;
        uint64_t chunk;
        RmExtent extent;
    } bad[] = {{1, 0, {0, RM_PAGE}},
               {0, 2, {2 * MIB, 2 * MIB + RM_PAGE}},
               {0, 0, {0, MIB + RM_PAGE}},
               {0, 1, {0, RM_PAGE}}};
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(rig->rx->ops->register_chunk(rig->rx, bad[i].block, bad[i].chunk, &bad[i].extent, 1,
                                                    answer, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
    }
    g_assert_cmpuint(answer->len, ==, 0);
}

typedef struct {
    Rig *rig;
    unsigned first, step;
} Registrar;

static void *register_some(void *data)
{
    const Registrar *registrar = data;
    for (unsigned chunk = registrar->first; chunk < 16; chunk += registrar->step) {
        g_autoptr(GArray) answer = ask(registrar->rig, chunk * MIB, MIB);
        assert_region(answer, 0, chunk * MIB, MIB);
    }
    return NULL;
}

static void test_registering_at_once(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {16 * MIB}});
    GThread *threads[4];
    Registrar registrars[4];
    for (unsigned i = 0; i < 4; i++) {
        registrars[i] = (Registrar){rig, i, i < 2 ? 2 : 1}; /* some chunks by two at once */
        threads[i] = g_thread_new("registrar", register_some, &registrars[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        g_thread_join(threads[i]);
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
}

/* Registering populates; what was never written is given back at the end, and what was written stays. */
static void test_trim(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 4 * MIB, .sizes = {16 * MIB}});
    RmBlock *from = rig_from(rig, 0), *to = rig_to(rig, 0);
    memset(from->map + 5 * MIB, 3, PAGES(2));
    memset(from->map + 5 * MIB + PAGES(100), 4, PAGES(3)); /* in the same granule, and not announced */
    rig_write(rig, 0, &(RmRun){5 * MIB, PAGES(2)}, 1);
    g_assert_cmpint(rig_post(rig, 0, &(RmRun){5 * MIB + PAGES(100), PAGES(3)}, 1), ==, 0);
    memset(from->map, 5, 3 * MIB);
    rig_write(rig, 0, &(RmRun){0, 3 * MIB}, 1);
    rig_end_round(rig, 1);
    g_assert_cmpuint(rig_allocated(to), ==, 4 * MIB);
    rig->rx->ops->stop(rig->rx);
    g_assert_cmpuint(rig_allocated(to), ==, 3 * MIB + PAGES(5));
    blocks_assert_equal(rig, 0);
}

/* ---- who may connect ---- */

static void test_wrong_token(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    for (unsigned byte = 0; byte < RM_TOKEN_BYTES; byte += RM_TOKEN_BYTES - 1) {
        g_autoptr(GError) error = NULL;
        g_autoptr(RmTx) stranger = NULL;
        uint8_t token[RM_TOKEN_BYTES];
        memcpy(token, rig->token, sizeof token);
        token[byte] ^= 1;
        g_assert_false(rig_connect_as(rig, token, 1, NULL, &stranger, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_TOKEN);
        rig_assert_warned("*without a valid token was turned away\n");
    }
    rig_change(rig, 0); /* the session lives */
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
}

static void test_channel_twice(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {2 * MIB}});
    for (unsigned channels = 1; channels <= 2; channels++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(RmTx) second = NULL;
        g_assert_false(rig_connect_as(rig, rig->token, channels, NULL, &second, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_TOKEN);
        rig_assert_warned("*came twice\n");
    }
    rig_change(rig, 0);
    rig_end_round(rig, 1);
}

static void test_nobody_listens(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig =
        rig_new(&(RigParams){.channels = 1, .chunk_size = MIB, .timeout_ms = 5000, .sizes = {MIB}});
    rig_start(rig, &error);
    g_assert_no_error(error);
    json_object *address = json_object_new_object();
    json_object_object_add(address, "port", json_object_new_int(9));
    RmTxParams params = {.channels = 1,
                         .blocks = rig->from,
                         .chunk_size = MIB,
                         .address = address,
                         .host = rig_address(),
                         .gid_index = -1,
                         .timeout_ms = 5000};
    rig->tx = rm_transport_rdma.tx_new();
    g_assert_false(rig->tx->ops->connect(rig->tx, &params, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_UNREACHABLE);
    json_object_put(address);
}

/* Two sessions share the listener, and each gets its own. */
static void test_two_sessions(void)
{
    const RigParams params = {.channels = 2, .chunk_size = MIB, .sizes = {4 * MIB}};
    g_autoptr(Rig) first = rig_up(&params);
    g_autoptr(Rig) second = rig_up(&params);
    rig_change(first, 0);
    rig_change(second, 0);
    rig_end_round(first, 1);
    rig_end_round(second, 1);
    blocks_assert_equal(first, 0);
    first->rx->ops->stop(first->rx);
    rig_change(second, 0);
    rig_end_round(second, 2);
    blocks_assert_equal(second, 0);
}

/* ---- ends ---- */

/* Whatever comes first here, the mark or the news that the source has gone: the round has ended. */
static void test_source_leaves_after_round(void)
{
    for (unsigned i = 0; i < 30; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {MIB}});
        rig_change(rig, 0);
        for (unsigned channel = 0; channel < 2; channel++)
            g_assert_cmpint(rig->tx->ops->end_round(rig->tx, channel, 1), ==, 0);
        g_clear_pointer(&rig->tx, rm_tx_free);
        g_assert_true(i % 2 == 0 || !rig->rx->ops->wait_round(rig->rx, 2, NULL, NULL));
        rig->rx->ops->wait_round(rig->rx, 1, NULL, &error);
        g_assert_no_error(error);
        g_assert_false(rig->rx->ops->wait_round(rig->rx, 2, NULL, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    }
}

static void test_destination_leaves(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {4 * MIB}});
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    g_clear_pointer(&rig->rx, rm_rx_free);
    int code = 0;
    for (unsigned i = 0; i < 100 && code == 0; i++) {
        code = rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1);
        if (code == 0)
            code = rig->tx->ops->end_round(rig->tx, 0, 2 + i);
    }
    g_assert_cmpint(code, <, 0);
    g_assert_cmpint(rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1), ==, code);
}

static void test_abort(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {4 * MIB}});
    rig_change(rig, 0);
    rig->tx->ops->abort(rig->tx);
    g_assert_cmpint(rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1), ==, -ECANCELED);
    g_assert_cmpint(rig->tx->ops->end_round(rig->tx, 0, 1), ==, -ECANCELED);
    rig_assert_failed(rig, RM_REASON_CANCELLED, "*");
    rig->rx->ops->abort(rig->rx);
    g_assert_false(rig->rx->ops->wait_round(rig->rx, 1, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
}

static void *wait_first(void *data)
{
    GError *error = NULL;
    Rig *rig = data;
    g_assert_false(rig->rx->ops->wait_round(rig->rx, 1, NULL, &error));
    return error;
}

static void test_abort_while_waiting(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    GThread *waiter = g_thread_new("waiter", wait_first, rig);
    g_usleep(20000);
    rig->rx->ops->abort(rig->rx);
    g_autoptr(GError) error = g_thread_join(waiter);
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
}

/* A key of the first session is worth nothing in the second, on the same memory. */
static void test_stop_and_again(void)
{
    g_autoptr(GError) error = NULL;
    const RigParams params = {.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}};
    g_autoptr(Rig) rig = rig_up(&params);
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    rig->rx->ops->stop(rig->rx);
    rig->rx->ops->stop(rig->rx);
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    g_assert_false(rig_ask(rig, 0, &(RmRun){0, RM_PAGE}, 1, answer, &error));
    g_clear_error(&error);
    g_clear_pointer(&rig->rx, rm_rx_free);
    g_clear_pointer(&rig->tx, rm_tx_free);
    rig_start(rig, &error);
    g_assert_no_error(error);
    rig_connect(rig, &error);
    g_assert_no_error(error);
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
}

/* The far side's card refuses a key that it did not give. */
static void test_wrong_key(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    g_autoptr(GArray) answer = ask(rig, 0, MIB);
    RmRegion *region = &g_array_index(answer, RmRegion, 0);
    region->key ^= 0x5500;
    g_assert_cmpint(rig->tx->ops->registered(rig->tx, 0, region, 1), ==, 0);
    memset(rig_from(rig, 0)->map, 9, MIB);
    int code = rig_post(rig, 0, &(RmRun){0, MIB}, 1);
    if (code == 0)
        code = rig->tx->ops->end_round(rig->tx, 0, 1);
    g_assert_cmpint(code, <, 0);
    rig_assert_failed(rig, RM_REASON_TRANSPORT, "data channel 0: *key*");
    g_assert_false(rig->rx->ops->wait_round(rig->rx, 1, NULL, &error));
    g_assert_cmpint(rig_to(rig, 0)->map[0], ==, 0);
}

static void test_unregistered(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    g_assert_cmpint(rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1), ==, -EINVAL);
    rig_assert_failed(rig, RM_REASON_INTERNAL, "*not registered it");
}

/* ---- running ---- */

#ifdef FAKE_VERBS
typedef FakeTest Test;
#else
typedef struct {
    const char *path;
    void (*run)(void);
} Test;
#endif

static const Test tests[] = {
    {"/verbs/random-runs", test_random_runs},
    {"/verbs/large-chunks", test_large_chunks},
    {"/verbs/copies", test_copies},
    {"/verbs/sparse-source", test_sparse_source},
    {"/verbs/punched-source", test_punched_source},
    {"/verbs/added-block", test_added_block},
    {"/verbs/regions", test_regions},
    {"/verbs/bad-requests", test_bad_requests},
    {"/verbs/registering-at-once", test_registering_at_once},
    {"/verbs/trim", test_trim},
    {"/verbs/wrong-token", test_wrong_token},
    {"/verbs/channel-twice", test_channel_twice},
    {"/verbs/nobody-listens", test_nobody_listens},
    {"/verbs/two-sessions", test_two_sessions},
    {"/verbs/source-leaves-after-round", test_source_leaves_after_round},
    {"/verbs/destination-leaves", test_destination_leaves},
    {"/verbs/abort", test_abort},
    {"/verbs/abort-while-waiting", test_abort_while_waiting},
    {"/verbs/stop-and-again", test_stop_and_again},
    {"/verbs/wrong-key", test_wrong_key},
    {"/verbs/unregistered", test_unregistered},
};

#ifdef FAKE_VERBS
int main(int argc, char **argv)
{
    g_setenv("RDMAMIG_FAULT", PATIENT, TRUE);
    return fake_run(argc, argv, tests, G_N_ELEMENTS(tests));
}
#else
static void run_one(gconstpointer data)
{
    const Test *test = data;
    g_autofree char *why = NULL;
    if (!rm_transport_rdma.available(&why)) {
        g_test_skip(why);
        return;
    }
    test->run();
    rig_assert_warned(NULL);
}

int main(int argc, char **argv)
{
    g_setenv("RDMAMIG_FAULT", PATIENT, TRUE);
    g_test_init(&argc, &argv, NULL);
    rig_log_init();
    for (unsigned i = 0; i < G_N_ELEMENTS(tests); i++)
        g_test_add_data_func(tests[i].path, &tests[i], run_one);
    return g_test_run();
}
#endif
