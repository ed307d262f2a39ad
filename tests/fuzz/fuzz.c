/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the fuzz targets share. */
#include "fuzz.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void be_quiet(const char *domain, GLogLevelFlags level, const char *message, gpointer data)
{
    if (level & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL))
        g_printerr("%s: %s\n", domain, message);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    signal(SIGPIPE, SIG_IGN); /* as rm_log_init() does */
    g_log_set_always_fatal(G_LOG_FATAL_MASK | G_LOG_LEVEL_CRITICAL);
    g_log_set_default_handler(be_quiet, NULL);
    return 0;
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, '\0', size);
    return g_strndup((const char *)data, end != NULL ? (size_t)(end - data) : size);
}

uint8_t fuzz_byte(const uint8_t **data, size_t *size)
{
    if (*size == 0)
        return 0;
    (*size)--;
    return *(*data)++;
}

gboolean fuzz_socket(const uint8_t *data, size_t size, int ret_fds[2])
{
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ret_fds), ==, 0);
    if (size == 0 || send(ret_fds[1], data, size, MSG_DONTWAIT) == (ssize_t)size) {
        shutdown(ret_fds[1], SHUT_WR);
        return TRUE;
    }
    close(ret_fds[0]);
    close(ret_fds[1]);
    return FALSE;
}

void fuzz_assert_same(json_object *one, json_object *other)
{
    if (!json_object_equal(one, other))
        g_error("%s\nbecame\n%s", json_object_to_json_string(one), json_object_to_json_string(other));
    json_object_put(one);
    json_object_put(other);
}
