/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control channel over socket pairs: against itself, and against a peer that the test plays byte by byte.
 */
#include "common/autoptr.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define BOUND_US (30 * G_USEC_PER_SEC) /* for a wait that must end: generous, the machine may be busy */

static const RmControlParams patient = {.keepalive_ms = 1000, .timeout_ms = 60000};
static const RmControlParams hasty = {.keepalive_ms = 50, .timeout_ms = 400};

static RmControl *control_on(int fd, const char *first, const RmControlParams *params)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, &error);
    g_assert_no_error(error);
    g_autoptr(GSocketConnection) connection = g_socket_connection_factory_create_connection(socket);
    return rm_control_new(G_IO_STREAM(connection), first, params);
}

typedef struct {
    RmControl *a, *b;
} Pair;

static Pair pair_new(const RmControlParams *params)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    Pair pair = {control_on(fds[0], NULL, params), control_on(fds[1], NULL, params)};
    rm_control_set_peer_name(pair.a, "destination");
    rm_control_set_peer_name(pair.b, "source");
    return pair;
}

static void pair_clear(Pair *pair)
{
    /* the test's own order must not matter; nobody waits for the other's farewell for long */
    rm_control_free(pair->a);
    rm_control_free(pair->b);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Pair, pair_clear)

/* A channel whose peer is the test's fd. */
static RmControl *against_fd(const RmControlParams *params, int *ret_fd)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    *ret_fd = fds[1];
    return control_on(fds[0], NULL, params);
}

static void put(int fd, const char *text, gsize length)
{
    while (length > 0) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) /* the channel closed: what it made of the bytes before is what the test looks at */
            return;
        text += sent;
        length -= sent;
    }
}

static void put_text(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Reads from the fd until `wanted` was seen. */
static char *read_until(int fd, const char *wanted)
{
    GString *seen = g_string_new(NULL);
    while (strstr(seen->str, wanted) == NULL) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        g_assert_cmpint(poll(&poller, 1, BOUND_US / 1000), ==, 1);
        char buffer[4096];
        ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
        g_assert_cmpint(got, >, 0);
        g_string_append_len(seen, buffer, got);
    }
    return g_string_free(seen, FALSE);
}

static void wait_lost(RmControl *control)
{
    GPollFD poller;
    g_assert_true(g_cancellable_make_pollfd(rm_control_lost(control), &poller));
    g_assert_cmpint(g_poll(&poller, 1, BOUND_US / 1000), ==, 1);
    g_cancellable_release_fd(rm_control_lost(control));
}

static void assert_broken(RmControl *control, RmReason reason, const char *part)
{
    g_autoptr(GError) error = NULL, again = NULL, third = NULL;
    wait_lost(control);
    g_assert_false(rm_control_error(control, &error));
    g_assert_error(error, RM_ERROR, (int)reason);
    if (strstr(error->message, part) == NULL)
        g_error("\"%s\" lacks \"%s\"", error->message, part);
    /* every call fails with the first reason */
    g_assert_false(rm_control_request(control, rm_json_message("x"), 0, NULL, NULL, &again));
    g_assert_error(again, RM_ERROR, (int)reason);
    g_assert_cmpstr(again->message, ==, error->message);
    g_assert_false(rm_control_send(control, rm_json_message("x"), &third));
    g_assert_error(third, RM_ERROR, (int)reason);
}

/* Answers every request: "echo" with its n, "fail" with a failure, until the channel ends. */
static gpointer run_echo(gpointer data)
{
    RmControl *control = data;
    while (TRUE) {
        rm_autojson request = NULL;
        if (!rm_control_receive(control, 0, NULL, &request, NULL))
            return NULL;
        const char *type = NULL;
        g_assert_true(rm_json_string(request, "type", &type, NULL));
        if (strcmp(type, "fail") == 0) {
            g_autoptr(GError) problem = g_error_new(RM_ERROR, RM_REASON_MEMORY_SHORT, "no room\nfor it");
            rm_control_reply_failure(control, request, "failed", problem, NULL);
            continue;
        }
        uint64_t n = 0;
        g_assert_true(rm_json_uint(request, "n", &n, NULL));
        json_object *reply = rm_json_message("echoed");
        rm_json_add_uint(reply, "n", n);
        rm_control_reply(control, request, reply, NULL);
    }
}

