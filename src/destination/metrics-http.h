/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The page for Prometheus, over HTTP, by libmicrohttpd: GET /metrics, and / with a link to it; nothing can be
 * sent or set. One thread, which has no part in any session; the number of connections is bounded, and one
 * that says nothing is closed soon.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct RmMetricsHttp RmMetricsHttp;

/* Serves what `render` returns, which the server's thread calls for each request and frees. `host` is an IP
 * address or "localhost"; NULL: 127.0.0.1. Reasons usage (the address), internal (the port is taken, …). */
RmMetricsHttp *rm_metrics_http_start(const char *host, uint16_t port, char *(*render)(gpointer data),
                                     gpointer data, GError **error);
/* Ends it, with the connections; `render` is not called any more. NULL is fine. */
void rm_metrics_http_stop(RmMetricsHttp *http);
