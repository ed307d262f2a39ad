/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rdma transport when something breaks, or cannot be reached: over the fake provider only. */
#include "fake-rig.h"

/* ---- failures ---- */

static void test_first_error_kept(void)
{
    const struct {
        enum ibv_wc_status status;
        RmReason reason;
        const char *text;
    } cases[] = {
        {IBV_WC_RETRY_EXC_ERR, RM_REASON_PEER_TIMEOUT, "*retry counter exceeded*cable*"},
        {IBV_WC_RNR_RETRY_EXC_ERR, RM_REASON_TRANSPORT, "*RNR retry*"},
        {IBV_WC_REM_ACCESS_ERR, RM_REASON_TRANSPORT, "*remote access error*key*"},
        {IBV_WC_FATAL_ERR, RM_REASON_TRANSPORT, "*this host's card*"},
        {IBV_WC_WR_FLUSH_ERR, RM_REASON_PEER_LOST, "*connection was ended*"},
        {IBV_WC_BAD_RESP_ERR, RM_REASON_TRANSPORT, "*kernel logs"},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {4 * MIB}});
        rig_change(rig, 0);
        rig_end_round(rig, 1);
        SET_KNOB(fail_status, cases[i].status);
        SET_KNOB(fail_in, 1 + (unsigned)g_test_rand_int_range(0, 5));
        int code = 0;
        for (unsigned n = 0; n < 1000 && code == 0; n++)
            code = rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1);
        g_assert_cmpint(code, <, 0);
        g_usleep(2000);                                                    /* the flushed ones arrive */
        g_assert_cmpint(rig->tx->ops->end_round(rig->tx, 1, 2), ==, code); /* all channels */
        rig_assert_failed(rig, cases[i].reason, cases[i].text);
    }
}

static void test_peer_takes_nothing(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .timeout_ms = 200, .sizes = {2 * MIB}});
    rig_change(rig, 0);
    SET_KNOB(stalled, TRUE);
    g_assert_cmpint(rig->tx->ops->end_round(rig->tx, 0, 1), ==, -ETIMEDOUT);
    rig_assert_failed(rig, RM_REASON_PEER_TIMEOUT, "*took no data for 200 ms");
}

/* The peer is gone, and nobody says so. */
static void test_peer_vanished(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    SET_KNOB(no_disconnects, TRUE);
    g_clear_pointer(&rig->rx, rm_rx_free);
    g_assert_cmpint(rig_post(rig, 0, &(RmRun){0, RM_PAGE}, 1), ==, 0);
    g_assert_cmpint(rig->tx->ops->end_round(rig->tx, 0, 2), ==, -ETIMEDOUT);
    rig_assert_failed(rig, RM_REASON_PEER_TIMEOUT, "*does not answer*");
}

static void *end_first(void *data)
{
    Rig *rig = data;
    return GINT_TO_POINTER(rig->tx->ops->end_round(rig->tx, 0, 1));
}

static void test_abort_while_blocked(void)
{
    for (unsigned by_peer = 0; by_peer < 2; by_peer++) {
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
        rig_change(rig, 0);
        SET_KNOB(stalled, TRUE);
        GThread *thread = g_thread_new("end", end_first, rig);
        g_usleep(20000);
        if (by_peer)
            rig->rx->ops->stop(rig->rx); /* the disconnection wakes it, long before the time-out */
        else
            rig->tx->ops->abort(rig->tx);
        g_assert_cmpint(GPOINTER_TO_INT(g_thread_join(thread)), ==, by_peer ? -EPIPE : -ECANCELED);
        SET_KNOB(stalled, FALSE);
    }
}

static void test_garbled_mark(void)
{
    for (unsigned i = 0; i < 10; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
        rig_change(rig, 0);
        SET_KNOB(garble_sends, TRUE); /* its magic number or its round */
        rig->tx->ops->end_round(rig->tx, 0, 1);
        g_assert_false(rig->rx->ops->wait_round(rig->rx, 1, NULL, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
        SET_KNOB(garble_sends, FALSE);
    }
}

/* The destination's stop comes while writes are on their way: afterwards nothing changes any more. */
static void test_stop_under_writes(void)
{
    for (unsigned i = 0; i < 20; i++) {
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {4 * MIB}});
        SET_KNOB(iwarp, i % 2);
        SET_KNOB(no_disconnects, TRUE);
        rig_change(rig, 0);
        g_usleep((gulong)g_test_rand_int_range(0, 500));
        rig->rx->ops->stop(rig->rx);
        g_autofree uint8_t *then = g_memdup2(rig_to(rig, 0)->map, 4 * MIB);
        rig_post(rig, 0, &(RmRun){0, MIB}, 1);
        g_usleep(2000);
        g_assert_true(memcmp(then, rig_to(rig, 0)->map, 4 * MIB) == 0);
        SET_KNOB(no_disconnects, FALSE);
    }
}

