/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * rdmamig: the source daemon and its verbs.
 *
 * Threads of `send`: this one runs the main loop (signals, the status socket, the progress timer); the
 * session runs in its own (source/session.h).
 */
#include "common/autoptr.h"
#include "common/log-context.h"
#include "common/log.h"
#include "common/privileges.h"
#include "common/reason.h"
#include "config.h"
#include "source/background.h"
#include "source/connect.h"
#include "source/guard.h"
#include "source/monitor.h"
#include "source/options.h"
#include "source/resolve.h"
#include "source/session.h"

#include <glib-unix.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TICK_MS 200

static const char usage_text[] =
    "usage: rdmamig send --qmp PATH --to HOST[:PORT] [OPTION…]   move a guest (send --help: all options)\n"
    "       rdmamig status [--json] [SESSION|GUEST]             what is being sent from this host\n"
    "       rdmamig cancel [SESSION|GUEST]                      end a session; the guest stays here\n"
    "       rdmamig resolve [SESSION] [--force-resume] [--tls-creds DIR] [--json]\n"
    "                                                           settle a session that was broken off; list "
    "them\n"
    "       rdmamig --version | --help\n"
    "\n"
    "exit status: 0 done, 1 failed (guest at the source), 2 usage, 3 refused (no byte moved), 4 cancelled,\n"
    "             5 doubtful (see resolve), 6 moved but cleaning up failed\n";

static int usage_error(const char *text)
{
    fprintf(stderr, "rdmamig: usage: %s (see rdmamig --help)\n", text);
    return 2;
}

typedef struct {
    RmSession *session;
    RmReporter *reporter;
    RmResult result;
    GMainLoop *loop;
} Send;

static gboolean on_signal(gpointer data)
{
    Send *send = data;
    rm_session_cancel(send->session);
    return G_SOURCE_CONTINUE;
}

/* Of a session in the background. A caller that is gone was never told that it succeeded. */
static void on_state(RmState state, gpointer data)
{
    RmSession *session = data;
    if (state == RM_STATE_PRECOPY && !rm_background_detach(session->id))
        rm_session_cancel(session);
}

static gboolean on_tick(gpointer data)
{
    Send *send = data;
    rm_reporter_tick(send->reporter);
    return G_SOURCE_CONTINUE;
}

static gboolean on_end(gpointer data)
{
    g_main_loop_quit(((Send *)data)->loop);
    return G_SOURCE_REMOVE;
}

static gpointer session_main(gpointer data)
{
    Send *send = data;
    rm_session_run(send->session, &send->result);
    g_idle_add(on_end, send);
    return NULL;
}

static RmStyle choose_style(const RmSendOptions *options)
{
    if (options->background)
        return RM_STYLE_LOG;
    if (options->json)
        return RM_STYLE_JSON;
    if (options->common.verbosity < 0)
        return RM_STYLE_QUIET;
    return isatty(STDERR_FILENO) ? RM_STYLE_BAR : RM_STYLE_LINES;
}

static int run_send(const RmSendOptions *options)
{
    g_autofree char *id = g_uuid_string_random();
    g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);
    g_autoptr(GError) error = NULL;
    g_autofree char *peer = rm_connect_format(options->host, options->port);
    rm_log_context_set_process(id, NULL, peer);
    RmReporter *reporter = rm_reporter_new(choose_style(options), id);
    RmSession *session = rm_session_new(options, reporter, id);
    if (options->background) {
        rm_background_enter_scope(id);
        rm_reporter_watch(reporter, on_state, session);
    }
    Send send = {.session = session, .reporter = reporter, .loop = loop};
    RmMonitor *monitor = rm_monitor_new(session, reporter, &error);
    if (monitor == NULL) {
        rm_reporter_warning(reporter, RM_REASON_INTERNAL, error->message);
        g_clear_error(&error);
    }
    /* A lost terminal is no wish to cancel; a reader of our output that went away is none, either. */
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    g_unix_signal_add(SIGINT, on_signal, &send);
    g_unix_signal_add(SIGTERM, on_signal, &send);
    g_timeout_add(TICK_MS, on_tick, &send);

    GThread *thread = g_thread_new("session", session_main, &send);
    g_main_loop_run(loop);
    g_thread_join(thread);
    int status = send.result.exit_status;
    if (!rm_reporter_result(reporter, &send.result, &session->metrics, options->report, &error)) {
        g_warning("%s", error->message);
        status = status == 0 ? 6 : status;
    }
    rm_monitor_free(monitor);
    rm_session_free(session);
    rm_reporter_free(reporter);
    g_free(send.result.detail);
    g_free(send.result.where);
    g_free(send.result.next);
    g_free(send.result.transport);
    return status;
}

