/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mutual TLS: what is loaded, who is let in, and what is said about the others. */
#include "control/certificate.h"
#include "control/tls.h"

#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"

#include "certificates.h"

#include <sys/socket.h>

#define LONG_MS 20000

static Issued ca, other_ca;

static const Wish server_wish = {.names = {"dst.example.com"}, .purpose = GNUTLS_KP_TLS_WWW_SERVER};
static const Wish client_wish = {.names = {"src.example.com"}, .purpose = GNUTLS_KP_TLS_WWW_CLIENT};

static RmTls *load(const Issued *of, RmTlsEnd end, const Wish *wish)
{
    g_autoptr(GError) error = NULL;
    char *dir = creds_new(of, end == RM_TLS_DESTINATION, wish);
    RmTls *tls = rm_tls_load(dir, end, &error);
    g_assert_no_error(error);
    folder_free(dir);
    return tls;
}

/* ---- loading ---- */

static void expect_unloadable(const char *dir, RmTlsEnd end, const char *file, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmTls) tls = rm_tls_load(dir, end, &error);
    g_assert_null(tls);
    g_assert_error(error, RM_ERROR, RM_REASON_TLS);
    g_test_message("%s", error->message);
    g_assert_nonnull(strstr(error->message, file));
    g_assert_nonnull(strstr(error->message, text));
}

static void expect_unfit(const Issued *of, const Wish *wish, const char *text)
{
    char *dir = creds_new(of, TRUE, wish);
    write_certificate(dir, "ca-cert.pem", &ca);
    expect_unloadable(dir, RM_TLS_DESTINATION, "server-cert.pem", text);
    folder_free(dir);
}

static void test_load_unfit(void)
{
    Wish wish = server_wish;
    expect_unfit(&other_ca, &wish, "is not signed by");
    wish.from = -2 * DAY, wish.to = -DAY;
    expect_unfit(&ca, &wish, "has expired on 2");
    wish.from = DAY, wish.to = 2 * DAY;
    expect_unfit(&ca, &wish, "is valid from 2");
    wish = client_wish;
    expect_unfit(&ca, &wish, "serverAuth");
}

static void test_load_ca_expired(void)
{
    const Wish old = {.from = -2 * DAY, .to = -DAY};
    Issued old_ca = issue(&old, NULL);
    char *dir = creds_new(&old_ca, TRUE, &server_wish);
    expect_unloadable(dir, RM_TLS_DESTINATION, "ca-cert.pem", "has expired on 2");
    folder_free(dir);
    issued_clear(&old_ca);
}

/* One that may not sign others is no CA, even if it is in ca-cert.pem. */
static void test_load_no_ca(void)
{
    Issued host = issue(&server_wish, &ca);
    char *dir = creds_new(&host, TRUE, &server_wish);
    expect_unloadable(dir, RM_TLS_DESTINATION, "server-cert.pem", "is not");
    folder_free(dir);
    issued_clear(&host);
}

static void test_load_files(void)
{
    static const char *const names[] = {"ca-cert.pem", "server-cert.pem", "server-key.pem"};
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        char *dir = creds_new(&ca, TRUE, &server_wish);
        g_autofree char *path = g_build_filename(dir, names[i], NULL);
        g_assert_true(g_file_set_contents(path, "rubbish\n", -1, NULL));
        expect_unloadable(dir, RM_TLS_DESTINATION, names[i], ": ");
        g_unlink(path);
        expect_unloadable(dir, RM_TLS_DESTINATION, names[i], "make-certs.sh");
        folder_free(dir);
    }
    expect_unloadable("/nonexistent/pki", RM_TLS_SOURCE, "/nonexistent/pki", "No such file");
    expect_unloadable("/dev/null", RM_TLS_SOURCE, "/dev/null", "no folder");
    char *dir = creds_new(&ca, TRUE, &server_wish);
    expect_unloadable(dir, RM_TLS_SOURCE, "client-cert.pem", "client-key.pem"); /* a server's only */
    folder_free(dir);
}

static void test_load_crl(void)
{
    char *dir = creds_new(&ca, TRUE, &server_wish);
    g_autofree char *path = g_build_filename(dir, "ca-crl.pem", NULL);
    g_assert_true(g_file_set_contents(path, "", 0, NULL));
    expect_unloadable(dir, RM_TLS_DESTINATION, "ca-crl.pem", "--tls-allow");
    folder_free(dir);
}

