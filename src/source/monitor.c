/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The monitor socket of a session, and the verbs that talk to it. */
#include "source/monitor.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <errno.h>
#include <gio/gunixsocketaddress.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REQUEST_MAX 4096
#define CLIENT_TIMEOUT_S 5

/* What the service's threads see. It lives as long as the service, of which each of them holds a reference: a
 * client may still be silent in one of them when the session has ended. */
typedef struct {
    GMutex lock;
    RmSession *session; /* under lock; NULL once it has ended, and then reporter is of no use, either */
    RmReporter *reporter;
} Shared;

struct RmMonitor {
    Shared *shared; /* the service's */
    GSocketService *service;
    char *path;
};

static void shared_free(gpointer data, GClosure *closure)
{
    Shared *shared = data;
    g_mutex_clear(&shared->lock);
    g_free(shared);
}

static char *run_dir(void)
{
    const char *dir = g_getenv("RDMAMIG_RUN_DIR");
    if (dir != NULL && *dir != '\0')
        return g_strdup(dir);
    return geteuid() == 0 ? g_strdup("/run/rdmamig")
                          : g_build_filename(g_get_user_runtime_dir(), "rdmamig", NULL);
}

/* A line of at most REQUEST_MAX bytes, parsed. */
static json_object *read_object(GSocketConnection *connection, GError **error)
{
    g_autoptr(GDataInputStream) input =
        g_data_input_stream_new(g_io_stream_get_input_stream(G_IO_STREAM(connection)));
    g_filter_input_stream_set_close_base_stream(G_FILTER_INPUT_STREAM(input), FALSE);
    GError *problem = NULL;
    gsize length = 0;
    g_autofree char *line = g_data_input_stream_read_line(input, &length, NULL, &problem);
    if (line == NULL || length > REQUEST_MAX) {
        rm_fail(error, RM_REASON_PROTOCOL, "%s", problem != NULL ? problem->message : "no answer");
        g_clear_error(&problem);
        return NULL;
    }
    return rm_json_parse(line, length, 4, error);
}

static gboolean write_object(GSocketConnection *connection, json_object *object, GError **error)
{
    g_autofree char *text =
        g_strconcat(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN), "\n", NULL);
    return g_output_stream_write_all(g_io_stream_get_output_stream(G_IO_STREAM(connection)), text,
                                     strlen(text), NULL, NULL, error);
}

/* Runs in a thread of the service, so that a client that says nothing holds nobody up. */
static gboolean serve(GThreadedSocketService *service, GSocketConnection *connection, GObject *source,
                      gpointer data)
{
    Shared *shared = data;
    g_autoptr(GError) error = NULL;
    rm_autojson status = NULL;
    const char *command;
    g_socket_set_timeout(g_socket_connection_get_socket(connection), CLIENT_TIMEOUT_S);
    rm_autojson request = read_object(connection, &error);
    if (request == NULL || !rm_json_string(request, "command", &command, &error)) {
        g_debug("monitor: %s", error->message);
        return TRUE;
    }
    g_mutex_lock(&shared->lock);
    if (shared->session != NULL) {
        if (strcmp(command, "cancel") == 0)
            rm_session_cancel(shared->session);
        status = rm_reporter_status(shared->reporter);
    }
    g_mutex_unlock(&shared->lock);
    if (status != NULL)
        write_object(connection, status, NULL);
    return TRUE;
}

RmMonitor *rm_monitor_new(RmSession *session, RmReporter *reporter, GError **error)
{
    g_autofree char *dir = run_dir();
    g_autofree char *path = g_strdup_printf("%s/send-%s.sock", dir, session->id);
    g_autoptr(GError) problem = NULL;
    if (g_mkdir_with_parents(dir, 0700) < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make %s for the status socket", dir);
        return NULL;
    }
    g_autoptr(GSocketService) service = g_threaded_socket_service_new(4);
    g_autoptr(GSocketAddress) address = g_unix_socket_address_new(path);
    mode_t mask = umask(0177);
    gboolean ok = g_socket_listener_add_address(G_SOCKET_LISTENER(service), address, G_SOCKET_TYPE_STREAM,
                                                G_SOCKET_PROTOCOL_DEFAULT, NULL, NULL, &problem);
    umask(mask);
    if (!ok) {
        rm_fail(error, RM_REASON_INTERNAL, "cannot listen on %s: %s", path, problem->message);
        return NULL;
    }
    Shared *shared = g_new0(Shared, 1);
    g_mutex_init(&shared->lock);
    shared->session = session;
    shared->reporter = reporter;
    RmMonitor *monitor = g_new0(RmMonitor, 1);
    monitor->shared = shared;
    monitor->service = g_steal_pointer(&service);
    monitor->path = g_steal_pointer(&path);
    g_signal_connect_data(monitor->service, "run", G_CALLBACK(serve), shared, shared_free, 0);
    g_socket_service_start(monitor->service);
    return monitor;
}

