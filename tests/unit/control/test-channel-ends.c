/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a control channel ends: by either end, by silence, by cancelling; always within bounds. */
#include "channel-pair.h"

static void test_peer_closes(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    uint64_t id = rm_control_begin(control, rm_json_message("x"), NULL);
    put_text(fd, "{\"type\":\"last\"}\n");
    g_autofree char *seen = read_until(fd, "\n");
    g_assert_nonnull(strstr(seen, "\"id\":"));
    shutdown(fd, SHUT_RDWR);
    g_autoptr(GError) error = NULL;
    rm_autojson request = NULL;
    g_assert_false(rm_control_finish(control, id, 0, NULL, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    assert_broken(control, RM_REASON_PEER_LOST, "closed at the other end");
    /* what it had asked before it closed is still there */
    g_assert_true(rm_control_receive(control, 0, NULL, &request, NULL));
    g_assert_false(rm_control_receive(control, 0, NULL, &request, NULL));
}

static void test_peer_closes_within_message(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    put_text(fd, "{\"type\":");
    shutdown(fd, SHUT_WR);
    assert_broken(control, RM_REASON_PEER_LOST, "middle of a message");
    shutdown(fd, SHUT_RDWR);
}

/* A reply that came before the end counts, whatever came after it. */
static void test_reply_then_close(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    uint64_t id = rm_control_begin(control, rm_json_message("x"), NULL);
    g_autofree char *line = g_strdup_printf("{\"type\":\"running\",\"reply\":%" G_GUINT64_FORMAT "}\n", id);
    put_text(fd, line);
    shutdown(fd, SHUT_RDWR);
    wait_lost(control);
    rm_autojson reply = NULL;
    g_assert_true(rm_control_finish(control, id, 0, NULL, &reply, NULL));
    g_assert_nonnull(reply);
}

static void test_expected_end(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    rm_control_expect_end(control);
    put_text(fd, "{\"type\":\"cancel\"}\n{\"type\":\"bye\"}\n");
    shutdown(fd, SHUT_RDWR);
    rm_autojson bye = NULL;
    rm_autojson none = NULL;
    g_autoptr(GError) error = NULL;
    g_assert_true(rm_control_receive(control, 0, NULL, &bye, NULL)); /* a cancel is too late now */
    g_assert_false(rm_control_receive(control, 0, NULL, &none, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    g_assert_true(rm_control_error(control, NULL));
    g_assert_false(g_cancellable_is_cancelled(rm_control_lost(control)));
}

static void test_silent_peer(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    gint64 start = g_get_monotonic_time();
    control = against_fd(&hasty, &fd);
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_control_request(control, rm_json_message("x"), 0, NULL, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    g_assert_cmpint(g_get_monotonic_time() - start, >=, hasty.timeout_ms * 1000);
    g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
    assert_broken(control, RM_REASON_PEER_TIMEOUT, "nothing heard");
}

/* Neither end calls anything for many time-outs: keep-alives alone hold the line. */
static void test_idle(void)
{
    g_auto(Pair) pair = pair_new(&(RmControlParams){.keepalive_ms = 50, .timeout_ms = 1000});
    g_usleep(3 * G_USEC_PER_SEC);
    g_assert_true(rm_control_error(pair.a, NULL));
    g_assert_true(rm_control_error(pair.b, NULL));
}

/* Any byte is life, even while the line that it belongs to is not whole. */
static void test_slow_line(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&(RmControlParams){.keepalive_ms = 50, .timeout_ms = 1000}, &fd);
    const char *line = "{\"type\":\"slow\",\"id\":1}\n";
    for (const char *at = line; *at != '\0'; at++) {
        put(fd, at, 1);
        g_usleep(120 * 1000);
    }
    rm_autojson request = NULL;
    g_autoptr(GError) error = NULL;
    g_assert_true(rm_control_receive(control, 0, NULL, &request, &error));
    g_assert_no_error(error);
}

static gpointer run_life(gpointer data)
{
    int fd = GPOINTER_TO_INT(data);
    while (send(fd, "{\"type\":\"keep-alive\"}\n", 22, MSG_NOSIGNAL) == 22)
        g_usleep(50 * 1000);
    return NULL;
}

/* Alive, but it reads nothing: our writes fill its buffers and must end nevertheless. */
static void test_peer_that_does_not_read(void)
{
    rm_autofd fd = -1;
    RmControl *control = against_fd(&hasty, &fd);
    GThread *life = g_thread_new("life", run_life, GINT_TO_POINTER(fd));
    g_autofree char *filling = g_strnfill(900 << 10, 'x');
    gint64 start = g_get_monotonic_time();
    gboolean ok = TRUE;
    g_autoptr(GError) error = NULL;
    for (int i = 0; ok && i < 100; i++) {
        json_object *message = rm_json_message("x");
        rm_json_add_string(message, "s", filling);
        ok = rm_control_begin(control, message, &error) != 0;
    }
    g_assert_false(ok);
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    g_assert_nonnull(strstr(error->message, "took nothing"));
    g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
    rm_control_free(control);
    g_thread_join(life);
}

/* Nobody writes but the keeper: its keep-alives pile up at a peer that does not read. */
static void test_keepalives_pile_up(void)
{
    int fds[2], small = 1;
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    rm_autofd fd = fds[1];
    RmControl *control = control_on(fds[0], NULL, &(RmControlParams){.keepalive_ms = 1, .timeout_ms = 400});
    GThread *life = g_thread_new("life", run_life, GINT_TO_POINTER(fd));
    assert_broken(control, RM_REASON_PEER_TIMEOUT, "took nothing");
    rm_control_free(control);
    g_thread_join(life);
}

static void test_cancel_from_peer(void)
{
    g_auto(Pair) pair = pair_new(&patient);
    json_object *cancel = rm_json_message("cancel");
    rm_json_add_string(cancel, "detail", "by\x1b[2J hand");
    g_assert_true(rm_control_send(pair.a, rm_json_message("queued"), NULL));
    g_assert_true(rm_control_send(pair.a, cancel, NULL));
    assert_broken(pair.b, RM_REASON_CANCELLED, "source: cancelled: by\\x1b[2J hand");
    rm_autojson request = NULL;
    g_assert_false(rm_control_receive(pair.b, 0, NULL, &request, NULL));
}

/* The peer may say why, but not what only this end can know. */
static void test_cancel_with_reason(void)
{
    static const struct {
        const char *name;
        RmReason reason;
    } cases[] = {
        {"guest-gone", RM_REASON_GUEST_GONE}, {"doubtful", RM_REASON_PROTOCOL},
        {"cleanup", RM_REASON_PROTOCOL},      {"none", RM_REASON_PROTOCOL},
        {"unheard-of", RM_REASON_PROTOCOL},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(Pair) pair = pair_new(&patient);
        json_object *cancel = rm_json_message("cancel");
        rm_json_add_string(cancel, "reason", cases[i].name);
        rm_json_add_string(cancel, "detail", "QEMU ended");
        g_assert_true(rm_control_send(pair.b, cancel, NULL));
        assert_broken(pair.a, cases[i].reason, "destination: QEMU ended");
    }
}

/* Sent as the last word before closing, while the peer's own bytes lie unread: it must arrive. */
static void test_last_word_arrives(void)
{
    for (int i = 0; i < 20; i++) {
        g_autoptr(GSocketListener) listener = g_socket_listener_new();
        uint16_t port = g_socket_listener_add_any_inet_port(listener, NULL, NULL);
        g_assert_cmpuint(port, !=, 0);
        g_autoptr(GSocketClient) client = g_socket_client_new();
        g_socket_client_set_enable_proxy(client, FALSE);
        g_autoptr(GSocketConnection) here =
            g_socket_client_connect_to_host(client, "127.0.0.1", port, NULL, NULL);
        g_assert_nonnull(here);
        g_autoptr(GSocketConnection) there = g_socket_listener_accept(listener, NULL, NULL, NULL);
        RmControl *a = rm_control_new(G_IO_STREAM(here), NULL, &patient);
        RmControl *b = rm_control_new(G_IO_STREAM(there), NULL, &patient);
        for (int n = 0; n < 50; n++)
            rm_control_send(b, rm_json_message("unread"), NULL);
        rm_control_send(a, rm_json_message("cancel"), NULL);
        rm_control_free(a);
        assert_broken(b, RM_REASON_CANCELLED, "cancelled");
        rm_control_free(b);
    }
}

/* A peer that is slow to read and still sends when we close. Were the connection closed at once, its bytes
 * would reset it, and what of ours had not left yet were lost. */
static gpointer run_slow_peer(gpointer data)
{
    int fd = GPOINTER_TO_INT(data);
    g_usleep(20 * 1000);
    put_text(fd, "{\"type\":\"keep-alive\"}\n");
    g_usleep(20 * 1000);
    GString *seen = g_string_new(NULL);
    char buffer[65536];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0)
        g_string_append_len(seen, buffer, got);
    shutdown(fd, SHUT_RDWR);
    gboolean arrived = strstr(seen->str, "\"cancel\"") != NULL;
    g_string_free(seen, TRUE);
    return GINT_TO_POINTER(arrived);
}

static gboolean last_word_reaches_slow_peer(void)
{
    g_autoptr(GSocketListener) listener = g_socket_listener_new();
    uint16_t port = g_socket_listener_add_any_inet_port(listener, NULL, NULL);
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_socket_client_set_enable_proxy(client, FALSE);
    g_autoptr(GSocketConnection) here =
        g_socket_client_connect_to_host(client, "127.0.0.1", port, NULL, NULL);
    g_autoptr(GSocketConnection) there = g_socket_listener_accept(listener, NULL, NULL, NULL);
    g_socket_set_option(g_socket_connection_get_socket(here), SOL_SOCKET, SO_SNDBUF, 4 << 20, NULL);
    g_socket_set_option(g_socket_connection_get_socket(there), SOL_SOCKET, SO_RCVBUF, 64 << 10, NULL);
    RmControl *control = rm_control_new(G_IO_STREAM(here), NULL, &patient);
    json_object *message = rm_json_message("x"); /* most of it waits on our side */
    g_autofree char *filling = g_strnfill(300 << 10, 'x');
    rm_json_add_string(message, "s", filling);
    g_assert_true(rm_control_send(control, message, NULL));
    g_assert_true(rm_control_send(control, rm_json_message("cancel"), NULL));
    GThread *peer = g_thread_new("peer", run_slow_peer,
                                 GINT_TO_POINTER(g_socket_get_fd(g_socket_connection_get_socket(there))));
    rm_control_free(control);
    g_clear_object(&here);
    return GPOINTER_TO_INT(g_thread_join(peer));
}

static void test_last_word_before_reset(void)
{
    for (int i = 0; i < 5; i++) { /* the machine may be too busy for one of them, within half a second */
        if (last_word_reaches_slow_peer())
            return;
    }
    g_assert_not_reached();
}

/* A write that fails because the peer left is reported with what the peer said about it. */
static void test_write_after_cancel(void)
{
    for (int i = 0; i < 50; i++) {
        g_autoptr(RmControl) control = NULL;
        rm_autofd fd = -1; /* closed first */
        control = against_fd(&patient, &fd);
        put_text(fd, "{\"type\":\"error\",\"reason\":\"memory-short\",\"detail\":\"full\"}\n");
        rm_fd_clear(&fd);
        g_autoptr(GError) error = NULL;
        g_assert_false(rm_control_request(control, rm_json_message("x"), 0, NULL, NULL, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
        g_assert_cmpstr(error->message, ==, "peer: full");
    }
}

typedef struct {
    RmControl *control;
    gboolean receive;
    gint started;
} Blocked;

static gpointer run_blocked(gpointer data)
{
    Blocked *blocked = data;
    g_autoptr(GError) error = NULL;
    rm_autojson message = NULL;
    if (blocked->receive) {
        g_atomic_int_set(&blocked->started, 1);
        g_assert_false(rm_control_receive(blocked->control, 0, NULL, &message, &error));
    } else {
        uint64_t id = rm_control_begin(blocked->control, rm_json_message("x"), NULL);
        g_assert_cmpuint(id, !=, 0);
        g_atomic_int_set(&blocked->started, 1);
        g_assert_false(rm_control_finish(blocked->control, id, 0, NULL, &message, &error));
    }
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_LOST);
    return NULL;
}

static void test_free_during_calls(void)
{
    rm_autofd fd = -1;
    RmControl *control = against_fd(&patient, &fd);
    Blocked blocked[4];
    GThread *threads[G_N_ELEMENTS(blocked)];
    for (size_t i = 0; i < G_N_ELEMENTS(blocked); i++) {
        blocked[i] = (Blocked){.control = control, .receive = i % 2};
        threads[i] = g_thread_new("blocked", run_blocked, &blocked[i]);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(blocked); i++) {
        while (!g_atomic_int_get(&blocked[i].started))
            g_usleep(1000);
    }
    g_usleep(100 * 1000); /* let them block inside; the outcome is the same if one doesn't yet */
    gint64 start = g_get_monotonic_time();
    rm_control_free(control);
    g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
    for (size_t i = 0; i < G_N_ELEMENTS(blocked); i++)
        g_thread_join(threads[i]);
    rm_control_free(NULL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/channel-ends/peer-closes", test_peer_closes);
    g_test_add_func("/channel-ends/peer-closes-within-message", test_peer_closes_within_message);
    g_test_add_func("/channel-ends/reply-then-close", test_reply_then_close);
    g_test_add_func("/channel-ends/expected-end", test_expected_end);
    g_test_add_func("/channel-ends/silent-peer", test_silent_peer);
    g_test_add_func("/channel-ends/idle", test_idle);
    g_test_add_func("/channel-ends/slow-line", test_slow_line);
    g_test_add_func("/channel-ends/peer-that-does-not-read", test_peer_that_does_not_read);
    g_test_add_func("/channel-ends/keepalives-pile-up", test_keepalives_pile_up);
    g_test_add_func("/channel-ends/cancel-from-peer", test_cancel_from_peer);
    g_test_add_func("/channel-ends/cancel-with-reason", test_cancel_with_reason);
    g_test_add_func("/channel-ends/last-word-arrives", test_last_word_arrives);
    g_test_add_func("/channel-ends/last-word-before-reset", test_last_word_before_reset);
    g_test_add_func("/channel-ends/write-after-cancel", test_write_after_cancel);
    g_test_add_func("/channel-ends/free-during-calls", test_free_during_calls);
    return g_test_run();
}