/* One of the two locks holds: the queue pair stays, and no key is good. */
static void test_queue_pair_stays(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    SET_KNOB(keep_queue_pairs, TRUE);
    rig->rx->ops->stop(rig->rx);
    g_assert_cmpuint(fake_verbs_counts().mrs, >, 0); /* the message pages and the source's */
    g_autofree uint8_t *then = g_memdup2(rig_to(rig, 0)->map, 2 * MIB);
    memset(rig_from(rig, 0)->map, 77, MIB);
    rig_post(rig, 0, &(RmRun){0, MIB}, 1);
    g_usleep(2000);
    g_assert_true(memcmp(then, rig_to(rig, 0)->map, 2 * MIB) == 0);
    SET_KNOB(keep_queue_pairs, FALSE);
}

typedef struct {
    Rig *rig;
    int registered;
} Slow;

static void *register_slowly(void *data)
{
    Slow *slow = data;
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    for (uint64_t at = 0; at < 16 * MIB; at += MIB) {
        if (!rig_ask(slow->rig, 0, &(RmRun){at, MIB}, 1, answer, NULL))
            return NULL;
        slow->registered++;
    }
    return NULL;
}

static void test_stop_while_registering(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {16 * MIB}});
    Slow slow = {rig, 0};
    unsigned both = fake_verbs_counts().mrs; /* each end's message page */
    SET_KNOB(register_delay_us, 10000);
    GThread *thread = g_thread_new("registrar", register_slowly, &slow);
    g_usleep(35000);
    rig->rx->ops->stop(rig->rx);
    g_assert_cmpuint(fake_verbs_counts().mrs, ==, both - 1);
    g_thread_join(thread);
    g_assert_cmpuint(fake_verbs_counts().mrs, ==, both - 1);
    g_assert_cmpint(slow.registered, <, 16);
}

/* ---- connecting ---- */

static gboolean connect_failed(const RigParams *params, RmReason reason, const char *pattern,
                               GCancellable *cancellable)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(params);
    rig_start(rig, &error);
    g_assert_no_error(error);
    g_assert_false(rig_connect_as(rig, rig->token, params->channels, cancellable, &rig->tx, &error));
    g_test_message("%s", error->message);
    g_assert_error(error, RM_ERROR, (gint)reason);
    return g_pattern_match_simple(pattern, error->message);
}

static void test_addresses(void)
{
    const RigParams base = {.channels = 1, .chunk_size = MIB, .sizes = {MIB}};
    RigParams params = base;
    params.host = "192.0.2.1";
    g_assert_true(
        connect_failed(&params, RM_REASON_PEER_UNREACHABLE, "*192.0.2.1*Network is unreachable*", NULL));
    params.host = "fe80::17";
    g_assert_true(connect_failed(&params, RM_REASON_USAGE, "*link-local*%INTERFACE", NULL));
    params = base;
    params.from = "203.0.113.5";
    g_assert_true(connect_failed(&params, RM_REASON_PEER_UNREACHABLE, "*--data-source*", NULL));
    params.from = "eth0";
    g_assert_true(connect_failed(&params, RM_REASON_USAGE, "*--data-source eth0*", NULL));
    params.from = "fd00::1";
    g_assert_true(connect_failed(&params, RM_REASON_PEER_UNREACHABLE, "*not of one family*", NULL));
    params = base;
    params.host = "fe80::17%lo";
    g_autoptr(Rig) rig = rig_up(&params);
    rig_change(rig, 0);
    rig_end_round(rig, 1);
}

static void test_devices(void)
{
    const RigParams base = {.channels = 1, .chunk_size = MIB, .gid_index = -1, .sizes = {MIB}};
    RigParams params = base;
    params.device = "nope";
    g_assert_true(connect_failed(&params, RM_REASON_TRANSPORT_UNAVAILABLE, "*nope*ibv_devices*", NULL));
    params.device = "fake0:x";
    g_assert_true(connect_failed(&params, RM_REASON_USAGE, "*fake0:x*", NULL));
    params.device = "fake0:2";
    g_assert_true(connect_failed(&params, RM_REASON_TRANSPORT_UNAVAILABLE, "*no such port*", NULL));
    params.device = "fake0";
    params.gid_index = 2;
    g_assert_true(connect_failed(&params, RM_REASON_TRANSPORT_UNAVAILABLE, "*GID index*", NULL));
    params.gid_index = 0; /* fe80::1 with its interface: another GID than the connection comes to use */
    params.host = "fd00::1";
    g_assert_true(connect_failed(&params, RM_REASON_TRANSPORT_UNAVAILABLE, "--gid-index 0*index 1*", NULL));
    for (int index = -1; index <= 1; index += 2) {
        params = base;
        params.device = index < 0 ? "fake0" : "fake0:1";
        params.gid_index = index;
        g_autoptr(Rig) rig = rig_up(&params);
        rig_change(rig, 0);
        rig_end_round(rig, 1);
        blocks_assert_equal(rig, 0);
    }
}

