/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests and replies of the control channel, and what a peer may not say. */
#include "channel-pair.h"

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

/* A mebibyte of text, which would be 3 MiB in memory: once is a large hello. */
static char *large_message(const char *type)
{
    GString *line = g_string_new(NULL);
    g_string_printf(line, "{\"type\":\"%s\",\"a\":[\"\"", type);
    while (line->len < (900 << 10))
        g_string_append(line, ",\"0123456789abcdef0123456789\"");
    g_string_append(line, "]}\n");
    return g_string_free(line, FALSE);
}

/* What a peer may say without end, a stranger may not, in however many messages of whatever kind. */
static void test_stranger(void)
{
    g_autofree char *hello = large_message("hello");
    g_autofree char *keepalive = large_message("keep-alive");
    RmControlParams params = patient;
    params.stranger = TRUE;
    for (int trusted = 0; trusted < 2; trusted++) {
        g_autoptr(RmControl) control = NULL;
        rm_autofd fd = -1; /* closed first */
        rm_autojson request = NULL;
        g_autoptr(GError) error = NULL;
        control = against_fd(&params, &fd);
        put_text(fd, hello);
        g_assert_true(rm_control_receive(control, BOUND_US / 1000, NULL, &request, &error));
        g_assert_no_error(error);
        if (trusted)
            rm_control_trust(control);
        for (int i = 0; i < (trusted ? 8 : 1); i++) /* a broken one reads no further */
            put_text(fd, keepalive);
        put_text(fd, "{\"type\":\"next\",\"id\":2}\n");
        if (!trusted) {
            assert_broken(control, RM_REASON_PROTOCOL, "too much said before");
            continue;
        }
        g_clear_pointer(&request, json_object_put);
        g_assert_true(rm_control_receive(control, BOUND_US / 1000, NULL, &request, &error));
        g_assert_no_error(error);
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
    g_test_add_func("/channel/stranger", test_stranger);
    g_test_add_func("/channel/failure-replies", test_failure_replies);
    g_test_add_func("/channel/timeouts-of-calls", test_timeouts_of_calls);
    g_test_add_func("/channel/cancellable", test_cancellable);
    g_test_add_func("/channel/own-lost-as-cancellable", test_own_lost_as_cancellable);
    g_test_add_func("/channel/too-long-to-send", test_too_long_to_send);
    g_test_add_func("/channel/no-reply-without-id", test_no_reply_without_id);
    return g_test_run();
}
