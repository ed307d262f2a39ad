/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rdma transport on a device that is small, slow, strange or broken: over the fake provider only. */
#include "rig.h"

#include "fake-verbs.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define SET_KNOB(knob, value)                                                                                                    \
    do {                                                                                                                         \
        fake_verbs_lock();                                                                                                       \
        fake_verbs_knobs.knob = (value);                                                                                         \
        fake_verbs_unlock();                                                                                                     \
    } while (0)

/* ---- order ---- */

/* A network that tells the source that a write is complete when it has only taken it: what holds then is the barrier alone. */
static void test_early_completions(void)
{
    SET_KNOB(iwarp, TRUE);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 3, .chunk_size = MIB, .sizes = {6 * MIB, 2 * MIB}});
    for (uint32_t round = 1; round <= 25; round++) {
        for (unsigned i = 0; i < rig->from->len; i++)
            rig_change(rig, i);
        rig_end_round(rig, round);
        for (unsigned i = 0; i < rig->from->len; i++)
            rig_assert_equal(rig, i);
    }
}

typedef struct {
    Rig *rig;
    unsigned channel, round;
} Sender;

static void *send_channel(void *data)
{
    const Sender *sender = data;
    Rig *rig = sender->rig;
    for (uint64_t chunk = 0; chunk < rm_chunk_count(rig_from(rig, 0), MIB); chunk++)
        if (rm_chunk_channel(0, chunk, rig->params.channels) == sender->channel)
            rig_write(rig, 0, &(RmRun){chunk * MIB, MIB}, 1);
    g_assert_cmpint(rig->tx->ops->end_round(rig->tx, sender->channel, sender->round), ==, 0);
    return NULL;
}

/* Each channel by its own thread; small windows, so that all of them wait now and then. */
static void test_threads(void)
{
    SET_KNOB(max_qp_wr, 10);
    SET_KNOB(max_msg_sz, 32 * KIB);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 4, .chunk_size = MIB, .sizes = {9 * MIB}});
    for (uint32_t round = 1; round <= 4; round++) {
        g_autoptr(GError) error = NULL;
        GThread *threads[4];
        Sender senders[4];
        memset(rig_from(rig, 0)->map, (int)round, 9 * MIB);
        for (unsigned i = 0; i < 4; i++) {
            senders[i] = (Sender){rig, i, round};
            threads[i] = g_thread_new("sender", send_channel, &senders[i]);
        }
        rig->rx->ops->wait_round(rig->rx, round, NULL, &error);
        g_assert_no_error(error);
        rig_assert_equal(rig, 0);
        for (unsigned i = 0; i < 4; i++)
            g_thread_join(threads[i]);
    }
}

/* ---- limits ---- */

static void run_limited(gboolean copy)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .copy = copy, .sizes = {3 * MIB + PAGES(1)}});
    for (uint32_t round = 1; round <= 3; round++) {
        rig_change(rig, 0);
        rig_write(rig, 0, &(RmRun){0, MIB}, 1);
        rig_end_round(rig, round);
        rig_assert_equal(rig, 0);
    }
}

static void test_small_messages(void)
{
    SET_KNOB(max_msg_sz, 8 * KIB + 5);
    run_limited(FALSE);
    run_limited(TRUE);
    g_assert_cmpuint(fake_verbs_counts().longest, ==, 8 * KIB);
}

static void test_small_regions(void)
{
    SET_KNOB(max_mr_size, 12 * KIB + 9);
    run_limited(FALSE);
    g_assert_cmpuint(fake_verbs_counts().longest_mr, ==, 12 * KIB);
}

static void test_small_queues(void)
{
    for (int depth = 8; depth <= 9; depth++) {
        SET_KNOB(max_qp_wr, depth);
        run_limited(FALSE);
        run_limited(TRUE);
        g_assert_cmpuint(fake_verbs_counts().in_flight_most, ==, depth);
    }
    SET_KNOB(max_cqe, 11);
    run_limited(FALSE);
}

/* The whole window is used, and one completion stands for many requests. */
static void test_window(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 16 * MIB, .sizes = {16 * MIB}});
    RmRun runs[RM_RUNS_MAX];
    for (unsigned i = 0; i < RM_RUNS_MAX; i++)
        runs[i] = (RmRun){PAGES(2 * i), RM_PAGE};
    SET_KNOB(stalled, TRUE);
    rig_write(rig, 0, runs, RM_RUNS_MAX); /* returns: nobody waits for a chunk */
    FakeVerbsCounts counts = fake_verbs_counts();
    g_assert_cmpuint(counts.in_flight_most, ==, RM_RUNS_MAX);
    g_assert_cmpuint(counts.unsignalled, >=, RM_RUNS_MAX / 32 * 31);
    SET_KNOB(stalled, FALSE);
    for (unsigned i = 0; i < 10; i++)
        rig_write(rig, 0, runs, RM_RUNS_MAX);
    rig_end_round(rig, 1);
    g_assert_cmpuint(fake_verbs_counts().in_flight_most, ==, 256);
}

