/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who is let in, who is ended for whom, who is blocked: with a clock of our own. */
#include "destination/gate.h"

#include <glib/gstdio.h>
#include <sys/socket.h>
#include <unistd.h>

static gint64 now = G_USEC_PER_SEC;

static gint64 tell_time(void)
{
    return now;
}

static const RmGateLimits small = {
    .half_open = 6,
    .half_open_of_address = 4,
    .ending = 1000, /* nobody gives a pass back before the test does */
    .addresses = 8,
    .failures = 5,
    .failure_us = 1000,
    .block_us = 60000,
    .grace_us = 600000,
    .quiet_us = 10000,
};

typedef struct {
    RmPass *pass;
    int near, far;
} Connection;

static Connection come(RmGate *gate, const char *from)
{
    Connection connection;
    int fds[2];
    g_autoptr(GSocketAddress) peer = g_inet_socket_address_new_from_string(from, 1234);
    g_assert_nonnull(peer);
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    connection = (Connection){rm_gate_enter(gate, peer, fds[0]), fds[0], fds[1]};
    return connection;
}

static void go(Connection *connection)
{
    if (connection->pass != NULL)
        rm_pass_leave(connection->pass);
    close(connection->near);
    close(connection->far);
    connection->pass = NULL;
}

/* Whether it was ended: what is told to it is a line, and then the end. */
static gboolean is_ended(const Connection *connection)
{
    char buffer[1024];
    gssize n, all = 0;
    while ((n = recv(connection->far, buffer + all, sizeof buffer - all, MSG_DONTWAIT)) > 0)
        all += n;
    if (n == 0 && all > 0)
        g_assert_true(buffer[0] == '{' && buffer[all - 1] == '\n');
    return n == 0;
}

static void expect(GLogLevelFlags level, const char *pattern)
{
    g_test_expect_message(G_LOG_DOMAIN, level, pattern);
}