static json_object *echo_message(uint64_t n)
{
    json_object *message = rm_json_message("echo");
    rm_json_add_uint(message, "n", n);
    return message;
}

static void ask_echo(RmControl *control, uint64_t n)
{
    g_autoptr(GError) error = NULL;
    rm_autojson reply = NULL;
    uint64_t answer = 0;
    g_assert_true(rm_control_request(control, echo_message(n), 0, NULL, &reply, &error));
    g_assert_no_error(error);
    g_assert_true(rm_json_uint(reply, "n", &answer, NULL));
    g_assert_cmpuint(answer, ==, n);
}

static void test_request(void)
{
    Pair pair = pair_new(&patient);
    GThread *echo = g_thread_new("echo", run_echo, pair.b);
    ask_echo(pair.a, 0);
    ask_echo(pair.a, UINT64_MAX);
    g_autoptr(GError) error = NULL;
    rm_autojson reply = NULL;
    g_assert_false(rm_control_request(pair.a, rm_json_message("fail"), 0, NULL, &reply, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
    g_assert_cmpstr(error->message, ==, "destination: no room\\nfor it");
    g_assert_null(reply);
    g_assert_true(rm_control_error(pair.a, NULL));
    pair_clear(&pair);
    g_thread_join(echo);
}

static gpointer run_asker(gpointer data)
{
    for (uint64_t n = 0; n < 200; n++)
        ask_echo(data, n * 1000003);
    return NULL;
}

static void test_many_threads(void)
{
    Pair pair = pair_new(&patient);
    GThread *echo[] = {g_thread_new("echo", run_echo, pair.a), g_thread_new("echo", run_echo, pair.b),
                       g_thread_new("echo", run_echo, pair.b)};
    GThread *askers[8];
    for (size_t i = 0; i < G_N_ELEMENTS(askers); i++)
        askers[i] = g_thread_new("asker", run_asker, i % 2 ? pair.a : pair.b);
    for (size_t i = 0; i < G_N_ELEMENTS(askers); i++)
        g_thread_join(askers[i]);
    pair_clear(&pair);
    for (size_t i = 0; i < G_N_ELEMENTS(echo); i++)
        g_thread_join(echo[i]);
}

/* 100 requests in flight, answered last first. */
static void test_out_of_order(void)
{
    g_auto(Pair) pair = pair_new(&patient);
    uint64_t ids[100];
    json_object *requests[G_N_ELEMENTS(ids)];
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++) {
        ids[i] = rm_control_begin(pair.a, echo_message(i), NULL);
        g_assert_cmpuint(ids[i], !=, 0);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++)
        g_assert_true(rm_control_receive(pair.b, 0, NULL, &requests[i], NULL));
    for (size_t i = G_N_ELEMENTS(ids); i-- > 0;) {
        g_assert_true(rm_control_reply(pair.b, requests[i], echo_message(i), NULL));
        json_object_put(requests[i]);
    }
    for (size_t i = 0; i < G_N_ELEMENTS(ids); i++) {
        rm_autojson reply = NULL;
        uint64_t n = 0;
        g_assert_true(rm_control_finish(pair.a, ids[i], 0, NULL, &reply, NULL));
        g_assert_true(rm_json_uint(reply, "n", &n, NULL));
        g_assert_cmpuint(n, ==, i);
    }
}

static void test_split_and_merged(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    g_autofree char *filling = g_strnfill(40 << 10, 'x');
    g_autofree char *line = g_strdup_printf("{\"type\":\"a\",\"id\":1,\"s\":\"%s\"}\n", filling);
    for (const char *at = line; *at != '\0'; at++)
        put(fd, at, 1);
    g_autofree char *merged = g_strconcat("{\"type\":\"b\",\"id\":2}\n{\"type\":\"keep-alive\"}\r\n", line,
                                          "{\"type\":\"c\",\"id\":3}\n{\"type\":", NULL);
    put_text(fd, merged);
    put_text(fd, "\"d\"}\n");
    for (const char *type = "abacd"; *type != '\0'; type++) {
        rm_autojson request = NULL;
        const char *got = NULL;
        g_assert_true(rm_control_receive(control, 0, NULL, &request, NULL));
        g_assert_true(rm_json_string(request, "type", &got, NULL));
        g_assert_cmpint(got[0], ==, *type);
        g_assert_true(got[1] == '\0');
    }
}

static void test_first_bytes(void)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    rm_autofd fd = fds[1];
    g_autoptr(RmControl) control = control_on(fds[0], "{\"type\":\"a\"}\n{\"type\":", &patient);
    put_text(fd, "\"b\"}\n");
    for (int i = 0; i < 2; i++) {
        rm_autojson request = NULL;
        const char *type = NULL;
        g_assert_true(rm_control_receive(control, 0, NULL, &request, NULL));
        g_assert_true(rm_json_string(request, "type", &type, NULL));
        g_assert_cmpstr(type, ==, i == 0 ? "a" : "b");
    }
}