static void test_load_key(void)
{
    char *dir = creds_new(&ca, TRUE, &server_wish);
    g_autofree char *path = g_build_filename(dir, "server-key.pem", NULL);
    Issued stranger = issue(&server_wish, &ca);
    gnutls_datum_t pem;

    g_assert_cmpint(g_chmod(path, 0604), ==, 0);
    g_test_expect_message("rdmamig", G_LOG_LEVEL_WARNING, "*server-key.pem: others can read*604*chmod 600*");
    g_autoptr(RmTls) tls = rm_tls_load(dir, RM_TLS_DESTINATION, NULL);
    g_test_assert_expected_messages();
    g_assert_nonnull(tls);

    write_key(dir, "server-key.pem", &stranger);
    expect_unloadable(dir, RM_TLS_DESTINATION, "server-key.pem", "key of another certificate");
    g_assert_cmpint(gnutls_x509_privkey_export2_pkcs8(stranger.key, GNUTLS_X509_FMT_PEM, "secret",
                                                      GNUTLS_PKCS_PBES2_AES_256, &pem),
                    ==, 0);
    write_pem(dir, "server-key.pem", &pem, 0600);
    gnutls_free(pem.data);
    expect_unloadable(dir, RM_TLS_DESTINATION, "server-key.pem", "password");
    issued_clear(&stranger);
    folder_free(dir);
}

static void test_load_no_backend(void)
{
    if (g_test_subprocess()) {
        expect_unloadable("/", RM_TLS_DESTINATION, "", "install the package glib-networking");
        return;
    }
    g_setenv("GIO_USE_TLS", "dummy", TRUE);
    g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
    g_unsetenv("GIO_USE_TLS");
    g_test_trap_assert_passed();
}

/* ---- names ---- */

static RmCertificate *certificate_of(const Wish *wish)
{
    Issued issued = issue(wish, &ca);
    gnutls_datum_t pem;
    g_autoptr(GError) error = NULL;
    gnutls_x509_crt_export2(issued.crt, GNUTLS_X509_FMT_PEM, &pem);
    g_autoptr(GTlsCertificate) certificate =
        g_tls_certificate_new_from_pem((char *)pem.data, pem.size, &error);
    g_assert_no_error(error);
    gnutls_free(pem.data);
    issued_clear(&issued);
    RmCertificate *read = rm_certificate_new(certificate, &error);
    g_assert_no_error(error);
    return read;
}

