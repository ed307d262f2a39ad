/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rdmamigd: the destination daemon. The main loop takes signals and connections; sessions have their own
 * threads. */
#include "common/autoptr.h"
#include "common/log.h"
#include "common/privileges.h"
#include "destination/daemon.h"
#include "destination/guard.h"
#include "destination/metrics-http.h"
#include "destination/options.h"
#include "destination/reload.h"
#include "destination/service.h"
#include "destination/sweep.h"
#include "handover/journal.h"

#include <fcntl.h>
#include <glib-unix.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    GMainLoop *loop;
    RmDaemon *daemon;
    RmService *service;
    GThread *stopper; /* NULL until it is to stop */
    gboolean had_terminal;
    int argc;
    char **argv;
} Main;

static gboolean on_stopped(gpointer data)
{
    g_main_loop_quit(((Main *)data)->loop);
    return G_SOURCE_REMOVE;
}

/* The main loop goes on meanwhile: it reaps what --exec started, answers queries, and turns newcomers away.
 */
static gpointer stop_main(gpointer data)
{
    rm_daemon_stop(((Main *)data)->daemon);
    g_idle_add(on_stopped, data);
    return NULL;
}

/* Once. Who asks again is as impatient as before: what is past `commit` is finished all the same. */
static gboolean on_stop(gpointer data)
{
    Main *this = data;
    if (this->stopper != NULL)
        return G_SOURCE_CONTINUE;
    g_message("stopping: no new sessions; those before commit are cancelled, the others finished");
    rm_service_stopping(this->service);
    this->stopper = g_thread_new("stop", stop_main, this);
    return G_SOURCE_CONTINUE;
}

static gboolean has_terminal(void)
{
    rm_autofd fd = open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY);
    return fd >= 0;
}

/* The wish to reload, or word that the terminal is lost (it is gone by then), which must not leave loaded
 * guests behind. A daemon without a terminal never had one to lose. */
static gboolean on_hangup(gpointer data)
{
    Main *this = data;
    g_autoptr(GError) error = NULL;
    if (this->had_terminal && !has_terminal())
        return on_stop(data);
    rm_service_reloading(this->service);
    rm_reload(this->daemon, this->argc, this->argv);
    rm_service_reloaded(this->service);
    return G_SOURCE_CONTINUE;
}

static gboolean on_swept(gpointer data)
{
    rm_service_ready(((Main *)data)->service);
    return G_SOURCE_REMOVE;
}

/* In the server's thread. */
static char *render_metrics(gpointer data)
{
    RmDaemon *daemon = data;
    RmMetricsSample sample;
    rm_daemon_sample(daemon, &sample);
    return rm_metrics_render(daemon->metrics, &sample);
}

/* *ret_http is NULL if it is not wanted. */
static gboolean start_metrics(RmDaemon *daemon, RmMetricsHttp **ret_http, GError **error)
{
    const RmListenOptions *options = daemon->options;
    *ret_http = NULL;
    if (options->metrics_port == 0)
        return TRUE;
    *ret_http =
        rm_metrics_http_start(options->metrics_host, options->metrics_port, render_metrics, daemon, error);
    return *ret_http != NULL;
}

static int run(const RmListenOptions *options, int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *in_memory = rm_journal_volatile();
    g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);
    RmDaemon *daemon = rm_daemon_new(options);
    Main this = {.loop = loop, .daemon = daemon, .had_terminal = has_terminal(), .argc = argc, .argv = argv};
    signal(SIGPIPE, SIG_IGN);
    g_unix_signal_add(SIGINT, on_stop, &this);
    g_unix_signal_add(SIGTERM, on_stop, &this);
    g_unix_signal_add(SIGHUP, on_hangup, &this);
    RmMetricsHttp *metrics;
    if (!start_metrics(daemon, &metrics, &error) || !rm_daemon_listen(daemon, &error)) {
        g_critical("%s", error->message);
        rm_metrics_http_stop(metrics);
        rm_daemon_free(daemon);
        return 1;
    }
    if (in_memory != NULL)
        g_warning("%s", in_memory);
    this.service = rm_service_new(daemon);
    rm_sweep_start(daemon, on_swept, &this);
    const char *everywhere = rm_listen_everywhere(options) ? "all addresses," : "127.0.0.1";
    g_message("listening on %s port %u%s", options->host != NULL ? options->host : everywhere, daemon->port,
              options->common.tls_creds == NULL ? ""
              : options->tls_allow != NULL      ? ", with TLS"
                                                : ", with TLS, for every certificate of the CA");
    g_main_loop_run(loop);
    g_thread_join(this.stopper);
    rm_service_free(this.service);
    rm_metrics_http_stop(metrics);
    return 0; /* threads of the service may still close connections: the daemon's memory goes with the process
               */
}

static int usage_error(const GError *error)
{
    fprintf(stderr, "rdmamigd: usage: %s (see rdmamigd --help)\n", error->message);
    return 2;
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    rm_privileges_begin();
    setlocale(LC_ALL, "");
    if (argc > 1 && strcmp(argv[1], RM_GUARDIAN_VERB) == 0) {
        rm_log_init("rdmamigd", 0);
        rm_privileges_drop(RM_PROGRAM_GUARDIAN, FALSE);
        return rm_guard_destination_main(argc, argv);
    }
    g_autoptr(RmListenOptions) options = rm_listen_options_parse(argc, argv, &text, &error);
    if (text != NULL) {
        fputs(text, stdout);
        return 0;
    }
    if (options == NULL)
        return usage_error(error);
    rm_log_init("rdmamigd", options->common.verbosity);
    if (options->checked != NULL) {
        if (!rm_listen_options_check(options, &error))
            return usage_error(error);
        fputs(options->checked, stdout);
        return 0;
    }
    rm_privileges_drop(RM_PROGRAM_DAEMON, options->exec != NULL);
    return run(options, argc, argv);
}
