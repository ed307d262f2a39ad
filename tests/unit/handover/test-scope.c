/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The request for a scope, as a systemd at the other end of the connection gets it. */
#include "handover/scope.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char interface_xml[] =
    "<node><interface name='org.freedesktop.systemd1.Manager'><method name='StartTransientUnit'>"
    "<arg type='s' direction='in'/><arg type='s' direction='in'/><arg type='a(sv)' direction='in'/>"
    "<arg type='a(sa(sv))' direction='in'/><arg type='o' direction='out'/></method></interface></node>";

typedef struct {
    GMainContext *context;
    GMainLoop *loop;
    GThread *thread;
    int fd; /* the manager's end */
    gboolean decline;
    GVariant *got; /* of the last call */
} Manager;

static void on_call(GDBusConnection *connection, const char *sender, const char *path, const char *interface,
                    const char *method, GVariant *parameters, GDBusMethodInvocation *invocation,
                    gpointer data)
{
    Manager *manager = data;
    manager->got = g_variant_ref(parameters);
    if (manager->decline)
        g_dbus_method_invocation_return_dbus_error(invocation, "org.freedesktop.systemd1.UnitExists", "no");
    else
        g_dbus_method_invocation_return_value(invocation, g_variant_new("(o)", "/job/1"));
}

static GDBusConnection *connect_fd(int fd, GDBusConnectionFlags flags, const char *guid)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, &error);
    g_assert_no_error(error);
    g_autoptr(GSocketConnection) stream = g_socket_connection_factory_create_connection(socket);
    GDBusConnection *connection =
        g_dbus_connection_new_sync(G_IO_STREAM(stream), guid, flags, NULL, NULL, &error);
    g_assert_no_error(error);
    return connection;
}

static gpointer manager_main(gpointer data)
{
    static const GDBusInterfaceVTable table = {.method_call = on_call};
    Manager *manager = data;
    g_main_context_push_thread_default(manager->context);
    g_autofree char *guid = g_dbus_generate_guid();
    g_autoptr(GDBusNodeInfo) node = g_dbus_node_info_new_for_xml(interface_xml, NULL);
    g_autoptr(GDBusConnection) connection = connect_fd(manager->fd,
                                                       G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_SERVER |
                                                           G_DBUS_CONNECTION_FLAGS_DELAY_MESSAGE_PROCESSING,
                                                       guid);
    g_assert_cmpuint(g_dbus_connection_register_object(connection, "/org/freedesktop/systemd1",
                                                       node->interfaces[0], &table, manager, NULL, NULL),
                     >, 0);
    g_dbus_connection_start_message_processing(connection);
    g_main_loop_run(manager->loop);
    g_dbus_connection_close_sync(connection, NULL, NULL);
    g_main_context_pop_thread_default(manager->context);
    return NULL;
}

static GDBusConnection *manager_start(Manager *manager, gboolean decline)
{
    int ends[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), ==, 0);
    *manager = (Manager){.context = g_main_context_new(), .fd = ends[0], .decline = decline};
    manager->loop = g_main_loop_new(manager->context, FALSE);
    manager->thread = g_thread_new("manager", manager_main, manager);
    return connect_fd(ends[1], G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT, NULL);
}

static void manager_end(Manager *manager)
{
    g_main_loop_quit(manager->loop);
    g_thread_join(manager->thread);
    g_main_loop_unref(manager->loop);
    g_main_context_unref(manager->context);
    g_clear_pointer(&manager->got, g_variant_unref);
}

static void test_request(void)
{
    Manager manager;
    g_autoptr(GError) error = NULL;
    g_autoptr(GDBusConnection) connection = manager_start(&manager, FALSE);
    g_assert_true(rm_scope_request(connection, "a-b.scope", "Words", 4711, &error));
    g_assert_no_error(error);
    const char *name, *mode;
    g_autoptr(GVariant) properties = NULL, auxiliary = NULL;
    g_variant_get(manager.got, "(&s&s@a(sv)@a(sa(sv)))", &name, &mode, &properties, &auxiliary);
    g_assert_cmpstr(name, ==, "a-b.scope");
    g_assert_cmpstr(mode, ==, "fail");
    g_assert_cmpuint(g_variant_n_children(auxiliary), ==, 0);
    g_autofree char *text = g_variant_print(properties, TRUE);
    g_assert_nonnull(strstr(text, "('PIDs', <[uint32 4711]>)"));
    g_assert_nonnull(strstr(text, "('Description', <'Words'>)"));
    g_assert_nonnull(strstr(text, "('CollectMode', <'inactive-or-failed'>)"));
    manager_end(&manager);
}

static void test_declined(void)
{
    Manager manager;
    g_autoptr(GError) error = NULL;
    g_autoptr(GDBusConnection) connection = manager_start(&manager, TRUE);
    g_assert_false(rm_scope_request(connection, "a-b.scope", "Words", 4711, &error));
    g_assert_nonnull(error);
    manager_end(&manager);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/handover/scope/request", test_request);
    g_test_add_func("/handover/scope/declined", test_declined);
    return g_test_run();
}