static void test_names(void)
{
    static const struct {
        Wish wish;
        const char *host;
        gboolean is;
    } cases[] = {
        {{.names = {"a.example.com"}}, "a.example.com", TRUE},
        {{.names = {"a.example.com"}}, "A.Example.COM", TRUE},
        {{.names = {"a.example.com"}}, "a.example.com.", TRUE},
        {{.names = {"a.example.com"}}, "b.example.com", FALSE},
        {{.names = {"a.example.com"}}, "a.example.com.evil.org", FALSE},
        {{.names = {"b.example.com", "a.example.com"}}, "a.example.com", TRUE},
        {{.names = {"*.example.com"}}, "a.example.com", TRUE},
        {{.names = {"*.example.com"}}, "a.b.example.com", FALSE},
        {{.names = {"*.example.com"}}, "example.com", FALSE},
        {{.names = {"*.example.com"}}, ".example.com", FALSE},
        {{.names = {"*.0.0.1"}}, "127.0.0.1", FALSE},
        {{.address = "10.1.2.3"}, "10.1.2.3", TRUE},
        {{.address = "10.1.2.3"}, "10.1.2.4", FALSE},
        {{.address = "fe80::1"}, "fe80::1", TRUE},
        {{.address = "fe80::1"}, "fe80:0:0::1%eth0", TRUE},
        {{.address = "fe80::1"}, "fe80::2%eth0", FALSE},
        {{.common_name = "a.example.com"}, "a.example.com", TRUE},
        {{.common_name = "a.example.com", .names = {"b.example.com"}}, "a.example.com", FALSE},
        {{.common_name = "a.example.com", .address = "10.1.2.3"}, "a.example.com", FALSE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(RmCertificate) certificate = certificate_of(&cases[i].wish);
        g_test_message("case %u: %s", i, cases[i].host);
        g_assert_cmpint(rm_certificate_is_of(certificate, cases[i].host), ==, cases[i].is);
    }
}

static void test_allowed(void)
{
    static const struct {
        Wish wish;
        const char *allowed[3];
        gboolean is;
    } cases[] = {
        {{.names = {"a.example.com"}}, {"a.example.com"}, TRUE},
        {{.names = {"a.example.com"}}, {"b.example.com", "A.example.com"}, TRUE},
        {{.names = {"a.example.com"}}, {"b.example.com", "xa.example.com"}, FALSE},
        {{.names = {"a.example.com"}}, {NULL}, FALSE},
        {{.names = {"x.org", "a.example.com"}}, {"*.example.com"}, TRUE},
        {{.names = {"a.b.example.com"}}, {"*.example.com"}, FALSE},
        {{.names = {"example.com"}}, {"*.example.com"}, FALSE},
        {{.names = {"aexample.com"}}, {"*.example.com"}, FALSE},
        {{.names = {"*.example.com"}}, {"a.example.com"}, FALSE},
        {{.names = {"*.example.com"}}, {"*.example.com"}, FALSE},
        {{.address = "10.1.2.3"}, {"10.1.2.3"}, TRUE},
        {{.address = "fe80::1"}, {"fe80:0::1"}, TRUE},
        {{.address = "10.0.0.1"}, {"*.0.0.1"}, FALSE},
        {{.common_name = "a.example.com"}, {"a.example.com"}, TRUE},
        {{.common_name = "a.example.com", .names = {"b.example.com"}}, {"a.example.com"}, FALSE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(RmCertificate) certificate = certificate_of(&cases[i].wish);
        g_test_message("case %u", i);
        g_assert_cmpint(rm_certificate_is_allowed(certificate, (char *const *)cases[i].allowed), ==,
                        cases[i].is);
    }
}

/* A subjectAltName, in DER, since GnuTLS makes no such one: what is behind the NUL counts. */
static void test_nul_in_name(void)
{
    static const char san[] = "\x30\x17\x82\x15"
                              "a.example.com\0evil.xy";
    Issued issued = issue(&(Wish){0}, &ca);
    gnutls_x509_crt_set_extension_by_oid(issued.crt, "2.5.29.17", san, sizeof(san) - 1, 0);
    gnutls_x509_crt_sign2(issued.crt, ca.crt, ca.key, GNUTLS_DIG_SHA256, 0);
    gnutls_datum_t pem;
    gnutls_x509_crt_export2(issued.crt, GNUTLS_X509_FMT_PEM, &pem);
    g_autoptr(GTlsCertificate) certificate = g_tls_certificate_new_from_pem((char *)pem.data, pem.size, NULL);
    g_autoptr(RmCertificate) read = rm_certificate_new(certificate, NULL);
    g_assert_nonnull(read);
    g_assert_false(rm_certificate_is_of(read, "a.example.com"));
    g_assert_false(rm_certificate_is_of(read, "host")); /* its common name: it has a subjectAltName */
    gnutls_free(pem.data);
    issued_clear(&issued);
}

/* ---- handshakes ---- */

typedef struct {
    RmTls *tls; /* borrowed */
    const char *host;
    const char *allowed[2];
    gboolean any;
    unsigned timeout_ms;
    GSocketConnection *connection;
    GIOStream *stream;
    GError *error;
} End;

static gpointer run_server(gpointer data)
{
    End *this = data;
    this->stream = rm_tls_accept(this->tls, this->connection, this->any ? NULL : (char *const *)this->allowed,
                                 this->timeout_ms, NULL, &this->error);
    return NULL;
}

static GSocketConnection *connection_on(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    return g_socket_connection_factory_create_connection(socket);
}

static void connect_pair(GSocketConnection **ret_one, GSocketConnection **ret_other)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    *ret_one = connection_on(fds[0]);
    *ret_other = connection_on(fds[1]);
}

static void shake(End *server, End *client)
{
    connect_pair(&server->connection, &client->connection);
    server->timeout_ms = LONG_MS;
    GThread *thread = g_thread_new("server", run_server, server);
    client->stream =
        rm_tls_connect(client->tls, client->connection, client->host, LONG_MS, NULL, &client->error);
    if (client->stream == NULL) /* as the caller would: the other end hears of it */
        g_io_stream_close(G_IO_STREAM(client->connection), NULL, NULL);
    g_thread_join(thread);
    if (server->error != NULL)
        g_test_message("server: %s", server->error->message);
    if (client->error != NULL)
        g_test_message("client: %s", client->error->message);
}

static void end_clear(End *end)
{
    g_clear_object(&end->stream);
    g_clear_object(&end->connection);
    g_clear_error(&end->error);
}

static void expect(const GError *error, const char *text)
{
    g_assert_error(error, RM_ERROR, RM_REASON_TLS);
    g_assert_nonnull(strstr(error->message, text));
}

static void test_good(void)
{
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    End server = {.tls = of_server, .allowed = {"*.example.com"}};
    End client = {.tls = of_client, .host = "dst.example.com"};
    shake(&server, &client);
    g_assert_no_error(server.error);
    g_assert_no_error(client.error);
    g_autofree char *name = rm_tls_peer_name(server.stream),
                    *none = rm_tls_peer_name(G_IO_STREAM(server.connection));
    g_assert_cmpstr(name, ==, "src.example.com");
    g_assert_null(none);
    g_assert_true(rm_tls_socket(server.stream) == g_socket_connection_get_socket(server.connection));
    end_clear(&server);
    end_clear(&client);
}

static void test_no_usage(void)
{
    Wish wish = server_wish, other = client_wish;
    wish.purpose = other.purpose = NULL;
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &other);
    End server = {.tls = of_server, .any = TRUE}, client = {.tls = of_client, .host = "dst.example.com"};
    shake(&server, &client);
    g_assert_nonnull(server.stream);
    g_assert_nonnull(client.stream);
    end_clear(&server);
    end_clear(&client);
}

