/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rdmamigd: the destination daemon. The main loop takes signals and connections; sessions have their own
 * threads. */
#include "common/autoptr.h"
#include "common/log.h"
#include "destination/daemon.h"
#include "destination/guard.h"
#include "destination/options.h"
#include "destination/sweep.h"
#include "handover/journal.h"

#include <fcntl.h>
#include <glib-unix.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static gboolean on_signal(gpointer loop)
{
    g_main_loop_quit(loop);
    return G_SOURCE_CONTINUE;
}

typedef struct {
    GMainLoop *loop;
    RmDaemon *daemon;
    gboolean had_terminal;
} Main;

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
        return on_signal(this->loop);
    if (this->daemon->options->common.tls_creds == NULL)
        g_message("there is nothing to reload without --tls-creds; SIGTERM ends rdmamigd");
    else if (rm_daemon_reload(this->daemon, &error))
        g_message("reloaded: new connections are judged by what is there now");
    else
        g_critical("nothing was reloaded, and what was loaded before still holds: %s", error->message);
    return G_SOURCE_CONTINUE;
}

static gboolean on_stopped(gpointer loop)
{
    g_main_loop_quit(loop);
    return G_SOURCE_REMOVE;
}

/* The main loop goes on while sessions end: it reaps what --exec started. It may not have begun to when this
 * is done, and would not notice a quit before that: hence by a source. */
static gpointer stop_main(gpointer data)
{
    gpointer *both = data;
    rm_daemon_stop(both[0]);
    g_idle_add(on_stopped, both[1]);
    return NULL;
}

static int run(const RmListenOptions *options)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *in_memory = rm_journal_volatile();
    g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);
    RmDaemon *daemon = rm_daemon_new(options);
    Main this = {.loop = loop, .daemon = daemon, .had_terminal = has_terminal()};
    signal(SIGPIPE, SIG_IGN);
    g_unix_signal_add(SIGINT, on_signal, loop);
    g_unix_signal_add(SIGTERM, on_signal, loop);
    g_unix_signal_add(SIGHUP, on_hangup, &this);
    if (!rm_daemon_listen(daemon, &error)) {
        g_critical("%s", error->message);
        rm_daemon_free(daemon);
        return 1;
    }
    if (in_memory != NULL)
        g_warning("%s", in_memory);
    rm_sweep_start(daemon);
    const char *everywhere = rm_listen_everywhere(options) ? "all addresses," : "127.0.0.1";
    g_message("listening on %s port %u%s", options->host != NULL ? options->host : everywhere, daemon->port,
              options->common.tls_creds == NULL ? ""
              : options->tls_allow != NULL      ? ", with TLS"
                                                : ", with TLS, for every certificate of the CA");
    g_main_loop_run(loop);
    g_message("stopping: no new sessions; those before commit are cancelled");
    gpointer both[] = {daemon, loop};
    GThread *stopper = g_thread_new("stop", stop_main, both);
    g_main_loop_run(loop);
    g_thread_join(stopper);
    return 0; /* threads of the service may still close connections: the daemon's memory goes with the process
               */
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    setlocale(LC_ALL, "");
    if (argc > 1 && strcmp(argv[1], RM_GUARDIAN_VERB) == 0) {
        rm_log_init("rdmamigd", 0);
        return rm_guard_destination_main(argc, argv);
    }
    g_autoptr(RmListenOptions) options = rm_listen_options_parse(argc, argv, &text, &error);
    if (text != NULL) {
        fputs(text, stdout);
        return 0;
    }
    if (options == NULL) {
        fprintf(stderr, "rdmamigd: usage: %s (see rdmamigd --help)\n", error->message);
        return 2;
    }
    rm_log_init("rdmamigd", options->common.verbosity);
    return run(options);
}