static void test_too_small(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    rig_start(rig, &error);
    g_assert_no_error(error);
    SET_KNOB(max_qp_wr, 1);
    g_assert_false(rig_connect(rig, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TRANSPORT_UNAVAILABLE);
    g_assert_nonnull(strstr(error->message, "max_qp_wr 1"));
}

/* ---- registration ---- */

static void test_regions_exhausted(void)
{
    g_autoptr(GError) error = NULL;
    SET_KNOB(max_mr, 4); /* two are the ends' own */
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {8 * MIB}});
    rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error);
    g_assert_no_error(error);
    /* The source gets no region for its ring either, with the destination's second one. */
    rig_register(rig, 0, &(RmRun){MIB, MIB}, 1, &error);
    g_assert_no_error(error);
    g_assert_false(rig_register(rig, 0, &(RmRun){2 * MIB, MIB}, 1, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
    g_assert_nonnull(strstr(error->message, "max_mr is 4"));
    g_assert_nonnull(strstr(error->message, "--chunk-size"));
    g_assert_cmpuint(fake_verbs_counts().mrs, ==, 4);
}

/* The source goes on with copies. */
static void test_source_regions_exhausted(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {2 * MIB}});
    RmRun run = {0, MIB};
    g_autoptr(GError) error = NULL;
    memset(rig_from(rig, 0)->map, 1, MIB);
    rig_register(rig, 0, &run, 1, &error);
    g_assert_no_error(error);
    SET_KNOB(register_errno, ENOMEM);
    SET_KNOB(register_fail_in, 1);
    g_assert_cmpint(rig_post(rig, 0, &run, 1), ==, 0);
    rig_assert_warned("*copied before it is sent*");
    rig_end_round(rig, 1);
    rig_assert_equal(rig, 0);
    g_assert_false(fake_verbs_was_registered(rig_from(rig, 0)->map, 2 * MIB, 0));
}

static void test_registering_fails(void)
{
    const struct {
        int code;
        RmReason reason;
    } cases[] = {{EFAULT, RM_REASON_MEMORY_SHORT}, {EIO, RM_REASON_TRANSPORT}, {ENOMEM, RM_REASON_MEMORY_SHORT}};
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {4 * MIB}});
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        SET_KNOB(register_errno, cases[i].code);
        SET_KNOB(register_fail_in, 1);
        g_assert_false(rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error));
        g_assert_error(error, RM_ERROR, (gint)cases[i].reason);
        g_assert_nonnull(strstr(error->message, "RAM block to"));
    }
    rig_change(rig, 0); /* none of this ends the session */
    rig_end_round(rig, 1);
    rig_assert_equal(rig, 0);
}

/* Half of a chunk's pieces are there when one fails: asked again, the rest comes. */
static void test_registering_half(void)
{
    g_autoptr(GError) error = NULL;
    SET_KNOB(max_mr_size, 256 * KIB);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    SET_KNOB(register_errno, ENOMEM);
    SET_KNOB(register_fail_in, 3);
    g_assert_false(rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error));
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    rig_assert_equal(rig, 0);
}

static void drop_ipc_lock(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    g_assert_cmpint(syscall(SYS_capget, &header, data), ==, 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    g_assert_cmpint(syscall(SYS_capset, &header, data), ==, 0);
}

static void test_memlock(void)
{
    if (!g_test_subprocess()) {
        g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
        g_test_trap_assert_passed();
        return;
    }
    g_autoptr(GError) error = NULL;
    drop_ipc_lock();
    struct rlimit limit = {1 * MIB, 1 * MIB};
    g_assert_cmpint(setrlimit(RLIMIT_MEMLOCK, &limit), ==, 0);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 2 * MIB, .sizes = {8 * MIB}});
    rig_assert_warned("*RLIMIT_MEMLOCK*1 MiB*the guest has 8 MiB*LimitMEMLOCK=*");
    SET_KNOB(register_errno, ENOMEM);
    SET_KNOB(register_fail_in, 1);
    g_assert_false(rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PRIVILEGE);
    g_assert_true(g_pattern_match_simple("*2 MiB*RLIMIT_MEMLOCK) is 1 MiB*ulimit -l*LimitMEMLOCK=*", error->message));
}

/* Rights as small as can be, on either side. */
static void test_rights(void)
{
    for (unsigned copy = 0; copy < 2; copy++) {
        fake_verbs_reset();
        g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .copy = copy == 1, .sizes = {2 * MIB}});
        const uint8_t *from = rig_from(rig, 0)->map, *to = rig_to(rig, 0)->map;
        rig_change(rig, 0);
        rig_end_round(rig, 1);
        g_assert_cmpint(fake_verbs_was_registered(from, 2 * MIB, 0), ==, copy == 0);
        g_assert_false(fake_verbs_was_registered(from, 2 * MIB, ~0));
        g_assert_true(fake_verbs_was_registered(to, 2 * MIB, IBV_ACCESS_REMOTE_WRITE));
        g_assert_false(fake_verbs_was_registered(to, 2 * MIB, ~(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE)));
    }
}