void rm_monitor_free(RmMonitor *monitor)
{
    if (monitor == NULL)
        return;
    g_socket_service_stop(monitor->service);
    g_socket_listener_close(G_SOCKET_LISTENER(monitor->service));
    g_mutex_lock(&monitor->shared->lock);
    monitor->shared->session = NULL;
    g_mutex_unlock(&monitor->shared->lock);
    g_object_unref(monitor->service);
    unlink(monitor->path);
    g_free(monitor->path);
    g_free(monitor);
}

/* ---- the verbs ---- */

static json_object *call(const char *path, const char *command, GError **error)
{
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_autoptr(GSocketAddress) address = g_unix_socket_address_new(path);
    g_socket_client_set_timeout(client, CLIENT_TIMEOUT_S);
    g_autoptr(GSocketConnection) connection =
        g_socket_client_connect(client, G_SOCKET_CONNECTABLE(address), NULL, error);
    if (connection == NULL)
        return NULL;
    rm_autojson request = json_object_new_object();
    rm_json_add_string(request, "command", command);
    return write_object(connection, request, error) ? read_object(connection, error) : NULL;
}

/* A socket whose process is gone (kill -9) refuses connections; it is ours by name and type, so it may go. */
static void remove_stale(const char *path, const GError *error)
{
    struct stat info;
    if (g_error_matches(error, G_IO_ERROR, G_IO_ERROR_CONNECTION_REFUSED) && lstat(path, &info) == 0 &&
        S_ISSOCK(info.st_mode))
        unlink(path);
}

static gboolean matches(json_object *status, const char *which)
{
    const char *session = "", *guest = "";
    rm_json_string_opt(status, "session", &session, NULL);
    rm_json_string_opt(status, "guest", &guest, NULL);
    return which == NULL || g_str_has_prefix(session, which) || strcmp(guest, which) == 0;
}

typedef struct {
    char *path;
    json_object *status;
} Found;

static void found_clear(gpointer data)
{
    Found *found = data;
    g_free(found->path);
    json_object_put(found->status);
}

static GArray *find_sessions(const char *which)
{
    GArray *sessions = g_array_new(FALSE, FALSE, sizeof(Found));
    g_array_set_clear_func(sessions, found_clear);
    g_autofree char *dir_name = run_dir();
    g_autoptr(GDir) dir = g_dir_open(dir_name, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autoptr(GError) error = NULL;
        if (!g_str_has_prefix(name, "send-") || !g_str_has_suffix(name, ".sock"))
            continue;
        g_autofree char *path = g_build_filename(dir_name, name, NULL);
        json_object *status = call(path, "status", &error);
        if (status == NULL) {
            remove_stale(path, error);
        } else if (matches(status, which)) {
            Found found = {g_steal_pointer(&path), status};
            g_array_append_val(sessions, found);
        } else {
            json_object_put(status);
        }
    }
    return sessions;
}

static void print_status(json_object *status)
{
    const char *session = "", *guest = "", *state = "";
    uint64_t elapsed_ms = 0, round = 0, remaining = 0;
    rm_json_string_opt(status, "session", &session, NULL);
    rm_json_string_opt(status, "guest", &guest, NULL);
    rm_json_string_opt(status, "state", &state, NULL);
    rm_json_uint_opt(status, "elapsed_ms", &elapsed_ms, NULL);
    rm_json_uint_opt(status, "round", &round, NULL);
    rm_json_uint_opt(status, "remaining_bytes", &remaining, NULL);
    printf("%s  guest %s  %s  round %" G_GUINT64_FORMAT "  %" G_GUINT64_FORMAT " MiB left  %.1f s\n", session,
           *guest != '\0' ? guest : "(unnamed)", state, round, remaining >> 20, (double)elapsed_ms / 1000);
}

int rm_monitor_status(const char *which, gboolean json)
{
    g_autoptr(GArray) sessions = find_sessions(which);
    for (guint i = 0; i < sessions->len; i++) {
        json_object *status = g_array_index(sessions, Found, i).status;
        if (json)
            puts(json_object_to_json_string_ext(status, JSON_C_TO_STRING_PLAIN));
        else
            print_status(status);
    }
    if (sessions->len == 0 && which != NULL) {
        fprintf(stderr, "rdmamig: no session or guest `%s` is being sent from this host\n", which);
        return 1;
    }
    if (sessions->len == 0 && !json)
        puts("no guest is being sent from this host");
    return 0;
}

int rm_monitor_cancel(const char *which)
{
    g_autoptr(GArray) sessions = find_sessions(which);
    g_autoptr(GError) error = NULL;
    if (sessions->len != 1) {
        if (sessions->len == 0)
            fprintf(stderr, "rdmamig: no session to cancel%s%s\n", which != NULL ? " for " : "", which ?: "");
        else
            fprintf(stderr, "rdmamig: %u sessions; name one: rdmamig cancel SESSION|GUEST\n", sessions->len);
        return 1;
    }
    rm_autojson status = call(g_array_index(sessions, Found, 0).path, "cancel", &error);
    if (status == NULL) {
        fprintf(stderr, "rdmamig: the session ended before it could be cancelled: %s\n", error->message);
        return 1;
    }
    return 0;
}
