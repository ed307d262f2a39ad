/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control channel over TLS: the same bounds hold, with another layer that could wait. */
#include "common/autoptr.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"

#include "certificates.h"

#include <sys/socket.h>

#define BOUND_US (30 * G_USEC_PER_SEC)

static GTlsCertificate *certificate;

static gboolean accept_any(GTlsConnection *tls, GTlsCertificate *peer, GTlsCertificateFlags flags,
                           gpointer data)
{
    return TRUE;
}

static gpointer run_handshake(gpointer data)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(g_tls_connection_handshake(data, NULL, &error));
    g_assert_no_error(error);
    return NULL;
}

static GSocketConnection *connection_on(int fd)
{
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, NULL);
    return g_socket_connection_factory_create_connection(socket);
}

static void tls_pair(GIOStream **ret_server, GIOStream **ret_client)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    g_autoptr(GSocketConnection) server_base = connection_on(fds[0]), client_base = connection_on(fds[1]);
    *ret_server = g_tls_server_connection_new(G_IO_STREAM(server_base), certificate, NULL);
    *ret_client = g_tls_client_connection_new(G_IO_STREAM(client_base), NULL, NULL);
    g_signal_connect(*ret_client, "accept-certificate", G_CALLBACK(accept_any), NULL);
    GThread *thread = g_thread_new("handshake", run_handshake, *ret_server);
    run_handshake(*ret_client);
    g_thread_join(thread);
}

static gpointer run_echo(gpointer data)
{
    rm_autojson request = NULL;
    while (rm_control_receive(data, 0, NULL, &request, NULL)) {
        if (!rm_control_reply(data, request, rm_json_message("echo"), NULL))
            break;
        rm_json_clear(&request);
    }
    return NULL;
}

static gpointer run_asker(gpointer data)
{
    for (int i = 0; i < 100; i++) {
        g_autofree char *filling = g_strnfill(g_random_int_range(1, 40000), 'x');
        json_object *message = rm_json_message("ask");
        rm_json_add_string(message, "s", filling);
        g_autoptr(GError) error = NULL;
        g_assert_true(rm_control_request(data, message, 0, NULL, NULL, &error));
    }
    return NULL;
}

static void test_requests(void)
{
    g_autoptr(GIOStream) server = NULL, client = NULL;
    tls_pair(&server, &client);
    /* keep-alives in between as often as they can come */
    const RmControlParams params = {.keepalive_ms = 20, .timeout_ms = 60000};
    RmControl *a = rm_control_new(server, NULL, &params), *b = rm_control_new(client, NULL, &params);
    GThread *threads[] = {g_thread_new("asker", run_asker, a), g_thread_new("asker", run_asker, a),
                          g_thread_new("asker", run_asker, b)};
    GThread *echo[] = {g_thread_new("echo", run_echo, a), g_thread_new("echo", run_echo, b)};
    for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
        g_thread_join(threads[i]);
    g_usleep(200 * 1000);
    g_assert_true(rm_control_error(a, NULL));
    g_assert_true(rm_control_error(b, NULL));

    rm_control_expect_end(b);
    gint64 start = g_get_monotonic_time();
    rm_control_free(a);
    g_thread_join(echo[0]);
    g_thread_join(echo[1]);
    g_assert_true(rm_control_error(b, NULL));
    rm_control_free(b);
    g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
}

static void test_last_word(void)
{
    for (int i = 0; i < 10; i++) {
        g_autoptr(GIOStream) server = NULL, client = NULL;
        tls_pair(&server, &client);
        const RmControlParams params = {.keepalive_ms = 1000, .timeout_ms = 60000};
        RmControl *a = rm_control_new(server, NULL, &params), *b = rm_control_new(client, NULL, &params);
        rm_control_send(b, rm_json_message("unread"), NULL);
        rm_control_send(a, rm_json_message("cancel"), NULL);
        rm_control_free(a);
        g_autoptr(GError) error = NULL;
        rm_autojson message = NULL;
        g_assert_false(rm_control_receive(b, 0, NULL, &message, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
        rm_control_free(b);
    }
}

/* The far end of the TLS connection does nothing at all: writes fill up, reads stay silent, all of it ends.
 */
static void test_dead_peer(void)
{
    g_autofree char *filling = g_strnfill(900 << 10, 'x');
    for (int full = 0; full < 2; full++) {
        g_autoptr(GIOStream) server = NULL, client = NULL;
        tls_pair(&server, &client);
        const RmControlParams params = {.keepalive_ms = 50, .timeout_ms = 400};
        gint64 start = g_get_monotonic_time();
        RmControl *control = rm_control_new(server, NULL, &params);
        gboolean ok = TRUE;
        g_autoptr(GError) error = NULL;
        for (int i = 0; full && ok && i < 100; i++) {
            json_object *message = rm_json_message("x");
            rm_json_add_string(message, "s", filling);
            ok = rm_control_send(control, message, &error);
        }
        if (!full)
            ok = rm_control_request(control, rm_json_message("x"), 0, NULL, NULL, &error);
        g_assert_false(ok);
        g_assert_error(error, RM_ERROR, RM_REASON_PEER_TIMEOUT);
        rm_control_free(control);
        g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
    }
}

/* Freed while its own write is stuck: neither the write nor the TLS farewell may hold it. */
static gpointer run_writer(gpointer data)
{
    g_autofree char *filling = g_strnfill(900 << 10, 'x');
    gboolean ok = TRUE;
    for (int i = 0; ok && i < 100; i++) {
        json_object *message = rm_json_message("x");
        rm_json_add_string(message, "s", filling);
        ok = rm_control_send(data, message, NULL);
    }
    g_assert_false(ok);
    return NULL;
}

static void test_free_while_stuck(void)
{
    g_autoptr(GIOStream) server = NULL, client = NULL;
    tls_pair(&server, &client);
    const RmControlParams params = {.keepalive_ms = 1000, .timeout_ms = 60000};
    RmControl *control = rm_control_new(server, NULL, &params);
    GThread *writer = g_thread_new("writer", run_writer, control);
    g_usleep(300 * 1000);
    gint64 start = g_get_monotonic_time();
    rm_control_free(control);
    g_assert_cmpint(g_get_monotonic_time() - start, <, BOUND_US);
    g_thread_join(writer);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    if (!g_tls_backend_supports_tls(g_tls_backend_get_default())) {
        g_print("1..0 # SKIP no TLS backend: glib-networking is not installed\n");
        return 0;
    }
    Issued ca = issue(&(Wish){0}, NULL);
    certificate = certificate_with_key(&ca, &(Wish){0});
    issued_clear(&ca);
    g_test_add_func("/channel-tls/requests", test_requests);
    g_test_add_func("/channel-tls/last-word", test_last_word);
    g_test_add_func("/channel-tls/dead-peer", test_dead_peer);
    g_test_add_func("/channel-tls/free-while-stuck", test_free_while_stuck);
    int status = g_test_run();
    g_clear_object(&certificate);
    return status;
}
