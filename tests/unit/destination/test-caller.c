/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which connections are taken, and which data channels belong to a session. */
#include "destination/caller.h"

#include "common/reason.h"
#include "tests/unit/control/certificates.h"
#include "transport/tcp/wire.h"

#include <sys/socket.h>

#define LONG_MS 20000

static Issued ca;
static const Wish server_wish = {.names = {"dst.example.com"}, .purpose = GNUTLS_KP_TLS_WWW_SERVER};
static const Wish client_wish = {.names = {"src.example.com"}, .purpose = GNUTLS_KP_TLS_WWW_CLIENT};

/* ---- a session, and what is handed over to it ---- */

static unsigned adopted;

static gboolean adopt(RmRx *rx, GIOStream *stream, unsigned channel, GError **error)
{
    adopted++;
    return TRUE;
}

static const RmRxOps rx_ops = {.name = "counts", .adopt = adopt};

typedef struct {
    char *creds;
    RmListenOptions options;
    RmDaemon *daemon;
    RmTls *source, *other; /* of two hosts with the same names */
    RmRx rx;
    RmDaemonSession session;
} Rig;

static RmTls *load_source(void)
{
    g_autoptr(GError) error = NULL;
    char *dir = creds_new(&ca, FALSE, &client_wish);
    RmTls *tls = rm_tls_load(dir, RM_TLS_SOURCE, &error);
    g_assert_no_error(error);
    folder_free(dir);
    return tls;
}

static void rig_init(Rig *rig, gboolean tls)
{
    g_autoptr(GError) error = NULL;
    *rig = (Rig){.rx = {.ops = &rx_ops}, .source = load_source(), .other = load_source()};
    rig->creds = creds_new(&ca, TRUE, &server_wish);
    rig->options.common.tls_creds = tls ? rig->creds : NULL;
    rig->options.max_sessions = 1;
    rig->daemon = rm_daemon_new(&rig->options);
    g_assert_true(rm_daemon_reload(rig->daemon, rig->options.tls_allow, &error));
    rig->session = (RmDaemonSession){.id = (char *)"one", .token = {1, 2, 3}};
    rig->session.pass = rm_gate_enter(rig->daemon->gate, NULL, STDIN_FILENO);
    g_assert_true(rm_daemon_add(rig->daemon, &rig->session, &error));
    rm_daemon_set_rx(rig->daemon, &rig->session, &rig->rx);
    adopted = 0;
}

static void rig_clear(Rig *rig)
{
    rm_daemon_remove(rig->daemon, &rig->session);
    rm_pass_leave(rig->session.pass);
    rm_daemon_free(rig->daemon);
    g_clear_object(&rig->session.stream);
    rm_tls_unref(rig->source);
    rm_tls_unref(rig->other);
    folder_free(rig->creds);
}

/* ---- callers ---- */

static GSocketConnection *connection_on(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    return g_socket_connection_factory_create_connection(socket);
}

typedef struct {
    RmTls *tls; /* NULL: in clear */
    const void *first;
    gsize length;
    GSocketConnection *connection;
    GString *answer;
} Call;

static gpointer run_call(gpointer data)
{
    Call *this = data;
    g_autoptr(GError) error = NULL;
    g_autoptr(GIOStream) stream =
        this->tls == NULL
            ? G_IO_STREAM(g_object_ref(this->connection))
            : rm_tls_connect(this->tls, this->connection, "dst.example.com", LONG_MS, NULL, &error);
    char byte;
    if (stream != NULL) {
        g_output_stream_write_all(g_io_stream_get_output_stream(stream), this->first, this->length, NULL,
                                  NULL, NULL);
        while (g_input_stream_read(g_io_stream_get_input_stream(stream), &byte, 1, NULL, NULL) == 1)
            g_string_append_c(this->answer, byte);
        g_io_stream_close(stream, NULL, NULL);
    }
    return NULL;
}

/* Calls, says `first`, and is served to the end. Returns what came back; caller frees. */
static char *call(Rig *rig, RmTls *tls, const void *first, gsize length)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    Call it = {.tls = tls, .first = first, .length = length, .answer = g_string_new(NULL)};
    it.connection = connection_on(fds[0]);
    GSocketConnection *served = connection_on(fds[1]);
    GThread *thread = g_thread_new("call", run_call, &it);
    RmPass *pass = rm_gate_enter(rig->daemon->gate, NULL, fds[1]);
    rm_caller_serve(rig->daemon, served, pass);
    rm_pass_leave(pass);
    g_io_stream_close(G_IO_STREAM(served), NULL, NULL);
    g_object_unref(served);
    g_thread_join(thread);
    g_object_unref(it.connection);
    return g_string_free(it.answer, FALSE);
}

static void call_for_data(Rig *rig, RmTls *tls)
{
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble preamble = {.channel = 0};
    memcpy(preamble.token, rig->session.token, sizeof preamble.token);
    rm_tcp_preamble_format(&preamble, bytes);
    g_free(call(rig, tls, bytes, sizeof bytes));
}

static gpointer run_control(gpointer data)
{
    Call *this = data;
    return rm_tls_connect(this->tls, this->connection, "dst.example.com", LONG_MS, NULL, NULL);
}