static void test_deaf(void)
{
    SET_KNOB(deaf, TRUE);
    const RigParams params = {.channels = 1, .chunk_size = MIB, .timeout_ms = 100, .sizes = {MIB}};
    g_assert_true(connect_failed(&params, RM_REASON_PEER_TIMEOUT, "*within 100 ms*", NULL));
}

static void *cancel_soon(void *data)
{
    g_usleep(20000);
    g_cancellable_cancel(data);
    return NULL;
}

static void test_cancel_connecting(void)
{
    SET_KNOB(deaf, TRUE);
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    GThread *thread = g_thread_new("cancel", cancel_soon, cancellable);
    g_assert_true(connect_failed(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}},
                                 RM_REASON_CANCELLED, "*", cancellable));
    g_thread_join(thread);
}

static void test_absent(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig =
        rig_new(&(RigParams){.channels = 2, .chunk_size = MIB, .timeout_ms = 100, .sizes = {MIB}});
    rig_start(rig, &error);
    g_assert_no_error(error);
    g_assert_false(rig->rx->ops->wait_round(rig->rx, 1, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    g_clear_error(&error);
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    g_assert_false(rig_ask(rig, 0, &(RmRun){0, RM_PAGE}, 1, answer, &error));
}

/* ---- listening ---- */

static RmRx *listen_at(Rig *rig, uint16_t port, char *const *addresses, GError **error)
{
    RmRxParams params = {.channels = 1,
                         .blocks = rig->to,
                         .chunk_size = MIB,
                         .timeout_ms = 1000,
                         .port = port,
                         .data_addresses = addresses,
                         .gid_index = -1};
    RmRx *rx = rm_transport_rdma.rx_new();
    if (rx->ops->start(rx, &params, error))
        return rx;
    rm_rx_free(rx);
    return NULL;
}

static void test_listening(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    char *mixed[] = {"203.0.113.1", "10.0.0.1", "10.0.0.2", NULL}, *none[] = {"203.0.113.1", NULL},
         *bad[] = {"eth0", NULL};
    {
        g_autoptr(RmRx) rx = listen_at(rig, 24780, mixed, &error);
        g_assert_no_error(error);
        json_object *offer = rx->ops->offer(rx);
        g_assert_cmpstr(json_object_to_json_string(offer), ==, "{ \"port\": 24780, \"host\": \"10.0.0.1\" }");
        json_object_put(offer);
        g_autoptr(RmRx) shared = listen_at(rig, 24780, mixed, &error);
        g_assert_no_error(error);
        g_assert_null(listen_at(rig, 24780, NULL, &error)); /* the port is taken, with other addresses */
        g_assert_nonnull(strstr(error->message, "another rdmamigd"));
        g_clear_error(&error);
    }
    g_assert_null(listen_at(rig, 24780, none, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TRANSPORT_UNAVAILABLE);
    g_clear_error(&error);
    g_assert_null(listen_at(rig, 24780, bad, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
    g_clear_error(&error);
    g_autoptr(RmRx) all = listen_at(rig, 24780, NULL, &error); /* and it is free again */
    g_assert_no_error(error);
}

static void test_available(void)
{
    g_autofree char *why = NULL;
    g_assert_true(rm_transport_rdma.available(&why));
    SET_KNOB(no_device, TRUE);
    g_assert_false(rm_transport_rdma.available(&why));
    g_assert_cmpstr(why, ==, "no RDMA device");
    g_assert_true(rm_transport_find("rdma") == &rm_transport_rdma);
}

/* ---- running ---- */

static const FakeTest tests[] = {
    {"/faults/first-error-kept", test_first_error_kept},
    {"/faults/peer-takes-nothing", test_peer_takes_nothing},
    {"/faults/peer-vanished", test_peer_vanished},
    {"/faults/abort-while-blocked", test_abort_while_blocked},
    {"/faults/garbled-mark", test_garbled_mark},
    {"/faults/stop-under-writes", test_stop_under_writes},
    {"/faults/queue-pair-stays", test_queue_pair_stays, TRUE},
    {"/faults/stop-while-registering", test_stop_while_registering},
    {"/faults/addresses", test_addresses},
    {"/faults/devices", test_devices},
    {"/faults/deaf", test_deaf},
    {"/faults/cancel-connecting", test_cancel_connecting},
    {"/faults/absent", test_absent},
    {"/faults/listening", test_listening, TRUE},
    {"/faults/available", test_available},
};

int main(int argc, char **argv)
{
    return fake_run(argc, argv, tests, G_N_ELEMENTS(tests));
}
