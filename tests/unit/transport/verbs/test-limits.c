/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rdma transport on a device that is small, slow or strange: over the fake provider only. */
#include "fake-rig.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- order ---- */

/* A network that tells the source that a write is complete when it has only taken it: what holds then is the
 * barrier alone. */
static void test_early_completions(void)
{
    SET_KNOB(iwarp, TRUE);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 3, .chunk_size = MIB, .sizes = {6 * MIB, 2 * MIB}});
    for (uint32_t round = 1; round <= 25; round++) {
        for (unsigned i = 0; i < rig->from->len; i++)
            rig_change(rig, i);
        rig_end_round(rig, round);
        for (unsigned i = 0; i < rig->from->len; i++)
            blocks_assert_equal(rig, i);
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
        blocks_assert_equal(rig, 0);
        for (unsigned i = 0; i < 4; i++)
            g_thread_join(threads[i]);
    }
}

/* ---- limits ---- */

static void run_limited(gboolean copy)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 2, .chunk_size = MIB, .copy = copy, .sizes = {3 * MIB + PAGES(1)}});
    for (uint32_t round = 1; round <= 3; round++) {
        rig_change(rig, 0);
        rig_write(rig, 0, &(RmRun){0, MIB}, 1);
        rig_end_round(rig, round);
        blocks_assert_equal(rig, 0);
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
    g_assert_nonnull(strstr(error->message, "--max-pinned"));
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
    g_assert_cmpint(rig_prepare(rig, 0, &run, 1), ==, 0);
    rig_assert_warned("*copied before it is sent*");
    g_assert_cmpint(rig_post(rig, 0, &run, 1), ==, 0);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
    g_assert_false(fake_verbs_was_registered(rig_from(rig, 0)->map, 2 * MIB, 0));
}

static void test_registering_fails(void)
{
    const struct {
        int code;
        RmReason reason;
    } cases[] = {
        {EFAULT, RM_REASON_MEMORY_SHORT}, {EIO, RM_REASON_TRANSPORT}, {ENOMEM, RM_REASON_MEMORY_SHORT}};
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
    blocks_assert_equal(rig, 0);
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
    blocks_assert_equal(rig, 0);
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
    struct rlimit limit = {6 * MIB, 6 * MIB};
    g_assert_cmpint(setrlimit(RLIMIT_MEMLOCK, &limit), ==, 0);
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 2 * MIB, .sizes = {8 * MIB}});
    rig_assert_warned(
        "*RLIMIT_MEMLOCK) is 6 MiB, the guest needs 12 MiB*LimitMEMLOCK=*is 6 MiB, the guest has 8 "
        "MiB: it is copied*--max-pinned*");
    g_assert_cmpuint(rig->rx->window, ==, 6 * MIB - 4096);
    SET_KNOB(register_errno, ENOMEM);
    SET_KNOB(register_fail_in, 1);
    limit.rlim_cur = MIB / 2; /* it can be lowered, or others have locked since */
    g_assert_cmpint(setrlimit(RLIMIT_MEMLOCK, &limit), ==, 0);
    g_assert_false(rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PRIVILEGE);
    g_assert_true(
        g_pattern_match_simple("*1 MiB*RLIMIT_MEMLOCK) is 512 KiB*ulimit -l*LimitMEMLOCK=*", error->message));
}

/* Rights as small as can be, on either side. */
static void test_rights(void)
{
    for (unsigned copy = 0; copy < 2; copy++) {
        fake_verbs_reset();
        g_autoptr(Rig) rig =
            rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .copy = copy == 1, .sizes = {2 * MIB}});
        const uint8_t *from = rig_from(rig, 0)->map, *to = rig_to(rig, 0)->map;
        rig_change(rig, 0);
        rig_end_round(rig, 1);
        g_assert_cmpint(fake_verbs_was_registered(from, 2 * MIB, 0), ==, copy == 0);
        g_assert_false(fake_verbs_was_registered(from, 2 * MIB, ~0));
        g_assert_true(fake_verbs_was_registered(to, 2 * MIB, IBV_ACCESS_REMOTE_WRITE));
        g_assert_false(
            fake_verbs_was_registered(to, 2 * MIB, ~(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE)));
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

/* ---- running ---- */

static const FakeTest tests[] = {
    {"/limits/early-completions", test_early_completions},
    {"/limits/threads", test_threads},
    {"/limits/small-messages", test_small_messages},
    {"/limits/small-regions", test_small_regions},
    {"/limits/small-queues", test_small_queues},
    {"/limits/window", test_window},
    {"/limits/too-small", test_too_small},
    {"/limits/regions-exhausted", test_regions_exhausted},
    {"/limits/source-regions-exhausted", test_source_regions_exhausted},
    {"/limits/registering-fails", test_registering_fails},
    {"/limits/registering-half", test_registering_half},
    {"/limits/memlock", test_memlock},
    {"/limits/rights", test_rights},
    {"/limits/key-of-other-channel", test_key_of_other_channel},
};

int main(int argc, char **argv)
{
    return fake_run(argc, argv, tests, G_N_ELEMENTS(tests));
}