/* ---- strangers: GIO without our checks ---- */

static gboolean accept_any(GTlsConnection *tls, GTlsCertificate *peer, GTlsCertificateFlags flags,
                           gpointer data)
{
    return TRUE;
}

typedef struct {
    GTlsCertificate *certificate;
    GSocketConnection *connection;
    gboolean server;
} Stranger;

/* Shakes hands, and takes what comes until the other end has had enough. */
static gpointer run_stranger(gpointer data)
{
    Stranger *this = data;
    g_autoptr(GIOStream) stream =
        this->server ? g_tls_server_connection_new(G_IO_STREAM(this->connection), this->certificate, NULL)
                     : g_tls_client_connection_new(G_IO_STREAM(this->connection), NULL, NULL);
    if (!this->server && this->certificate != NULL)
        g_tls_connection_set_certificate(G_TLS_CONNECTION(stream), this->certificate);
    g_signal_connect(stream, "accept-certificate", G_CALLBACK(accept_any), NULL);
    if (this->server)
        g_object_set(stream, "authentication-mode", G_TLS_AUTHENTICATION_REQUESTED, NULL);
    char byte;
    if (g_tls_connection_handshake(G_TLS_CONNECTION(stream), NULL, NULL))
        g_input_stream_read(g_io_stream_get_input_stream(stream), &byte, 1, NULL, NULL);
    g_io_stream_close(stream, NULL, NULL);
    return NULL;
}

/* Takes `certificate`, which may be NULL. */
static void expect_turned_away(GTlsCertificate *certificate, const char *allowed, const char *text)
{
    g_autoptr(RmTls) tls = load(&ca, RM_TLS_DESTINATION, &server_wish);
    End server = {.tls = tls, .any = allowed == NULL, .allowed = {allowed}, .timeout_ms = LONG_MS};
    Stranger stranger = {.certificate = certificate};
    connect_pair(&server.connection, &stranger.connection);
    GThread *thread = g_thread_new("stranger", run_stranger, &stranger);
    run_server(&server);
    g_assert_null(server.stream);
    g_test_message("%s", server.error->message);
    g_io_stream_close(G_IO_STREAM(server.connection), NULL, NULL);
    g_thread_join(thread);
    expect(server.error, text);
    end_clear(&server);
    g_object_unref(stranger.connection);
    g_clear_object(&certificate);
}

static void test_bad_source(void)
{
    Wish wish = client_wish;
    expect_turned_away(NULL, NULL, "the source showed no certificate");
    expect_turned_away(certificate_with_key(&other_ca, &wish), NULL,
                       "the source's certificate (names src.example.com) is not signed by");
    expect_turned_away(certificate_with_key(&ca, &wish), "dst.example.com", "--tls-allow has none of them");
    expect_turned_away(certificate_with_key(&ca, &server_wish), NULL,
                       "(names dst.example.com) is not meant for a source");
    wish.from = -2 * DAY, wish.to = -DAY;
    expect_turned_away(certificate_with_key(&ca, &wish), NULL, "(names src.example.com) has expired on 2");
    wish.from = DAY, wish.to = 2 * DAY;
    expect_turned_away(certificate_with_key(&ca, &wish), NULL, "is valid from 2");
}

