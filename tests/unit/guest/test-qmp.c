/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client against a server that misbehaves in every way a socket allows. */
#include "fake-qmp.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/qmp.h"

#define LONG_MS 20000 /* never reached unless something hangs */
#define SHORT_MS 200  /* is to be reached */

static RmQmp *connect_to(FakeQmp *server, unsigned timeout_ms)
{
    g_autoptr(GError) error = NULL;
    RmQmp *qmp = rm_qmp_new(server->path, timeout_ms, NULL, &error);
    g_assert_no_error(error);
    return qmp;
}

static void assert_fails(RmQmp *qmp, const char *command, RmReason reason, const char *part)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_qmp_run(qmp, command, NULL, NULL, &error));
    g_assert_cmpstr(rm_reason_name(rm_error_reason(error)), ==, rm_reason_name(reason));
    g_assert_nonnull(strstr(error->message, part));
}

static void assert_returns(RmQmp *qmp, const char *command, uint64_t expected)
{
    g_autoptr(GError) error = NULL;
    rm_autojson reply = NULL;
    uint64_t value = 0;
    rm_qmp_run(qmp, command, NULL, &reply, &error);
    g_assert_no_error(error);
    g_assert_true(rm_json_uint(reply, "return", &value, &error));
    g_assert_cmpuint(value, ==, expected);
}

static void assert_event(RmQmp *qmp, const char *name)
{
    rm_autojson event = rm_qmp_next_event(qmp);
    const char *found = NULL;
    g_assert_nonnull(event);
    g_assert_true(rm_json_string(event, "event", &found, NULL));
    g_assert_cmpstr(found, ==, name);
}

static void serve_bytes(FakeQmp *server, int fd, unsigned connection)
{
    for (const char *c = GREETING; *c != '\0'; c++) {
        char one[2] = {*c};
        fake_qmp_send(fd, one);
        g_usleep(200);
    }
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "{}");
    g_autofree char *text =
        g_strdup_printf("{\"return\": 18446744073709551615, \"id\": %u}\n", fake_qmp_read(fd, NULL));
    for (const char *c = text; *c != '\0'; c++) {
        char one[2] = {*c};
        fake_qmp_send(fd, one);
        g_usleep(200);
    }
}

static void test_split(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_bytes, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_assert_cmpuint(rm_qmp_version(qmp), ==, RM_QEMU_VERSION(7, 2));
    g_assert_cmpstr(rm_qmp_version_text(qmp), ==, "7.2.22");
    g_assert_cmpint(rm_qmp_peer(qmp), ==, getpid());
    assert_returns(qmp, "x", UINT64_MAX);
}

static void serve_merged(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    unsigned id = fake_qmp_read(fd, NULL);
    g_autofree char *text =
        g_strdup_printf("{\"event\": \"A\"}\r\n{\"event\": \"B\"}\r\n{\"return\": 1, \"id\": %u}\r\n"
                        "{\"event\": \"C\"}\r\n",
                        id);
    fake_qmp_send(fd, text);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "2");
}

static void test_merged(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_merged, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    assert_returns(qmp, "x", 1);
    assert_returns(qmp, "y", 2);
    assert_event(qmp, "A");
    assert_event(qmp, "B");
    assert_event(qmp, "C");
    g_assert_null(rm_qmp_next_event(qmp));
}

static void serve_error(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    g_autofree char *text = g_strdup_printf(
        "{\"id\": %u, \"error\": {\"class\": \"GenericError\", \"desc\": \"No such thing\"}}\r\n",
        fake_qmp_read(fd, NULL));
    fake_qmp_send(fd, text);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "3");
}

static void test_error(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_error, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    assert_fails(qmp, "do-it", RM_REASON_QMP_ERROR, "QEMU refused do-it: No such thing");
    assert_returns(qmp, "x", 3); /* the connection is still good */
}

/* Answers the first command only once the second has come. */
static void serve_late(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    unsigned first = fake_qmp_read(fd, NULL), second = fake_qmp_read(fd, NULL);
    fake_qmp_return(fd, first, "1");
    fake_qmp_return(fd, second, "2");
    fake_qmp_read(fd, NULL);
}

static void test_late_reply(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_late, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, 1000);
    assert_fails(qmp, "slow", RM_REASON_QMP_UNREACHABLE, "did not answer slow");
    assert_returns(qmp, "x", 2);
}

static gpointer cancel_soon(gpointer cancellable)
{
    g_usleep(50000);
    g_cancellable_cancel(cancellable);
    return NULL;
}

