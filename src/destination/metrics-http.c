/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Serving the page. */
#include "destination/metrics-http.h"

#include "common/reason.h"
#include "config.h"

#include <gio/gio.h>
#include <string.h>

#if RM_METRICS

#include <microhttpd.h>

#define CONNECTIONS_MAX 128
#define IDLE_S 10                       /* Prometheus' own time-out for a scrape */
#define MEMORY_OF_CONNECTION (8 * 1024) /* for its headers */

struct RmMetricsHttp {
    GSocket *socket;
    struct MHD_Daemon *daemon;
    char *(*render)(gpointer data);
    gpointer data;
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              char *text)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer_with_free_callback(strlen(text), text, g_free);
    if (response == NULL) {
        g_free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* In the server's thread. Answered at the first call, before any body: that ends a connection which sends
 * one. */
static enum MHD_Result on_request(void *data, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **seen)
{
    static const char plain[] = "text/plain; charset=utf-8";
    RmMetricsHttp *http = data;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, g_strdup("only GET\n"));
    if (strcmp(url, "/metrics") == 0)
        return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                      http->render(http->data));
    if (strcmp(url, "/") == 0)
        return answer(connection, MHD_HTTP_OK, "text/html; charset=utf-8",
                      g_strdup("<!DOCTYPE html><title>rdmamigd</title><a href=\"/metrics\">metrics</a>\n"));
    return answer(connection, MHD_HTTP_NOT_FOUND, plain, g_strdup("there is /metrics only\n"));
}

static void on_log(G_GNUC_UNUSED void *data, const char *format, va_list args)
{
    g_autofree char *text = g_strdup_vprintf(format, args);
    g_debug("metrics: %s", g_strchomp(text));
}

/* By ourselves, for libmicrohttpd does not tell why it can't. */
static GSocket *listen_at(const char *host, uint16_t port, GError **error)
{
    const char *text = host == NULL || strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    g_autoptr(GSocketAddress) address = g_inet_socket_address_new_from_string(text, port);
    g_autoptr(GError) problem = NULL;
    if (address == NULL) {
        rm_fail(error, RM_REASON_USAGE, "--metrics: `%s` is not an IP address", text);
        return NULL;
    }
    g_autoptr(GSocket) socket = g_socket_new(g_socket_address_get_family(address), G_SOCKET_TYPE_STREAM,
                                             G_SOCKET_PROTOCOL_TCP, &problem);
    if (socket != NULL && g_socket_bind(socket, address, TRUE, &problem) && g_socket_listen(socket, &problem))
        return g_steal_pointer(&socket);
    g_autofree char *where = g_socket_connectable_to_string(G_SOCKET_CONNECTABLE(address));
    rm_fail(error, RM_REASON_INTERNAL, "--metrics: cannot listen on %s: %s", where, problem->message);
    return NULL;
}

RmMetricsHttp *rm_metrics_http_start(const char *host, uint16_t port, char *(*render)(gpointer data),
                                     gpointer data, GError **error)
{
    RmMetricsHttp *http = g_new0(RmMetricsHttp, 1);
    http->render = render;
    http->data = data;
    http->socket = listen_at(host, port, error);
    if (http->socket == NULL) {
        rm_metrics_http_stop(http);
        return NULL;
    }
    http->daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, http,
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, g_socket_get_fd(http->socket),
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_OF_CONNECTION, MHD_OPTION_END);
    if (http->daemon != NULL)
        return http;
    rm_fail(error, RM_REASON_INTERNAL, "--metrics: libmicrohttpd cannot serve on port %u", port);
    rm_metrics_http_stop(http);
    return NULL;
}

void rm_metrics_http_stop(RmMetricsHttp *http)
{
    if (http == NULL)
        return;
    if (http->daemon != NULL) {
        MHD_quiesce_daemon(http->daemon); /* the listening socket stays ours to close */
        MHD_stop_daemon(http->daemon);
    }
    g_clear_object(&http->socket);
    g_free(http);
}

#else

/* The option is refused before anybody comes here. */
RmMetricsHttp *rm_metrics_http_start(const char *host, uint16_t port, char *(*render)(gpointer data),
                                     gpointer data, GError **error)
{
    rm_fail(error, RM_REASON_USAGE, "--metrics: this rdmamigd was built without libmicrohttpd");
    return NULL;
}

void rm_metrics_http_stop(RmMetricsHttp *http)
{
}

#endif
