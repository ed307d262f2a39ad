/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the operator can set of an rdma connection reaches it, and the measuring knob does what it says. */
#include "fake-rig.h"

#define GIVEN(number)                                                                                        \
    {                                                                                                        \
        TRUE, number                                                                                         \
    }

/* ---- packets ---- */

static FakeVerbsSettings settings_of(const RmPacketOptions *source, const RmPacketOptions *destination,
                                     unsigned timeout_ms)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1,
                                             .chunk_size = MIB,
                                             .source = *source,
                                             .destination = *destination,
                                             .timeout_ms = timeout_ms,
                                             .sizes = {2 * MIB}});
    rig_change(rig, 0);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
    return fake_verbs_settings();
}

/* By default the card has told after half of the time-out: 4.096 us * 2^n for each of 7 tries. */
static void test_defaults(void)
{
    const RmPacketOptions none = {0};
    FakeVerbsSettings settings = settings_of(&none, &none, 10000);
    g_assert_cmpint(settings.retries, ==, 6);
    g_assert_cmpint(settings.ack_timeout, ==, 17);
    g_assert_cmpint(settings.tos, ==, -1);
    g_assert_cmpint(settings.listener_tos, ==, -1);
    g_assert_cmpint(settings.accepted_ack_timeout, ==, -1);
}

static void test_given(void)
{
    const RmPacketOptions source = {.tos = GIVEN(96), .retries = GIVEN(2), .ack_timeout = GIVEN(14)};
    const RmPacketOptions destination = {.tos = GIVEN(184), .ack_timeout = GIVEN(31)};
    FakeVerbsSettings settings = settings_of(&source, &destination, 10000);
    g_assert_cmpint(settings.retries, ==, 2);
    g_assert_cmpint(settings.tos, ==, 96);
    g_assert_cmpint(settings.ack_timeout, ==, 14);
    g_assert_cmpint(settings.listener_tos, ==, 184);
    g_assert_cmpint(settings.accepted_ack_timeout, ==, 31);
}

/* 0 is a number like any other where it means something. */
static void test_zero(void)
{
    const RmPacketOptions source = {.tos = GIVEN(0), .retries = GIVEN(0)}, none = {0};
    FakeVerbsSettings settings = settings_of(&source, &none, 10000);
    g_assert_cmpint(settings.retries, ==, 0);
    g_assert_cmpint(settings.tos, ==, 0);
    g_assert_cmpint(settings.ack_timeout, ==, 20); /* one try may wait for longer */
}

/* What the system can't set: told if it was wished for, and the connection is made. */
static void test_refused(void)
{
    const RmPacketOptions source = {.tos = GIVEN(8), .ack_timeout = GIVEN(14)}, none = {0};
    SET_KNOB(no_options, TRUE);
    settings_of(&none, &none, 10000);
    rig_assert_warned(NULL);
    settings_of(&source, &none, 10000);
    rig_assert_warned("--tos 8: *--rdma-ack-timeout 14: *");
    settings_of(&none, &source, 10000);
    rig_assert_warned("--tos 8: *--rdma-ack-timeout 14: *");
}

/* ---- serialising ---- */

#define RUNS 40u

/* Posts single pages, two posts a chunk and round, and returns what was in flight. */
static FakeVerbsCounts scatter(gboolean serialise, gboolean copy)
{
    fake_verbs_reset();
    SET_KNOB(chunk_size, MIB);
    g_autoptr(Rig) rig = rig_up(&(RigParams){
        .channels = 2, .chunk_size = MIB, .copy = copy, .serialise = serialise, .sizes = {4 * MIB}});
    for (uint32_t round = 1; round <= 3; round++) {
        for (unsigned post = 0; post < 8; post++) {
            uint64_t base = post / 2 * MIB + PAGES(post % 2);
            RmRun runs[RUNS];
            for (unsigned i = 0; i < RUNS; i++) {
                runs[i] = (RmRun){base + PAGES(4 * i), RM_PAGE};
                memset(rig_from(rig, 0)->map + runs[i].offset, (int)(round + post + i), RM_PAGE);
            }
            rig_write(rig, 0, runs, RUNS);
        }
        rig_end_round(rig, round);
        blocks_assert_equal(rig, 0);
    }
    return fake_verbs_counts();
}

static void test_serialised(void)
{
    for (unsigned copy = 0; copy < 2; copy++) {
        FakeVerbsCounts one = scatter(TRUE, copy == 1), many = scatter(FALSE, copy == 1);
        g_assert_cmpuint(one.chunk_most, ==, 1);
        g_assert_cmpuint(many.chunk_most, >=, 32);
        g_assert_cmpuint(one.writes, ==, many.writes);
        g_assert_cmpuint(one.longest, ==, many.longest);
    }
}

typedef struct {
    Rig *rig;
    int done; /* atomic */
} Poster;

static void *post_again(void *data)
{
    Poster *poster = data;
    g_assert_cmpint(rig_post(poster->rig, 0, &(RmRun){PAGES(8), RM_PAGE}, 1), ==, 0);
    g_atomic_int_set(&poster->done, TRUE);
    return NULL;
}

/* A write waits for its own chunk, and for no other. */
static void test_other_chunks(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .serialise = TRUE, .sizes = {4 * MIB}});
    memset(rig_from(rig, 0)->map, 1, 4 * MIB);
    SET_KNOB(stalled, TRUE);
    for (unsigned chunk = 0; chunk < 4; chunk++)
        rig_write(rig, 0, &(RmRun){chunk * MIB, MIB}, 1);
    g_assert_cmpuint(fake_verbs_counts().in_flight_most, ==, 4);
    Poster poster = {rig, FALSE};
    GThread *thread = g_thread_new("poster", post_again, &poster);
    g_usleep(50000); /* time for it to go wrong */
    g_assert_false(g_atomic_int_get(&poster.done));
    g_assert_cmpuint(fake_verbs_counts().in_flight_most, ==, 4);
    SET_KNOB(stalled, FALSE);
    g_thread_join(thread);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 0);
}

/* A block that comes later, as the device state does. */
static void test_added_block(void)
{
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .serialise = TRUE, .sizes = {MIB}});
    g_ptr_array_add(rig->from, blocks_one("state", MIB, TRUE));
    g_ptr_array_add(rig->to, blocks_one("state", MIB, FALSE));
    rig->tx->ops->add_block(rig->tx, rig_from(rig, 1));
    rig->rx->ops->add_block(rig->rx, rig_to(rig, 1));
    rig_change(rig, 1);
    rig_end_round(rig, 1);
    blocks_assert_equal(rig, 1);
}

/* ---- running ---- */

static const FakeTest tests[] = {
    {"/options/defaults", test_defaults},
    {"/options/given", test_given},
    {"/options/zero", test_zero},
    {"/options/refused", test_refused},
    {"/options/serialised", test_serialised},
    {"/options/other-chunks", test_other_chunks},
    {"/options/added-block", test_added_block},
};

int main(int argc, char **argv)
{
    return fake_run(argc, argv, tests, G_N_ELEMENTS(tests));
}
