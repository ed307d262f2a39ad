/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The listener: which addresses it takes. */
#include "destination/daemon.h"

static void test_listen(void)
{
    static const struct {
        const char *host, *data;
    } cases[] = {
        {NULL, NULL},
        {NULL, "127.0.0.1"},
        {"127.0.0.1", "127.0.0.2"},
        {"0.0.0.0", "127.0.0.1"}, /* taken in by the wildcard: a socket of its own would be refused */
        {"localhost", NULL},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *data[] = {(char *)cases[i].data, NULL};
        RmListenOptions options = {.host = (char *)cases[i].host, .data_addresses = data, .max_sessions = 16};
        g_autoptr(GError) error = NULL;
        RmDaemon *daemon = rm_daemon_new(&options);
        rm_daemon_listen(daemon, &error);
        g_assert_no_error(error);
        g_assert_cmpuint(daemon->port, !=, 0);
        rm_daemon_free(daemon);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/daemon/listen", test_listen);
    return g_test_run();
}
