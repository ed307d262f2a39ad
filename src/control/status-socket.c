/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Status sockets, both ends.
 *
 * A connection has a thread of its own, so that a client that says nothing holds nobody up; there are few at
 * a time, and one too many is turned away. These threads hold a reference of what they need: a client may
 * still be silent in one of them when the daemon has done with its socket.
 */
#include "control/status-socket.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <errno.h>
#include <gio/gio.h>
#include <gio/gunixsocketaddress.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define REQUEST_MAX 4096
#define ANSWER_MAX (4u << 20) /* some hundred sessions of an rdmamigd */
#define DEPTH_MAX 8
#define CLIENT_TIMEOUT_S 5
#define CLIENTS_MAX 16

typedef struct {
    gatomicrefcount references;
    gint clients;      /* atomic */
    GMutex lock;       /* the rest, and held while `func` runs */
    RmStatusFunc func; /* NULL once the socket is freed */
    gpointer data;
} Shared;

struct RmStatusSocket {
    Shared *shared;
    GSocketService *service;
    char *path;
};

typedef struct {
    Shared *shared;
    GSocketConnection *connection;
} Client;

static void shared_unref(Shared *shared)
{
    if (!g_atomic_ref_count_dec(&shared->references))
        return;
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

/* ---- the folder ---- */

typedef void (*EachFunc)(const char *path, gpointer data);

static void each_socket(const char *prefix, EachFunc func, gpointer data)
{
    g_autofree char *start = g_strconcat(prefix, "-", NULL);
    g_autofree char *dir_name = run_dir();
    g_autoptr(GDir) dir = g_dir_open(dir_name, 0, NULL);
    const char *name;
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(dir_name, name, NULL);
        if (g_str_has_prefix(name, start) && g_str_has_suffix(name, ".sock"))
            func(path, data);
    }
}

/* One whose process is gone refuses connections at once; one whose process is stopped does not. */
static void remove_stale(const char *path, gpointer data)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat info;
    rm_autofd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (strlen(path) >= sizeof address.sun_path || lstat(path, &info) < 0 || !S_ISSOCK(info.st_mode))
        return;
    strcpy(address.sun_path, path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)(void *)&address, sizeof address) < 0 &&
        errno == ECONNREFUSED)
        unlink(path);
}

/* ---- lines ---- */

/* A line of at most `max` bytes, parsed. */
static json_object *read_object(GSocketConnection *connection, gsize max, GError **error)
{
    g_autoptr(GDataInputStream) input =
        g_data_input_stream_new(g_io_stream_get_input_stream(G_IO_STREAM(connection)));
    g_filter_input_stream_set_close_base_stream(G_FILTER_INPUT_STREAM(input), FALSE);
    g_autoptr(GError) problem = NULL;
    gsize length = 0;
    g_autofree char *line = g_data_input_stream_read_line(input, &length, NULL, &problem);
    if (line == NULL || length > max) {
        rm_fail(error, RM_REASON_PROTOCOL, "%s", problem != NULL ? problem->message : "no answer");
        return NULL;
    }
    return rm_json_parse(line, length, DEPTH_MAX, error);
}

static gboolean write_object(GSocketConnection *connection, json_object *object, GError **error)
{
    g_autofree char *text =
        g_strconcat(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN), "\n", NULL);
    return g_output_stream_write_all(g_io_stream_get_output_stream(G_IO_STREAM(connection)), text,
                                     strlen(text), NULL, NULL, error);
}

/* ---- serving ---- */

static void serve(Shared *shared, GSocketConnection *connection)
{
    g_autoptr(GError) error = NULL;
    rm_autojson answer = NULL;
    const char *command;
    g_socket_set_timeout(g_socket_connection_get_socket(connection), CLIENT_TIMEOUT_S);
    rm_autojson request = read_object(connection, REQUEST_MAX, &error);
    if (request == NULL || !rm_json_string(request, "command", &command, &error)) {
        g_debug("status socket: %s", error->message);
        return;
    }
    g_mutex_lock(&shared->lock);
    if (shared->func != NULL)
        answer = shared->func(request, command, shared->data);
    g_mutex_unlock(&shared->lock);
    if (answer != NULL)
        write_object(connection, answer, NULL);
}

static void client_free(Client *client)
{
    g_object_unref(client->connection);
    g_atomic_int_add(&client->shared->clients, -1);
    shared_unref(client->shared);
    g_free(client);
}