/* Whatever the peer gets wrong: the reason is protocol, and it is told so. */
static void test_protocol_errors(void)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"hello\n", "JSON"},
        {"\n", "JSON"},
        {"[]\n", "not an object"},
        {"{}\n", "\"type\" is missing"},
        {"{\"type\":5}\n", "\"type\" is an integer"},
        {"{\"type\":\"\"}\n", "type of 0 bytes"},
        {"{\"type\":\"\\u001b[2J\"}\n", "malformed message type"},
        {"{\"type\":\"x\",\"id\":-1}\n", "\"id\" is a negative integer"},
        {"{\"type\":\"x\",\"id\":0}\n", "can't be 0"},
        {"{\"type\":\"x\",\"id\":18446744073709551616}\n", "64 bits"},
        {"{\"type\":\"x\",\"reply\":1}\n", "not asked"},
        {"{\"type\":\"x\",\"reply\":\"1\"}\n", "\"reply\" is a string"},
        {"{\"type\":\"x\",\"a\":[[[[[[[[]]]]]]]]}\n", "nested"},
        {"{\"type\":\"\xff\"}\n", "UTF-8"},
        {"{\"type\":\"x\"}{\"type\":\"y\"}\n", "JSON"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(RmControl) control = NULL;
        rm_autofd fd = -1; /* closed first */
        control = against_fd(&patient, &fd);
        put_text(fd, cases[i].line);
        assert_broken(control, RM_REASON_PROTOCOL, cases[i].part);
        g_autofree char *seen = read_until(fd, "\n");
        g_assert_nonnull(strstr(seen, "\"type\":\"error\""));
        g_assert_nonnull(strstr(seen, "\"reason\":\"protocol\""));
        shutdown(fd, SHUT_RDWR);
    }
}

static void test_long_line(void)
{
    g_autofree char *filling = g_strnfill(RM_MESSAGE_MAX, 'x');
    const int excess[] = {0, 1};
    for (size_t i = 0; i < G_N_ELEMENTS(excess); i++) {
        g_autoptr(RmControl) control = NULL;
        rm_autofd fd = -1; /* closed first */
        control = against_fd(&patient, &fd);
        g_autofree char *line = g_strdup_printf("{\"type\":\"x\",\"s\":\"%s\"}", filling);
        line[RM_MESSAGE_MAX + excess[i] - 2] = '"';
        line[RM_MESSAGE_MAX + excess[i] - 1] = '}';
        put(fd, line, RM_MESSAGE_MAX + excess[i]);
        put_text(fd, "\n");
        if (excess[i] == 0) {
            rm_autojson request = NULL;
            g_autoptr(GError) error = NULL;
            g_assert_true(rm_control_receive(control, 0, NULL, &request, &error));
            g_assert_no_error(error);
        } else {
            assert_broken(control, RM_REASON_PROTOCOL, "limit");
        }
        shutdown(fd, SHUT_RDWR);
    }
    /* nor is a line waited for that never ends */
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    put(fd, filling, RM_MESSAGE_MAX);
    put_text(fd, "xx");
    assert_broken(control, RM_REASON_PROTOCOL, "limit");
}

static void test_flood(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    for (int i = 0; i < 1025; i++)
        put_text(fd, "{\"type\":\"x\",\"id\":7}\n");
    assert_broken(control, RM_REASON_PROTOCOL, "too many requests");
    /* what is left of the flood is not handed out */
    rm_autojson request = NULL;
    g_assert_false(rm_control_receive(control, 0, NULL, &request, NULL));
}