static void test_addresses(void)
{
    static const struct {
        const char *peer, *name;
    } cases[] = {
        {"10.1.2.3", "10.1.2.3"},
        {"127.0.0.2", "127.0.0.2"},
        {"::ffff:10.1.2.3", "10.1.2.3"},
        {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
        {"2001:db8:1:2::7", "2001:db8:1:2::/64"},
        {"2001:db8:1:3::7", "2001:db8:1:3::/64"},
        {"fe80::1", "fe80::1"},
        {"::1", "::1"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GSocketAddress) peer = g_inet_socket_address_new_from_string(cases[i].peer, 1);
        g_autofree char *name = rm_gate_address(peer);
        g_assert_cmpstr(name, ==, cases[i].name);
    }
    g_autofree char *none = rm_gate_address(NULL);
    g_assert_cmpstr(none, ==, "an unknown address");
}

/* The address that has most loses its oldest; others lose nothing, however long they wait. */
static void test_flood(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection honest = come(gate, "10.0.0.1"), late, flood[50];
    RmGateCounts counts;
    for (int i = 0; i < 3; i++)
        flood[i] = come(gate, "10.0.0.2");
    expect(G_LOG_LEVEL_WARNING, "*4 of them from 10.0.0.2*"); /* once */
    for (int i = 3; i < 50; i++)
        flood[i] = come(gate, i % 2 ? "10.0.0.2" : "10.0.0.3");
    g_test_assert_expected_messages();
    rm_gate_count(gate, &counts);
    g_assert_cmpuint(counts.half_open, ==, small.half_open);
    g_assert_cmpuint(counts.ended, ==, 51 - small.half_open);
    g_assert_false(is_ended(&honest));
    for (int i = 0; i < 50; i++)
        g_assert_cmpint(is_ended(&flood[i]), ==, i < 45);
    late = come(gate, "10.0.0.4");
    g_assert_false(is_ended(&honest));
    g_assert_false(is_ended(&late));
    g_assert_true(rm_pass_identify(late.pass));
    g_assert_true(rm_pass_identify(honest.pass));

    g_assert_false(rm_pass_identify(flood[0].pass)); /* too late: it has no part in anything any more */
    for (int i = 0; i < 50; i++)
        go(&flood[i]);
    go(&honest);
    go(&late);
    now += small.quiet_us - 1;
    rm_gate_sweep(gate);
    now++;
    expect(G_LOG_LEVEL_MESSAGE, "*flood*ended; 46 *");
    rm_gate_sweep(gate);
    g_test_assert_expected_messages();
    rm_gate_sweep(gate);
    rm_gate_count(gate, &counts);
    g_assert_cmpuint(counts.half_open, ==, 0);
    rm_gate_free(gate);
}

/* One address gets no more than its part, even while there is room. */
static void test_one_address(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection flood[5];
    expect(G_LOG_LEVEL_WARNING, "*4 of them from 2001:db8::/64*");
    for (int i = 0; i < 5; i++) {
        g_autofree char *from = g_strdup_printf("2001:db8::%d", i + 1);
        flood[i] = come(gate, from);
    }
    g_test_assert_expected_messages();
    for (int i = 0; i < 5; i++) {
        g_assert_cmpint(is_ended(&flood[i]), ==, i == 0);
        go(&flood[i]);
    }
    rm_gate_free(gate);
}

/* Sessions and data channels, of the flooding address too, are not for the gate to end. */
static void test_identified_are_safe(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection session = come(gate, "10.0.0.1"), data = come(gate, "10.0.0.1"), flood[30];
    g_assert_true(rm_pass_identify(session.pass));
    rm_pass_accepted(session.pass);
    g_assert_true(rm_pass_identify(data.pass));
    expect(G_LOG_LEVEL_WARNING, "*oldest*");
    for (int i = 0; i < 30; i++)
        flood[i] = come(gate, "10.0.0.1");
    g_test_assert_expected_messages();
    g_assert_false(is_ended(&session));
    g_assert_false(is_ended(&data));
    for (int i = 0; i < 30; i++)
        go(&flood[i]);
    go(&session);
    go(&data);
    rm_gate_free(gate);
}

/* Whose certificate was accepted is ended last, though it is the oldest. */
static void test_known(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection known = come(gate, "10.0.0.1"), flood[8];
    rm_pass_known(known.pass);
    expect(G_LOG_LEVEL_WARNING, "*oldest*");
    for (int i = 0; i < 8; i++)
        flood[i] = come(gate, i % 2 ? "10.0.0.1" : "10.0.0.2");
    g_test_assert_expected_messages();
    g_assert_false(is_ended(&known));
    for (int i = 0; i < 8; i++)
        go(&flood[i]);
    go(&known);
    rm_gate_free(gate);
}

static void fail(RmGate *gate, const char *from, RmReason reason, guint times)
{
    for (guint i = 0; i < times; i++) {
        Connection connection = come(gate, from);
        g_assert_nonnull(connection.pass);
        rm_pass_count_failure(connection.pass, reason);
        go(&connection);
    }
}

static void test_block(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection before = come(gate, "10.0.0.1"), other;
    RmGateCounts counts;
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 2);
    fail(gate, "10.0.0.1", RM_REASON_PROTOCOL, 2);
    fail(gate, "10.0.0.1", RM_REASON_TLS, 1);
    for (RmReason reason = 0; reason < RM_REASON_COUNT; reason++) { /* an operator's mistakes */
        if (reason != RM_REASON_TOKEN && reason != RM_REASON_PROTOCOL && reason != RM_REASON_TLS)
            fail(gate, "10.0.0.1", reason, 3);
    }
    expect(G_LOG_LEVEL_WARNING, "10.0.0.1: 5 failures*token-rejected*");
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 1);
    g_test_assert_expected_messages();
    for (int i = 0; i < 7; i++) {
        Connection connection = come(gate, "10.0.0.1");
        g_assert_null(connection.pass);
        g_assert_true(is_ended(&connection));
        go(&connection);
    }
    g_assert_false(is_ended(&before)); /* what is in is in */
    other = come(gate, "10.0.0.2");
    g_assert_nonnull(other.pass);
    rm_pass_count_failure(before.pass, RM_REASON_TOKEN); /* no second warning */
    rm_gate_count(gate, &counts);
    g_assert_cmpuint(counts.turned_away, ==, 7);
    g_assert_cmpuint(counts.blocked, ==, 1);
    g_assert_cmpuint(counts.failures, ==, 7);

    now += small.block_us;
    expect(G_LOG_LEVEL_MESSAGE, "10.0.0.1: let in again; 7 *");
    go(&before);
    before = come(gate, "10.0.0.1");
    g_test_assert_expected_messages();
    g_assert_nonnull(before.pass);
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 5); /* a fresh bucket */
    go(&before);
    go(&other);
    rm_gate_free(gate);
}

/* A line for each failure, but not for ever. */
static void test_log(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection connection = come(gate, "10.0.0.1");
    rm_pass_identify(connection.pass);
    rm_pass_accepted(connection.pass);
    for (int i = 0; i < 1000; i++) {
        g_autoptr(GError) error = g_error_new(RM_ERROR, RM_REASON_TOKEN, "wrong one");
        if (i < 20)
            expect(G_LOG_LEVEL_WARNING, "10.0.0.1:5: a query: token-rejected: wrong one");
        rm_pass_failed(connection.pass, "10.0.0.1:5", "a query", error);
        g_test_assert_expected_messages();
    }
    /* which is no reason to keep quiet about an operator's mistakes */
    g_autoptr(GError) mistake = g_error_new(RM_ERROR, RM_REASON_MISMATCH, "no such block");
    g_autoptr(GError) left = g_error_new(RM_ERROR, RM_REASON_PEER_LOST, "gone");
    expect(G_LOG_LEVEL_WARNING, "10.0.0.1:5: refused: guest-mismatch: no such block");
    rm_pass_failed(connection.pass, "10.0.0.1:5", "refused", mistake);
    g_test_assert_expected_messages();
    rm_pass_failed(connection.pass, "10.0.0.1:5", "refused", left);
    go(&connection);
    rm_gate_free(gate);
}

/* Few failures now and then block nobody. */
static void test_slow_failures(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    for (int i = 0; i < 1000; i++) {
        fail(gate, "10.0.0.1", RM_REASON_TOKEN, 1);
        now += small.failure_us;
    }
    rm_gate_free(gate);
}