/* The key of one channel's chunk opens nothing on another. */
static void test_key_of_other_channel(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .sizes = {2 * MIB}});
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    rig_ask(rig, 0, &(RmRun){0, MIB}, 1, answer, &error);
    rig_ask(rig, 0, &(RmRun){MIB, MIB}, 1, answer, &error);
    RmRegion *regions = (RmRegion *)(void *)answer->data;
    regions[1].key = regions[0].key;
    g_assert_cmpint(rig->tx->ops->registered(rig->tx, 0, regions, 2), ==, 0);
    int code = rig_post(rig, 0, &(RmRun){MIB, MIB}, 1);
    if (code == 0)
        code = rig->tx->ops->end_round(rig->tx, 1, 1);
    g_assert_cmpint(code, ==, -EACCES);
}

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
        g_usleep(2000); /* the flushed ones arrive */
        g_assert_cmpint(rig->tx->ops->end_round(rig->tx, 1, 2), ==, code); /* all channels */
        rig_assert_failed(rig, cases[i].reason, cases[i].text);
    }
}

static void test_peer_takes_nothing(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .timeout_ms = 200, .sizes = {2 * MIB}});
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

static gboolean connect_failed(const RigParams *params, RmReason reason, const char *pattern, GCancellable *cancellable)
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
    g_assert_true(connect_failed(&params, RM_REASON_PEER_UNREACHABLE, "*192.0.2.1*Network is unreachable*", NULL));
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
        rig_assert_equal(rig, 0);
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
    g_assert_true(connect_failed(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}}, RM_REASON_CANCELLED, "*", cancellable));
    g_thread_join(thread);
}

static void test_absent(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(&(RigParams){.channels = 2, .chunk_size = MIB, .timeout_ms = 100, .sizes = {MIB}});
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
    RmRxParams params = {.channels = 1, .blocks = rig->to, .chunk_size = MIB, .timeout_ms = 1000, .port = port,
                         .data_addresses = addresses, .gid_index = -1};
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
    char *mixed[] = {"203.0.113.1", "10.0.0.1", "10.0.0.2", NULL}, *none[] = {"203.0.113.1", NULL}, *bad[] = {"eth0", NULL};
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

static const struct {
    const char *path;
    void (*run)(void);
} tests[] = {
    {"/faults/early-completions", test_early_completions},
    {"/faults/threads", test_threads},
    {"/faults/small-messages", test_small_messages},
    {"/faults/small-regions", test_small_regions},
    {"/faults/small-queues", test_small_queues},
    {"/faults/window", test_window},
    {"/faults/too-small", test_too_small},
    {"/faults/regions-exhausted", test_regions_exhausted},
    {"/faults/source-regions-exhausted", test_source_regions_exhausted},
    {"/faults/registering-fails", test_registering_fails},
    {"/faults/registering-half", test_registering_half},
    {"/faults/memlock", test_memlock},
    {"/faults/rights", test_rights},
    {"/faults/key-of-other-channel", test_key_of_other_channel},
    {"/faults/first-error-kept", test_first_error_kept},
    {"/faults/peer-takes-nothing", test_peer_takes_nothing},
    {"/faults/peer-vanished", test_peer_vanished},
    {"/faults/abort-while-blocked", test_abort_while_blocked},
    {"/faults/garbled-mark", test_garbled_mark},
    {"/faults/stop-under-writes", test_stop_under_writes},
    {"/faults/queue-pair-stays", test_queue_pair_stays},
    {"/faults/stop-while-registering", test_stop_while_registering},
    {"/faults/addresses", test_addresses},
    {"/faults/devices", test_devices},
    {"/faults/deaf", test_deaf},
    {"/faults/cancel-connecting", test_cancel_connecting},
    {"/faults/absent", test_absent},
    {"/faults/listening", test_listening},
    {"/faults/available", test_available},
};

/* Each test by itself on a fresh device; and it must have left nothing, and broken no rule. */
static void run_one(gconstpointer data)
{
    void (*const *run)(void) = data;
    fake_verbs_reset();
    FakeVerbsCounts before = fake_verbs_counts();
    (*run)();
    if (*run != test_queue_pair_stays && *run != test_listening)
        rig_assert_warned(NULL);
    FakeVerbsCounts after = fake_verbs_counts();
    g_assert_cmpstr(fake_verbs_violation(), ==, NULL);
    g_assert_cmpuint(after.ids + after.channels, ==, before.ids + before.channels);
    if (*run == test_queue_pair_stays)
        return; /* it does */
    g_assert_cmpuint(after.mrs + after.qps + after.cqs + after.pds, ==, before.mrs + before.qps + before.cqs + before.pds);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    rig_log_init();
    for (unsigned i = 0; i < G_N_ELEMENTS(tests); i++)
        g_test_add_data_func(tests[i].path, &tests[i].run, run_one);
    return g_test_run();
}