/* Few messages, little text, but much memory once parsed. */
static void test_flood_of_containers(void)
{
    g_autoptr(GString) line = g_string_new("{\"type\":\"x\",\"a\":[[]");
    for (int i = 0; i < 25000; i++)
        g_string_append(line, ",[]");
    g_string_append(line, "]}\n");
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    for (int i = 0; i < 5; i++)
        put_text(fd, line->str);
    assert_broken(control, RM_REASON_PROTOCOL, "too many requests");

    g_autoptr(RmControl) other = NULL;
    rm_autofd other_fd = -1; /* closed first */
    other = against_fd(&patient, &other_fd);
    g_string_truncate(line, line->len - 3);
    for (int i = 0; i < 5000; i++)
        g_string_append(line, ",[]");
    g_string_append(line, "]}\n");
    put_text(other_fd, line->str);
    assert_broken(other, RM_REASON_PROTOCOL, "too many members");
}

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

static void test_failure_replies(void)
{
    static const struct {
        const char *rest;
        RmReason reason;
        const char *detail;
    } cases[] = {
        {"\"type\":\"refuse\",\"reason\":\"chunk-size\",\"detail\":\"too big\"", RM_REASON_CHUNK_SIZE,
         "peer: too big"},
        {"\"type\":\"error\",\"reason\":\"from-the-future\",\"detail\":\"x\"", RM_REASON_PROTOCOL, "peer: x"},
        {"\"type\":\"failed\",\"reason\":\"none\",\"detail\":\"x\"", RM_REASON_PROTOCOL, "peer: x"},
        {"\"type\":\"failed\",\"reason\":5,\"detail\":{}", RM_REASON_PROTOCOL, "peer: no detail given"},
        {"\"type\":\"failed\"", RM_REASON_PROTOCOL, "peer: no detail given"},
    };
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        uint64_t id = rm_control_begin(control, rm_json_message("x"), NULL);
        g_autofree char *line = g_strdup_printf("{\"reply\":%" G_GUINT64_FORMAT ",%s}\n", id, cases[i].rest);
        put_text(fd, line);
        g_autoptr(GError) error = NULL;
        g_assert_false(rm_control_finish(control, id, 0, NULL, NULL, &error));
        g_assert_error(error, RM_ERROR, (int)cases[i].reason);
        g_assert_cmpstr(error->message, ==, cases[i].detail);
    }
    uint64_t id = rm_control_begin(control, rm_json_message("x"), NULL);
    g_autofree char *longest = g_strnfill(100000, 'y');
    g_autofree char *line = g_strdup_printf(
        "{\"type\":\"failed\",\"reply\":%" G_GUINT64_FORMAT ",\"detail\":\"%s\"}\n", id, longest);
    put_text(fd, line);
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_control_finish(control, id, 0, NULL, NULL, &error));
    g_assert_cmpuint(strlen(error->message), <, 1100);
}