static int show_checked(const RmSendOptions *options)
{
    g_autoptr(GError) error = NULL;
    rm_log_init("rdmamig", options->common.verbosity);
    if (!rm_send_options_check(options, &error))
        return usage_error(error->message);
    fputs(options->checked, stdout);
    return 0;
}

static int send_verb(char **argv, gboolean background)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *help = NULL;
    g_autoptr(RmSendOptions) options = rm_send_options_parse(argv, &help, &error);
    if (help != NULL) {
        fputs(help, stdout);
        return 0;
    }
    if (options == NULL)
        return usage_error(error->message);
    if (options->checked != NULL)
        return show_checked(options);
    rm_privileges_drop(RM_PROGRAM_SEND, FALSE);
    if (options->background && !background)
        return rm_background_run(argv + 1);
    rm_log_init("rdmamig", options->common.verbosity);
    return run_send(options);
}

static int verb_send(int argc, char **argv)
{
    return send_verb(argv, FALSE);
}

/* What `send --background` starts. */
static int verb_background(int argc, char **argv)
{
    rm_background_begin();
    return send_verb(argv, TRUE);
}

static int verb_status(int argc, char **argv)
{
    gboolean json = argc > 1 && strcmp(argv[1], "--json") == 0;
    if (argc > (json ? 3 : 2) || (argc > 1 && !json && argv[1][0] == '-'))
        return usage_error("status takes [--json] [SESSION|GUEST]");
    rm_privileges_drop(RM_PROGRAM_ASK, FALSE);
    return rm_monitor_status(argc > (json ? 2 : 1) ? argv[argc - 1] : NULL, json);
}

static int verb_cancel(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && argv[1][0] == '-'))
        return usage_error("cancel takes [SESSION|GUEST]");
    rm_privileges_drop(RM_PROGRAM_ASK, FALSE);
    return rm_monitor_cancel(argc == 2 ? argv[1] : NULL);
}

static int verb_resolve(int argc, char **argv)
{
    RmResolveOptions options = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--force-resume") == 0)
            options.force_resume = TRUE;
        else if (strcmp(argv[i], "--json") == 0)
            options.json = TRUE;
        else if (strcmp(argv[i], "--tls-creds") == 0 && i + 1 < argc)
            options.tls_creds = argv[++i];
        else if (g_str_has_prefix(argv[i], "--tls-creds="))
            options.tls_creds = argv[i] + strlen("--tls-creds=");
        else if (argv[i][0] == '-' || *argv[i] == '\0' || options.session != NULL)
            return usage_error("resolve takes [SESSION] [--force-resume] [--tls-creds DIR] [--json]");
        else
            options.session = argv[i];
    }
    if (options.force_resume && options.session == NULL)
        return usage_error("--force-resume needs the session");
    rm_log_init("rdmamig", 0);
    rm_privileges_drop(RM_PROGRAM_RESOLVE, FALSE);
    return rm_resolve(&options);
}

int main(int argc, char **argv)
{
    rm_privileges_begin();
    setlocale(LC_ALL, "");
    if (argc < 2)
        return usage_error("a verb is missing: send, status, cancel or resolve");
    if (strcmp(argv[1], "--version") == 0) {
        puts("rdmamig " RM_VERSION);
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (strcmp(argv[1], RM_GUARDIAN_VERB) == 0) {
        rm_log_init("rdmamig", 0);
        rm_privileges_drop(RM_PROGRAM_GUARDIAN, FALSE);
        return rm_guard_source_main(argc, argv);
    }
    const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verbs[] = {{"send", verb_send},
                 {RM_BACKGROUND_VERB, verb_background},
                 {"status", verb_status},
                 {"cancel", verb_cancel},
                 {"resolve", verb_resolve}};
    for (guint i = 0; i < G_N_ELEMENTS(verbs); i++) {
        if (strcmp(argv[1], verbs[i].name) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    }
    g_autofree char *text = g_strdup_printf("unknown verb `%s`", argv[1]);
    return usage_error(text);
}