static gpointer client_main(gpointer data)
{
    Client *client = data;
    serve(client->shared, client->connection);
    client_free(client);
    return NULL;
}

static gboolean on_connection(GSocketService *service, GSocketConnection *connection, GObject *source,
                              gpointer data)
{
    Shared *shared = data;
    Client *client = g_new(Client, 1);
    g_atomic_ref_count_inc(&shared->references);
    *client = (Client){shared, g_object_ref(connection)};
    GThread *thread = NULL;
    if (g_atomic_int_add(&shared->clients, 1) < CLIENTS_MAX)
        thread = g_thread_try_new("status", client_main, client, NULL);
    if (thread != NULL)
        g_thread_unref(thread);
    else
        client_free(client);
    return TRUE;
}

/* Binds under another name: between bind() and listen() a live socket refuses connections, too. */
static gboolean listen_at(GSocketService *service, const char *dir, const char *path, GError **error)
{
    g_autofree char *name = g_path_get_basename(path);
    g_autofree char *unfinished = g_strdup_printf("%s/.%s", dir, name);
    g_autoptr(GSocketAddress) address = g_unix_socket_address_new(unfinished);
    g_autoptr(GError) problem = NULL;
    mode_t mask = umask(0177);
    gboolean ok = g_socket_listener_add_address(G_SOCKET_LISTENER(service), address, G_SOCKET_TYPE_STREAM,
                                                G_SOCKET_PROTOCOL_DEFAULT, NULL, NULL, &problem);
    umask(mask);
    if (!ok)
        return rm_fail(error, RM_REASON_INTERNAL, "cannot listen on %s: %s", path, problem->message);
    if (rename(unfinished, path) == 0)
        return TRUE;
    rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make %s", path);
    unlink(unfinished);
    return FALSE;
}

RmStatusSocket *rm_status_socket_new(const char *prefix, const char *uuid, RmStatusFunc func, gpointer data,
                                     GError **error)
{
    g_autofree char *dir = run_dir();
    g_autofree char *path = g_strdup_printf("%s/%s-%s.sock", dir, prefix, uuid);
    g_autoptr(GSocketService) service = g_socket_service_new();
    if (g_mkdir_with_parents(dir, 0700) < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make %s for the status socket", dir);
        return NULL;
    }
    each_socket(prefix, remove_stale, NULL);
    if (!listen_at(service, dir, path, error))
        return NULL;
    RmStatusSocket *status = g_new0(RmStatusSocket, 1);
    Shared *shared = status->shared = g_new0(Shared, 1);
    g_atomic_ref_count_init(&shared->references);
    g_mutex_init(&shared->lock);
    shared->func = func;
    shared->data = data;
    status->service = g_steal_pointer(&service);
    status->path = g_steal_pointer(&path);
    g_signal_connect(status->service, "incoming", G_CALLBACK(on_connection), shared);
    g_socket_service_start(status->service);
    return status;
}

void rm_status_socket_free(RmStatusSocket *status)
{
    if (status == NULL)
        return;
    g_socket_service_stop(status->service);
    g_socket_listener_close(G_SOCKET_LISTENER(status->service));
    g_signal_handlers_disconnect_by_data(status->service, status->shared);
    g_mutex_lock(&status->shared->lock);
    status->shared->func = NULL;
    g_mutex_unlock(&status->shared->lock);
    shared_unref(status->shared);
    g_object_unref(status->service);
    unlink(status->path);
    g_free(status->path);
    g_free(status);
}

/* ---- clients ---- */

json_object *rm_status_call(const char *path, const char *command, const char *session, GError **error)
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
    rm_json_add_string(request, "session", session);
    return write_object(connection, request, error) ? read_object(connection, ANSWER_MAX, error) : NULL;
}

typedef struct {
    RmStatusFoundFunc func;
    gpointer data;
} Each;

static void ask(const char *path, gpointer data)
{
    const Each *each = data;
    g_autoptr(GError) error = NULL;
    rm_autojson answer = rm_status_call(path, "status", NULL, &error);
    if (answer != NULL)
        each->func(path, answer, each->data);
    else
        remove_stale(path, NULL);
}

void rm_status_each(const char *prefix, RmStatusFoundFunc func, gpointer data)
{
    Each each = {func, data};
    each_socket(prefix, ask, &each);
}
