/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake transport keeps the contract, and notices when a test's subject does not. */
#include "pair.h"

#include "common/reason.h"
#include "transport/fake.h"

#include <errno.h>

/* A pair joined by the fake instead of sockets. */
static Pair *fake_up(unsigned channels)
{
    g_autoptr(GError) error = NULL;
    Pair *pair = pair_new(channels, MIB, (const uint64_t[]){2 * MIB, 0});
    RmRxParams there = {channels, pair->to, MIB, {0}, 1000};
    memcpy(there.token, pair->token, sizeof there.token);
    pair->rx = rm_transport_fake.rx_new();
    pair->rx->ops->start(pair->rx, &there, &error);
    g_assert_no_error(error);
    RmTxParams here = pair_params(pair, NULL);
    pair->tx = rm_transport_fake.tx_new();
    pair->tx->ops->connect(pair->tx, &here, NULL, &error);
    g_assert_no_error(error);
    return pair;
}

static void post(Pair *pair, uint64_t page, uint64_t n)
{
    RmRun run = {PAGES(page), PAGES(n)};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, pair_channel(pair, 0, run.offset), 0, &run, 1), ==, 0);
}

static void test_record(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = fake_up(2);
    memset(pair_from(pair, 0)->map, 1, 2 * MIB);
    post(pair, 0, 3);
    post(pair, 256, 2);
    pair_end_round(pair, 1);
    g_assert_true(pair->rx->ops->wait_round(pair->rx, 1, NULL, NULL));
    post(pair, 1, 1);
    g_autoptr(GArray) posts = rm_fake_posts(pair->tx);
    g_assert_cmpuint(posts->len, ==, 3);
    RmFakePost *second = &g_array_index(posts, RmFakePost, 1), *third = &g_array_index(posts, RmFakePost, 2);
    g_assert_cmpuint(second->offset, ==, MIB);
    g_assert_cmpuint(second->length, ==, PAGES(2));
    g_assert_cmpuint(second->channel, ==, 1);
    g_assert_cmpuint(second->round, ==, 1);
    g_assert_cmpuint(third->round, ==, 2);
    g_assert_cmpuint(pair_to(pair, 0)->map[PAGES(3) - 1], ==, 1);
    g_assert_cmpuint(pair_to(pair, 0)->map[PAGES(3)], ==, 0);
    g_assert_cmpuint(pair->rx->ops->payload_bytes(pair->rx), ==, PAGES(6));
    rm_fake_check(pair->tx, &error);
    g_assert_no_error(error);
    post(pair, 0, 2); /* page 1 again in round 2 */
    g_assert_false(rm_fake_check(pair->tx, &error));
    g_assert_nonnull(strstr(error->message, "page 1: went twice in round 2"));
}

static void test_failures(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = fake_up(1);
    RmRun run = {0, PAGES(1)};
    rm_fake_fail_post(pair->tx, 1, -EIO);
    post(pair, 0, 1);
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, &run, 1), ==, -EIO);
    g_assert_cmpint(pair->tx->ops->end_round(pair->tx, 0, 1), ==, -EIO);
    g_assert_false(pair->tx->ops->error(pair->tx, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TRANSPORT);
}

static void test_wrong_channel(void)
{
    g_autoptr(Pair) pair = fake_up(2);
    RmRun run = {MIB, PAGES(1)};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, &run, 1), ==, -EINVAL);
    g_assert_cmpuint(pair_to(pair, 0)->map[MIB], ==, 0);
}

static void test_ends(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = fake_up(1);
    g_autoptr(GCancellable) cancelled = g_cancellable_new();
    g_cancellable_cancel(cancelled);
    g_assert_false(pair->rx->ops->wait_round(pair->rx, 1, cancelled, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
    g_clear_error(&error);
    pair->rx->ops->stop(pair->rx);
    memset(pair_from(pair, 0)->map, 7, MIB);
    RmRun run = {0, PAGES(1)};
    g_assert_cmpint(pair->tx->ops->post(pair->tx, 0, 0, &run, 1), ==, -EPIPE);
    g_assert_cmpuint(pair_to(pair, 0)->map[0], ==, 0);
    g_clear_pointer(&pair->tx, rm_tx_free);
    g_assert_false(pair->rx->ops->wait_round(pair->rx, 1, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
}

static void test_strangers(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = fake_up(1);
    RmTxParams params = pair_params(pair, NULL);
    params.token[0] ^= 1;
    g_autoptr(RmTx) stranger = rm_transport_fake.tx_new();
    g_assert_false(stranger->ops->connect(stranger, &params, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TOKEN);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/fake/record", test_record);
    g_test_add_func("/fake/failures", test_failures);
    g_test_add_func("/fake/wrong-channel", test_wrong_channel);
    g_test_add_func("/fake/ends", test_ends);
    g_test_add_func("/fake/strangers", test_strangers);
    return g_test_run();
}