static void test_timeouts_of_calls(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    g_autoptr(GError) error = NULL, receive_error = NULL;
    rm_autojson message = NULL;
    g_assert_false(rm_control_receive(control, 20, NULL, &message, &receive_error));
    g_assert_error(receive_error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    uint64_t id = rm_control_begin(control, rm_json_message("x"), NULL);
    g_assert_false(rm_control_finish(control, id, 20, NULL, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    g_assert_true(rm_control_error(control, NULL));

    /* the reply comes after all: dropped, and no fault of the peer; but only once */
    g_autofree char *line = g_strdup_printf("{\"type\":\"late\",\"reply\":%" G_GUINT64_FORMAT "}\n", id);
    put_text(fd, line);
    put_text(fd, "{\"type\":\"next\"}\n");
    g_assert_true(rm_control_receive(control, 0, NULL, &message, NULL));
    put_text(fd, line);
    assert_broken(control, RM_REASON_PROTOCOL, "not asked");
}

static gpointer run_canceller(gpointer data)
{
    g_usleep(50 * 1000);
    g_cancellable_cancel(data);
    return NULL;
}

static void test_cancellable(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    for (int i = 0; i < 3; i++) {
        g_autoptr(GCancellable) cancellable = g_cancellable_new();
        g_autoptr(GError) error = NULL;
        rm_autojson message = NULL;
        if (i == 2)
            g_cancellable_cancel(cancellable); /* beforehand */
        GThread *thread = g_thread_new("canceller", run_canceller, cancellable);
        if (i == 0)
            g_assert_false(rm_control_receive(control, 0, cancellable, &message, &error));
        else
            g_assert_false(
                rm_control_request(control, rm_json_message("x"), 0, cancellable, &message, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
        g_thread_join(thread);
    }
    g_assert_true(rm_control_error(control, NULL)); /* a caller's cancelling is not the channel's */
}

/* The channel's own cancellable given to its own calls: the reason is the channel's, and nothing locks up. */
static void test_own_lost_as_cancellable(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&hasty, &fd);
    g_autoptr(GError) error = NULL;
    g_assert_false(
        rm_control_request(control, rm_json_message("x"), 0, rm_control_lost(control), NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
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

static void test_too_long_to_send(void)
{
    g_auto(Pair) pair = pair_new(&patient);
    g_autofree char *filling = g_strnfill(RM_MESSAGE_MAX, 'x');
    json_object *message = rm_json_message("x");
    rm_json_add_string(message, "s", filling);
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_control_request(pair.a, message, 0, NULL, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_INTERNAL);
    g_assert_true(rm_control_error(pair.a, NULL));
}

/* One-way messages have no id, hence no reply. */
static void test_no_reply_without_id(void)
{
    g_autoptr(RmControl) control = NULL;
    rm_autofd fd = -1; /* closed first */
    control = against_fd(&patient, &fd);
    put_text(fd, "{\"type\":\"bye\"}\n{\"type\":\"ask\",\"id\":18446744073709551615}\n");
    for (int i = 0; i < 2; i++) {
        rm_autojson request = NULL;
        g_assert_true(rm_control_receive(control, 0, NULL, &request, NULL));
        g_assert_true(rm_control_reply(control, request, rm_json_message(i == 0 ? "first" : "second"), NULL));
    }
    g_autofree char *seen = read_until(fd, "second");
    g_assert_nonnull(strstr(seen, "\"reply\":18446744073709551615"));
    g_assert_null(strstr(seen, "first"));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/channel/request", test_request);
    g_test_add_func("/channel/many-threads", test_many_threads);
    g_test_add_func("/channel/out-of-order", test_out_of_order);
    g_test_add_func("/channel/split-and-merged", test_split_and_merged);
    g_test_add_func("/channel/first-bytes", test_first_bytes);
    g_test_add_func("/channel/protocol-errors", test_protocol_errors);
    g_test_add_func("/channel/long-line", test_long_line);
    g_test_add_func("/channel/flood", test_flood);
    g_test_add_func("/channel/flood-of-containers", test_flood_of_containers);
    g_test_add_func("/channel/peer-closes", test_peer_closes);
    g_test_add_func("/channel/peer-closes-within-message", test_peer_closes_within_message);
    g_test_add_func("/channel/reply-then-close", test_reply_then_close);
    g_test_add_func("/channel/expected-end", test_expected_end);
    g_test_add_func("/channel/silent-peer", test_silent_peer);
    g_test_add_func("/channel/idle", test_idle);
    g_test_add_func("/channel/slow-line", test_slow_line);
    g_test_add_func("/channel/peer-that-does-not-read", test_peer_that_does_not_read);
    g_test_add_func("/channel/keepalives-pile-up", test_keepalives_pile_up);
    g_test_add_func("/channel/cancel-from-peer", test_cancel_from_peer);
    g_test_add_func("/channel/cancel-with-reason", test_cancel_with_reason);
    g_test_add_func("/channel/last-word-arrives", test_last_word_arrives);
    g_test_add_func("/channel/last-word-before-reset", test_last_word_before_reset);
    g_test_add_func("/channel/write-after-cancel", test_write_after_cancel);
    g_test_add_func("/channel/failure-replies", test_failure_replies);
    g_test_add_func("/channel/timeouts-of-calls", test_timeouts_of_calls);
    g_test_add_func("/channel/cancellable", test_cancellable);
    g_test_add_func("/channel/own-lost-as-cancellable", test_own_lost_as_cancellable);
    g_test_add_func("/channel/free-during-calls", test_free_during_calls);
    g_test_add_func("/channel/too-long-to-send", test_too_long_to_send);
    g_test_add_func("/channel/no-reply-without-id", test_no_reply_without_id);
    return g_test_run();
}