/* The session's control connection, as the source showed itself there. */
static void take_control(Rig *rig)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    g_autoptr(GSocketConnection) one = connection_on(fds[0]), other = connection_on(fds[1]);
    Call it = {.tls = rig->source, .connection = one};
    GThread *thread = g_thread_new("control", run_control, &it);
    g_autoptr(RmAccess) access = rm_daemon_access(rig->daemon);
    rig->session.stream = rm_tls_accept(access->tls, other, NULL, LONG_MS, NULL, NULL);
    g_assert_nonnull(rig->session.stream);
    g_object_unref(g_thread_join(thread));
}

/* ---- cases ---- */

static void expect_warning(const char *pattern)
{
    g_test_expect_message("rdmamig", G_LOG_LEVEL_WARNING, pattern);
}

static void test_data_of_another(void)
{
    Rig rig;
    rig_init(&rig, TRUE);
    take_control(&rig);
    call_for_data(&rig, rig.source);
    g_assert_cmpuint(adopted, ==, 1);
    expect_warning("*(src.example.com): *a data channel of session one with another certificate*");
    call_for_data(&rig, rig.other);
    g_assert_cmpuint(adopted, ==, 1);
    expect_warning("*a data channel of session one in clear text was turned away*");
    call_for_data(&rig, NULL);
    g_test_assert_expected_messages();
    g_assert_cmpuint(adopted, ==, 1);
    rig_clear(&rig);
}

/* Agreed on: in clear by the token alone, and inside TLS by the certificate as ever. */
static void test_plain_data(void)
{
    Rig rig;
    rig_init(&rig, TRUE);
    take_control(&rig);
    rig.session.plain_data = TRUE;
    call_for_data(&rig, NULL);
    g_assert_cmpuint(adopted, ==, 1);
    expect_warning("*with another certificate*");
    call_for_data(&rig, rig.other);
    g_test_assert_expected_messages();
    g_assert_cmpuint(adopted, ==, 1);
    rig_clear(&rig);
}

static void test_wrong_token(void)
{
    Rig rig;
    rig_init(&rig, TRUE);
    take_control(&rig);
    uint8_t token = rig.session.token[0]++;
    expect_warning("*without a valid token*");
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES];
    RmTcpPreamble preamble = {.token = {token, 2, 3}};
    rm_tcp_preamble_format(&preamble, bytes);
    g_free(call(&rig, rig.source, bytes, sizeof bytes));
    g_test_assert_expected_messages();
    g_assert_cmpuint(adopted, ==, 0);
    rig_clear(&rig);
}

static void test_clear_control(void)
{
    static const char hello[] = "{\"type\":\"hello\",\"id\":1}\n{\"type\":\"keep-alive\"}\n";
    Rig rig;
    rig_init(&rig, TRUE);
    expect_warning("*refused: tls: this destination takes TLS only*");
    g_autofree char *answer = call(&rig, NULL, hello, sizeof hello - 1);
    g_test_assert_expected_messages();
    g_assert_true(
        g_str_has_prefix(answer, "{\"type\":\"error\",\"reason\":\"tls\",\"detail\":\"this destination takes "
                                 "TLS only: give --tls-creds"));
    g_assert_true(g_str_has_suffix(answer, "\n"));
    rig_clear(&rig);
}

static void test_no_tls_here(void)
{
    Rig rig;
    rig_init(&rig, FALSE);
    expect_warning("*refused: tls: a TLS connection came, but there is no --tls-creds");
    g_autofree char *answer = call(&rig, rig.source, "{", 1);
    g_test_assert_expected_messages();
    g_assert_cmpstr(answer, ==, "");
    call_for_data(&rig, NULL); /* of a session in clear */
    g_assert_cmpuint(adopted, ==, 1);
    rig_clear(&rig);
}

/* What is loaded stays if there is nothing to replace it with. */
static void test_reload(void)
{
    Rig rig;
    g_autoptr(GError) error = NULL;
    rig_init(&rig, TRUE);
    g_autoptr(RmAccess) before = rm_daemon_access(rig.daemon);
    g_autofree char *path = g_build_filename(rig.creds, "server-key.pem", NULL);
    g_assert_true(g_file_set_contents(path, "rubbish", -1, NULL));
    g_assert_false(rm_daemon_reload(rig.daemon, rig.options.tls_allow, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_TLS);
    g_autoptr(RmAccess) after = rm_daemon_access(rig.daemon);
    g_assert_true(after == before);

    Issued own = issue(&server_wish, &ca);
    write_certificate(rig.creds, "server-cert.pem", &own);
    write_key(rig.creds, "server-key.pem", &own);
    issued_clear(&own);
    g_assert_true(rm_daemon_reload(rig.daemon, rig.options.tls_allow, NULL));
    g_autoptr(RmAccess) renewed = rm_daemon_access(rig.daemon);
    g_assert_true(renewed != before);
    rig_clear(&rig);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    if (!g_tls_backend_supports_tls(g_tls_backend_get_default())) {
        g_print("1..0 # SKIP no TLS backend: glib-networking is not installed\n");
        return 0;
    }
    ca = issue(&(Wish){0}, NULL);
    g_test_add_func("/caller/data-of-another", test_data_of_another);
    g_test_add_func("/caller/plain-data", test_plain_data);
    g_test_add_func("/caller/wrong-token", test_wrong_token);
    g_test_add_func("/caller/clear-control", test_clear_control);
    g_test_add_func("/caller/no-tls-here", test_no_tls_here);
    g_test_add_func("/caller/reload", test_reload);
    int status = g_test_run();
    issued_clear(&ca);
    return status;
}