/* Two hosts behind one address: one's failures don't cost the other its session, nor its word about it. */
static void test_sessions_are_not_blocked(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection session = come(gate, "10.0.0.1"), later;
    rm_pass_identify(session.pass);
    rm_pass_accepted(session.pass);
    rm_pass_accepted(session.pass); /* counts once */
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 100);
    go(&session);
    now += small.grace_us - 1;
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 100);
    now++;
    expect(G_LOG_LEVEL_WARNING, "10.0.0.1: 5 failures*");
    fail(gate, "10.0.0.1", RM_REASON_TOKEN, 1);
    g_test_assert_expected_messages();
    later = come(gate, "10.0.0.1");
    g_assert_null(later.pass);
    go(&later);
    rm_gate_free(gate);
}

/* The table has a bound; who is in it for a reason is forgotten last, and a block's end is told even so. */
static void test_forgetting(void)
{
    RmGate *gate = rm_gate_new(&small, tell_time);
    RmGateCounts counts;
    Connection held = come(gate, "10.1.0.1"), again;
    rm_pass_identify(held.pass);
    rm_pass_accepted(held.pass);
    expect(G_LOG_LEVEL_WARNING, "10.1.0.2: 5 failures*");
    fail(gate, "10.1.0.2", RM_REASON_TOKEN, 6);
    for (int i = 0; i < 100; i++) {
        g_autofree char *from = g_strdup_printf("10.2.0.%d", i + 1);
        now++;
        fail(gate, from, RM_REASON_TOKEN, 5);
    }
    g_test_assert_expected_messages();
    rm_gate_count(gate, &counts);
    g_assert_cmpuint(counts.addresses, ==, small.addresses);
    g_assert_cmpuint(counts.blocked, ==, 1);
    again = come(gate, "10.1.0.2");
    g_assert_null(again.pass);
    go(&again);

    expect(G_LOG_LEVEL_MESSAGE, "10.1.0.2: let in again; 1 *");
    Connection many[12];
    for (int i = 0; i < 12; i++) {
        g_autofree char *from = g_strdup_printf("10.3.0.%d", i + 1);
        many[i] = come(gate, from);
        rm_pass_identify(many[i].pass);
    }
    g_test_assert_expected_messages();
    fail(gate, "10.1.0.1", RM_REASON_TOKEN, 20); /* the session's address is known still */
    for (int i = 0; i < 12; i++)
        go(&many[i]);
    go(&held);
    rm_gate_free(gate);
}

/* Nobody is let in faster than the ended ones' threads end, or a tenth of a second later. */
static void test_ending(void)
{
    RmGateLimits limits = small;
    limits.ending = 2;
    RmGate *gate = rm_gate_new(&limits, tell_time);
    Connection flood[10];
    expect(G_LOG_LEVEL_WARNING, "*oldest*");
    for (int i = 0; i < 7; i++)
        flood[i] = come(gate, "10.0.0.1");
    gint64 begin = g_get_monotonic_time();
    flood[7] = come(gate, "10.0.0.1"); /* three are ending */
    g_assert_cmpint(g_get_monotonic_time() - begin, >=, 90000);
    g_test_assert_expected_messages();
    g_assert_nonnull(flood[7].pass);
    for (int i = 0; i < 8; i++)
        go(&flood[i]);
    rm_gate_free(gate);
}

/* No descriptor stays behind, whatever way a connection took. */
static guint descriptors(void)
{
    guint n = 0;
    g_autoptr(GDir) folder = g_dir_open("/proc/self/fd", 0, NULL);
    while (g_dir_read_name(folder) != NULL)
        n++;
    return n;
}

static void test_descriptors(void)
{
    guint before = descriptors();
    RmGate *gate = rm_gate_new(&small, tell_time);
    Connection connections[20];
    expect(G_LOG_LEVEL_WARNING, "*oldest*");
    for (int i = 0; i < 20; i++) {
        connections[i] = come(gate, "10.0.0.1");
        if (i % 3 == 0)
            rm_pass_identify(connections[i].pass);
    }
    g_test_assert_expected_messages();
    for (int i = 0; i < 20; i++)
        go(&connections[i]);
    rm_gate_free(gate);
    g_assert_cmpuint(descriptors(), ==, before);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/gate/addresses", test_addresses);
    g_test_add_func("/gate/flood", test_flood);
    g_test_add_func("/gate/one-address", test_one_address);
    g_test_add_func("/gate/identified-are-safe", test_identified_are_safe);
    g_test_add_func("/gate/known", test_known);
    g_test_add_func("/gate/block", test_block);
    g_test_add_func("/gate/log", test_log);
    g_test_add_func("/gate/slow-failures", test_slow_failures);
    g_test_add_func("/gate/sessions-are-not-blocked", test_sessions_are_not_blocked);
    g_test_add_func("/gate/forgetting", test_forgetting);
    g_test_add_func("/gate/ending", test_ending);
    g_test_add_func("/gate/descriptors", test_descriptors);
    return g_test_run();
}