static void expect_left(GTlsCertificate *certificate, const char *host, const char *text)
{
    g_autoptr(RmTls) tls = load(&ca, RM_TLS_SOURCE, &client_wish);
    End client = {.tls = tls};
    Stranger stranger = {.certificate = certificate, .server = TRUE};
    connect_pair(&client.connection, &stranger.connection);
    GThread *thread = g_thread_new("stranger", run_stranger, &stranger);
    client.stream = rm_tls_connect(tls, client.connection, host, LONG_MS, NULL, &client.error);
    g_assert_null(client.stream);
    g_test_message("%s", client.error->message);
    g_io_stream_close(G_IO_STREAM(client.connection), NULL, NULL);
    g_thread_join(thread);
    expect(client.error, text);
    end_clear(&client);
    g_object_unref(stranger.connection);
    g_object_unref(certificate);
}

static void test_bad_destination(void)
{
    const char *host = "dst.example.com";
    Wish wish = server_wish;
    expect_left(certificate_with_key(&other_ca, &wish), host, "(names dst.example.com) is not signed by");
    expect_left(certificate_with_key(&ca, &wish), "10.0.0.1", "has names dst.example.com, and not 10.0.0.1");
    expect_left(certificate_with_key(&ca, &client_wish), "src.example.com", "is not meant for a destination");
    wish.from = -2 * DAY, wish.to = -DAY;
    expect_left(certificate_with_key(&ca, &wish), host, "has expired on 2");
}

/* ---- both ends ours ---- */

static void test_same_peer(void)
{
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    g_autoptr(RmTls) of_other = load(&ca, RM_TLS_SOURCE, &client_wish); /* the same names, another key */
    RmTls *const of[] = {of_client, of_client, of_other};
    End servers[3], clients[3];
    for (guint i = 0; i < G_N_ELEMENTS(of); i++) {
        servers[i] = (End){.tls = of_server, .any = TRUE};
        clients[i] = (End){.tls = of[i], .host = "dst.example.com"};
        shake(&servers[i], &clients[i]);
        g_assert_nonnull(servers[i].stream);
    }
    GIOStream *plain = G_IO_STREAM(servers[0].connection), *other_plain = G_IO_STREAM(servers[1].connection);
    g_assert_true(rm_tls_same_peer(servers[0].stream, servers[1].stream));
    g_assert_false(rm_tls_same_peer(servers[0].stream, servers[2].stream));
    g_assert_false(rm_tls_same_peer(servers[0].stream, plain));
    g_assert_false(rm_tls_same_peer(plain, servers[0].stream));
    g_assert_true(rm_tls_same_peer(plain, other_plain));
    for (guint i = 0; i < G_N_ELEMENTS(of); i++) {
        end_clear(&servers[i]);
        end_clear(&clients[i]);
    }
}

/* With TLS 1.3 the source's handshake is over before it is turned away: its first read says so. */
static void test_verdict(void)
{
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    End server = {.tls = of_server, .allowed = {"another.example.com"}};
    End client = {.tls = of_client, .host = "dst.example.com"};
    shake(&server, &client);
    expect(server.error, "has names src.example.com: --tls-allow has none of them");
    g_io_stream_close(G_IO_STREAM(server.connection), NULL, NULL);
    if (client.stream != NULL) {
        g_autoptr(RmControl) control = rm_control_new(client.stream, NULL, &(RmControlParams){0});
        g_assert_false(rm_control_request(control, rm_json_message("hello"), 0, NULL, NULL, &client.error));
        g_test_message("%s", client.error->message);
        expect(client.error, "did not accept this host's certificate (names src.example.com)");
    } else {
        expect(client.error, "the TLS handshake failed"); /* TLS 1.2 */
    }
    end_clear(&server);
    end_clear(&client);
}

/* ---- time ---- */