static void test_cancel(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_late, NULL, 1);
    g_autoptr(GCancellable) cancellable = g_cancellable_new();
    g_autoptr(GError) error = NULL;
    g_autoptr(RmQmp) qmp = rm_qmp_new(server->path, LONG_MS, cancellable, &error);
    g_assert_no_error(error);
    GThread *thread = g_thread_new("cancel", cancel_soon, cancellable);
    assert_fails(qmp, "slow", RM_REASON_CANCELLED, "");
    g_thread_join(thread);
    g_assert_false(rm_qmp_wait(qmp, LONG_MS, &error)); /* ends at once */
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_CANCELLED);
    /* roll-back goes on regardless, and does not take the late reply for its own */
    rm_qmp_shield(qmp, TRUE);
    assert_returns(qmp, "x", 2);
    rm_qmp_shield(qmp, FALSE);
    assert_fails(qmp, "y", RM_REASON_CANCELLED, "");
}

static void serve_end(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    fake_qmp_read(fd, NULL);
    fake_qmp_send(fd, "{\"event\": \"SHUTDOWN\"}\r\n{\"ret");
}

static void test_end(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_end, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_autoptr(GError) error = NULL;
    assert_fails(qmp, "x", RM_REASON_GUEST_GONE, "QEMU ended");
    assert_fails(qmp, "x", RM_REASON_GUEST_GONE, "QEMU ended");
    g_assert_false(rm_qmp_receive(qmp, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_GONE);
    assert_event(qmp, "SHUTDOWN"); /* what came before the end is not lost */
}

static void serve_silence(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_read(fd, NULL); /* until the client gives up */
}

static void test_silent(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_silence, NULL, 1);
    g_autoptr(GError) error = NULL;
    g_assert_null(rm_qmp_new(server->path, SHORT_MS, NULL, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QMP_BUSY);
    g_assert_nonnull(strstr(error->message, "no greeting"));
}

static void test_backlog_full(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(NULL, NULL, 0); /* nobody accepts */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    g_autoptr(GError) error = NULL;
    int fds[4];
    strcpy(address.sun_path, server->path);
    for (size_t i = 0; i < G_N_ELEMENTS(fds); i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(fds[i], (struct sockaddr *)&address, sizeof address);
    }
    g_assert_null(rm_qmp_new(server->path, SHORT_MS, NULL, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QMP_BUSY);
    g_assert_nonnull(strstr(error->message, "accepts no connection"));
    for (size_t i = 0; i < G_N_ELEMENTS(fds); i++)
        close(fds[i]);
}

static void serve_endless(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    if (connection > 0) { /* the second time round it is sound */
        fake_qmp_return(fd, fake_qmp_read(fd, NULL), "5");
        return;
    }
    fake_qmp_read(fd, NULL);
    g_autofree char *block = g_strnfill(1 << 20, 'x');
    fake_qmp_send(fd, "{\"return\": \"");
    for (unsigned sent = 0; sent <= RM_QMP_LINE_MAX; sent += 1 << 20)
        fake_qmp_send(fd, block);
}

static void test_endless_line(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_endless, NULL, 2);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_autoptr(GError) error = NULL;
    assert_fails(qmp, "x", RM_REASON_PROTOCOL, "line of more than");
    assert_fails(qmp, "x", RM_REASON_QMP_UNREACHABLE, "broke earlier");
    g_assert_false(rm_qmp_receive(qmp, &error));
    g_clear_error(&error);
    g_assert_true(rm_qmp_reconnect(qmp, &error));
    assert_returns(qmp, "x", 5);
}

static void serve_garbage(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_send(fd, server->data);
    fake_qmp_read(fd, NULL);
}

static void test_not_qmp(void)
{
    static const char *const greetings[] = {
        "QEMU 7.2.22 monitor - type 'help' for more information\r\n(qemu) \r\n", "{\"hello\": 1}\r\n",
        "{\"QMP\": {\"version\": {}}}\r\n", "[]\r\n"};
    for (size_t i = 0; i < G_N_ELEMENTS(greetings); i++) {
        g_autoptr(FakeQmp) server = fake_qmp_new(serve_garbage, greetings[i], 1);
        g_autoptr(GError) error = NULL;
        g_assert_null(rm_qmp_new(server->path, LONG_MS, NULL, &error));
        g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QMP_UNREACHABLE);
        g_test_message("%s", error->message);
    }
}

static void serve_flood(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    for (unsigned i = 0; i <= RM_QMP_EVENTS_MAX; i++)
        fake_qmp_send(fd, "{\"event\": \"RTC_CHANGE\"}\r\n");
    fake_qmp_read(fd, NULL);
}

static void test_flood(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_flood, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    assert_fails(qmp, "x", RM_REASON_PROTOCOL, "events that nobody took");
}

static void test_unreachable(void)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(rm_qmp_new("/nonexistent/qmp", LONG_MS, NULL, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QMP_UNREACHABLE);
}

static void serve_hello(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
}

