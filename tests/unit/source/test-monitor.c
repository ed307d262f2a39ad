/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The status socket: a client may be slower than the session. */
#include "source/monitor.h"

#include "common/autoptr.h"

#include <gio/gunixsocketaddress.h>
#include <glib/gstdio.h>

typedef struct {
    RmSendOptions options;
    RmReporter *reporter;
    RmSession *session;
    RmMonitor *monitor;
    char *dir, *path;
    GMainLoop *loop; /* the service accepts in it */
    GThread *thread;
} Rig;

static gpointer run_loop(gpointer loop)
{
    g_main_loop_run(loop);
    return NULL;
}

static void rig_init(Rig *rig)
{
    g_autoptr(GError) error = NULL;
    *rig = (Rig){.dir = g_dir_make_tmp("rdmamig-monitor-XXXXXX", &error)};
    g_assert_no_error(error);
    g_setenv("RDMAMIG_RUN_DIR", rig->dir, TRUE);
    rig->reporter = rm_reporter_new(RM_STYLE_QUIET, "id");
    rig->session = rm_session_new(&rig->options, rig->reporter, "id");
    rig->monitor = rm_monitor_new(rig->session, rig->reporter, &error);
    g_assert_no_error(error);
    rig->path = g_build_filename(rig->dir, "send-id.sock", NULL);
    rig->loop = g_main_loop_new(NULL, FALSE);
    rig->thread = g_thread_new("loop", run_loop, rig->loop);
}

/* As main() does it when the session has ended. */
static void rig_end(Rig *rig)
{
    g_main_loop_quit(rig->loop);
    g_thread_join(rig->thread);
    rm_monitor_free(rig->monitor);
    rm_session_free(rig->session);
    rm_reporter_free(rig->reporter);
}

static void rig_clear(Rig *rig)
{
    g_main_loop_unref(rig->loop);
    g_assert_cmpint(g_rmdir(rig->dir), ==, 0); /* the socket is gone */
    g_free(rig->dir);
    g_free(rig->path);
}

static GSocketConnection *dial(const Rig *rig)
{
    g_autoptr(GSocketClient) client = g_socket_client_new();
    g_autoptr(GSocketAddress) address = g_unix_socket_address_new(rig->path);
    g_autoptr(GError) error = NULL;
    GSocketConnection *connection =
        g_socket_client_connect(client, G_SOCKET_CONNECTABLE(address), NULL, &error);
    g_assert_no_error(error);
    return connection;
}

static gboolean send_line(GSocketConnection *connection, const char *text)
{
    return g_output_stream_write_all(g_io_stream_get_output_stream(G_IO_STREAM(connection)), text,
                                     strlen(text), NULL, NULL, NULL);
}

static gssize receive(GSocketConnection *connection, char *buffer, gsize size)
{
    return g_input_stream_read(g_io_stream_get_input_stream(G_IO_STREAM(connection)), buffer, size, NULL,
                               NULL);
}

static void test_cancel(void)
{
    Rig rig;
    char answer[4096];
    rig_init(&rig);
    g_autoptr(GSocketConnection) connection = dial(&rig);
    g_assert_true(send_line(connection, "{\"command\":\"cancel\"}\n"));
    g_assert_cmpint(receive(connection, answer, sizeof answer), >, 0);
    g_assert_true(g_cancellable_is_cancelled(rig.session->cancel));
    rig_end(&rig);
    rig_clear(&rig);
}

/* One that has connected and says its word only after the session has gone: it gets no answer, and does no
 * harm. */
static void test_late_client(void)
{
    Rig rig;
    char answer[4096];
    rig_init(&rig);
    g_autoptr(GSocketConnection) late = dial(&rig);
    g_assert_true(send_line(late, "{\"command\":"));
    g_autoptr(GSocketConnection) other = dial(&rig); /* once it is answered, `late` has a thread, too */
    g_assert_true(send_line(other, "{\"command\":\"status\"}\n"));
    g_assert_cmpint(receive(other, answer, sizeof answer), >, 0);
    rig_end(&rig);
    g_assert_true(send_line(late, "\"cancel\"}\n"));
    g_assert_cmpint(receive(late, answer, sizeof answer), ==, 0);
    rig_clear(&rig);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/monitor/cancel", test_cancel);
    g_test_add_func("/monitor/late-client", test_late_client);
    return g_test_run();
}