static void test_silent_peer(void)
{
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    for (int server = 0; server < 2; server++) {
        g_autoptr(GSocketConnection) one = NULL, other = NULL;
        g_autoptr(GError) error = NULL;
        connect_pair(&one, &other);
        g_assert_null(server ? rm_tls_accept(of_server, one, NULL, 200, NULL, &error)
                             : rm_tls_connect(of_client, one, "x", 200, NULL, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    }
}

/* Each byte in time for a limit on the silence, and all of them never in time. */
static gpointer run_dribble(gpointer data)
{
    static const guint8 hello[] = {0x16, 0x03, 0x01, 0x02, 0x00};
    for (guint i = 0; i < 100; i++) {
        guint8 byte = i < sizeof(hello) ? hello[i] : 1;
        if (!g_output_stream_write_all(g_io_stream_get_output_stream(data), &byte, 1, NULL, NULL, NULL))
            break;
        g_usleep(50 * 1000);
    }
    return NULL;
}

static void test_slow_peer(void)
{
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(GSocketConnection) one = NULL, other = NULL;
    g_autoptr(GError) error = NULL;
    connect_pair(&one, &other);
    GThread *thread = g_thread_new("dribble", run_dribble, other);
    g_assert_null(rm_tls_accept(of_server, one, NULL, 400, NULL, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
    g_socket_shutdown(g_socket_connection_get_socket(one), TRUE, TRUE, NULL);
    g_thread_join(thread);
}

static gpointer run_cancel(gpointer data)
{
    g_usleep(200 * 1000);
    g_cancellable_cancel(data);
    return NULL;
}

static void test_cancel(void)
{
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    g_autoptr(GCancellable) cancel = g_cancellable_new();
    g_autoptr(GSocketConnection) one = NULL, other = NULL;
    connect_pair(&one, &other);
    GThread *thread = g_thread_new("cancel", run_cancel, cancel);
    for (int i = 0; i < 2; i++) { /* the second time it is cancelled already */
        g_autoptr(GError) error = NULL;
        g_assert_null(rm_tls_connect(of_client, one, "x", G_MAXINT, cancel, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
    }
    g_thread_join(thread);
}

/* Clear text to an end that awaits TLS, and the other way round. */
static void test_clear_text(void)
{
    static const char clear[] = "{\"type\":\"error\",\"reason\":\"tls\"}\n";
    g_autoptr(RmTls) of_server = load(&ca, RM_TLS_DESTINATION, &server_wish);
    g_autoptr(RmTls) of_client = load(&ca, RM_TLS_SOURCE, &client_wish);
    for (int server = 0; server < 2; server++) {
        g_autoptr(GSocketConnection) one = NULL, other = NULL;
        g_autoptr(GError) error = NULL;
        connect_pair(&one, &other);
        g_output_stream_write_all(g_io_stream_get_output_stream(G_IO_STREAM(other)), clear, sizeof(clear) - 1,
                                  NULL, NULL, NULL);
        g_assert_null(server ? rm_tls_accept(of_server, one, NULL, LONG_MS, NULL, &error)
                             : rm_tls_connect(of_client, one, "x", LONG_MS, NULL, &error));
        g_test_message("%s", error->message);
        expect(error, server ? "TLS handshake" : "may have no --tls-creds");
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    gboolean dummy = g_strcmp0(g_getenv("GIO_USE_TLS"), "dummy") == 0;
    if (!dummy && !g_tls_backend_supports_tls(g_tls_backend_get_default())) {
        g_print("1..0 # SKIP no TLS backend: glib-networking is not installed\n");
        return 0;
    }
    ca = issue(&(Wish){.common_name = "CA"}, NULL);
    other_ca = issue(&(Wish){.common_name = "another CA"}, NULL);
    g_test_add_func("/tls/load/unfit", test_load_unfit);
    g_test_add_func("/tls/load/ca-expired", test_load_ca_expired);
    g_test_add_func("/tls/load/no-ca", test_load_no_ca);
    g_test_add_func("/tls/load/files", test_load_files);
    g_test_add_func("/tls/load/crl", test_load_crl);
    g_test_add_func("/tls/load/key", test_load_key);
    g_test_add_func("/tls/load/no-backend", test_load_no_backend);
    g_test_add_func("/tls/names", test_names);
    g_test_add_func("/tls/allowed", test_allowed);
    g_test_add_func("/tls/nul-in-name", test_nul_in_name);
    g_test_add_func("/tls/good", test_good);
    g_test_add_func("/tls/no-usage", test_no_usage);
    g_test_add_func("/tls/bad-source", test_bad_source);
    g_test_add_func("/tls/bad-destination", test_bad_destination);
    g_test_add_func("/tls/same-peer", test_same_peer);
    g_test_add_func("/tls/verdict", test_verdict);
    g_test_add_func("/tls/silent-peer", test_silent_peer);
    g_test_add_func("/tls/slow-peer", test_slow_peer);
    g_test_add_func("/tls/cancel", test_cancel);
    g_test_add_func("/tls/clear-text", test_clear_text);
    int status = g_test_run();
    issued_clear(&ca);
    issued_clear(&other_ca);
    return status;
}