static void test_long_path(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_hello, NULL, 1);
    g_autofree char *name = g_strnfill(120, 'd');
    g_autofree char *link = g_build_filename(server->directory, name, NULL);
    g_autofree char *path = g_build_filename(link, "qmp", NULL);
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(symlink(server->directory, link), ==, 0);
    g_autoptr(RmQmp) qmp = rm_qmp_new(path, LONG_MS, NULL, &error);
    g_unlink(link);
    g_assert_no_error(error);
    g_autofree char *too_long = g_build_filename(server->directory, name, NULL);
    g_assert_null(rm_qmp_new(too_long, LONG_MS, NULL, &error)); /* a name that fits nowhere */
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QMP_UNREACHABLE);
    g_assert_nonnull(strstr(error->message, "too long"));
}

static void serve_fd(FakeQmp *server, int fd, unsigned connection)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    char first;
    struct iovec iov = {.iov_base = &first, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    fake_qmp_welcome(fd);
    g_assert_cmpint(recvmsg(fd, &message, 0), ==, 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    g_assert_nonnull(header);
    g_assert_cmpint(header->cmsg_type, ==, SCM_RIGHTS);
    int passed;
    memcpy(&passed, CMSG_DATA(header), sizeof passed);
    g_assert_cmpint(write(passed, "!", 1), ==, 1);
    close(passed);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "{}");
}

static void test_fd(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_fd, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_autoptr(GError) error = NULL;
    int ends[2];
    char c = 0;
    g_assert_cmpint(pipe(ends), ==, 0);
    rm_qmp_run_with_fd(qmp, ends[1], "getfd", NULL, &error);
    g_assert_no_error(error);
    g_assert_cmpint(read(ends[0], &c, 1), ==, 1);
    g_assert_cmpint(c, ==, '!');
    close(ends[0]);
    close(ends[1]);
}

/* Reads all three before it answers any; then a and c come again, for b was not run in its turn. */
static void serve_ahead(FakeQmp *server, int fd, unsigned connection)
{
    unsigned ids[3];
    fake_qmp_welcome(fd);
    for (int i = 0; i < 3; i++)
        ids[i] = fake_qmp_read(fd, NULL);
    for (int i = 0; i < 3; i++)
        fake_qmp_return(fd, ids[i], (const char *[]){"1", "2", "3"}[i]);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "30");
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "20");
}

static void test_ahead(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_ahead, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    rm_qmp_ahead(qmp, "a", NULL);
    rm_qmp_ahead(qmp, "b", NULL);
    rm_qmp_ahead(qmp, "c", NULL);
    assert_returns(qmp, "a", 1);
    assert_returns(qmp, "c", 30); /* not its turn: asked anew, and what was sent ahead is forgotten */
    assert_returns(qmp, "b", 20);
}

/* Replies that were read by the way are nobody's: the command is sent again, not waited for. */
static void serve_ahead_lost(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "1");
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "10");
}

static void test_ahead_lost(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_ahead_lost, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_autoptr(GError) error = NULL;
    rm_qmp_ahead(qmp, "a", NULL);
    rm_qmp_wait(qmp, LONG_MS, &error); /* takes the reply in */
    g_assert_no_error(error);
    assert_returns(qmp, "a", 10);
}

static void serve_commands(FakeQmp *server, int fd, unsigned connection)
{
    fake_qmp_welcome(fd);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "[{\"name\": \"stop\"}, {\"name\": \"cont\"}]");
}

static void test_has(void)
{
    g_autoptr(FakeQmp) server = fake_qmp_new(serve_commands, NULL, 1);
    g_autoptr(RmQmp) qmp = connect_to(server, LONG_MS);
    g_autoptr(GError) error = NULL;
    gboolean has = FALSE;
    g_assert_true(rm_qmp_has(qmp, "cont", &has, &error) && has);
    g_assert_true(rm_qmp_has(qmp, "transaction", &has, &error) && !has); /* asked once */
}

int main(int argc, char **argv)
{
    static const struct {
        const char *path;
        GTestFunc function;
    } tests[] = {
        {"split", test_split},
        {"merged", test_merged},
        {"error", test_error},
        {"late-reply", test_late_reply},
        {"cancel", test_cancel},
        {"end", test_end},
        {"silent", test_silent},
        {"backlog-full", test_backlog_full},
        {"endless-line", test_endless_line},
        {"not-qmp", test_not_qmp},
        {"flood", test_flood},
        {"unreachable", test_unreachable},
        {"long-path", test_long_path},
        {"fd", test_fd},
        {"has", test_has},
        {"ahead", test_ahead},
        {"ahead-lost", test_ahead_lost},
    };
    g_test_init(&argc, &argv, NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(tests); i++) {
        g_autofree char *path = g_strconcat("/guest/qmp/", tests[i].path, NULL);
        g_test_add_func(path, tests[i].function);
    }
    return g_test_run();
}
