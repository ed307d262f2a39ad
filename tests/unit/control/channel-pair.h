/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Channels to test: a pair of them, or one whose peer is a file descriptor that the test plays byte by byte.
 */
#pragma once

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/channel.h"
#include "control/json.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define BOUND_US (30 * G_USEC_PER_SEC) /* for a wait that must end: generous, the machine may be busy */

G_GNUC_UNUSED static const RmControlParams patient = {.keepalive_ms = 1000, .timeout_ms = 60000};
G_GNUC_UNUSED static const RmControlParams hasty = {.keepalive_ms = 50, .timeout_ms = 400};

G_GNUC_UNUSED static RmControl *control_on(int fd, const char *first, const RmControlParams *params)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GSocket) socket = g_socket_new_from_fd(fd, &error);
    g_assert_no_error(error);
    g_autoptr(GSocketConnection) connection = g_socket_connection_factory_create_connection(socket);
    return rm_control_new(G_IO_STREAM(connection), first, params);
}

typedef struct {
    RmControl *a, *b;
} Pair;

G_GNUC_UNUSED static Pair pair_new(const RmControlParams *params)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    Pair pair = {control_on(fds[0], NULL, params), control_on(fds[1], NULL, params)};
    rm_control_set_peer_name(pair.a, "destination");
    rm_control_set_peer_name(pair.b, "source");
    return pair;
}

G_GNUC_UNUSED static void pair_clear(Pair *pair)
{
    /* the test's own order must not matter; nobody waits for the other's farewell for long */
    rm_control_free(pair->a);
    rm_control_free(pair->b);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Pair, pair_clear)

/* A channel whose peer is the test's fd. */
G_GNUC_UNUSED static RmControl *against_fd(const RmControlParams *params, int *ret_fd)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    *ret_fd = fds[1];
    return control_on(fds[0], NULL, params);
}

G_GNUC_UNUSED static void put(int fd, const char *text, gsize length)
{
    while (length > 0) {
        ssize_t sent = send(fd, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) /* the channel closed: what it made of the bytes before is what the test looks at */
            return;
        text += sent;
        length -= sent;
    }
}

G_GNUC_UNUSED static void put_text(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Reads from the fd until `wanted` was seen. */
G_GNUC_UNUSED static char *read_until(int fd, const char *wanted)
{
    GString *seen = g_string_new(NULL);
    while (strstr(seen->str, wanted) == NULL) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        g_assert_cmpint(poll(&poller, 1, BOUND_US / 1000), ==, 1);
        char buffer[4096];
        ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
        g_assert_cmpint(got, >, 0);
        g_string_append_len(seen, buffer, got);
    }
    return g_string_free(seen, FALSE);
}

G_GNUC_UNUSED static void wait_lost(RmControl *control)
{
    GPollFD poller;
    g_assert_true(g_cancellable_make_pollfd(rm_control_lost(control), &poller));
    g_assert_cmpint(g_poll(&poller, 1, BOUND_US / 1000), ==, 1);
    g_cancellable_release_fd(rm_control_lost(control));
}

G_GNUC_UNUSED static void assert_broken(RmControl *control, RmReason reason, const char *part)
{
    g_autoptr(GError) error = NULL, again = NULL, third = NULL;
    wait_lost(control);
    g_assert_false(rm_control_error(control, &error));
    g_assert_error(error, RM_ERROR, (int)reason);
    if (strstr(error->message, part) == NULL)
        g_error("\"%s\" lacks \"%s\"", error->message, part);
    /* every call fails with the first reason */
    g_assert_false(rm_control_request(control, rm_json_message("x"), 0, NULL, NULL, &again));
    g_assert_error(again, RM_ERROR, (int)reason);
    g_assert_cmpstr(again->message, ==, error->message);
    g_assert_false(rm_control_send(control, rm_json_message("x"), &third));
    g_assert_error(third, RM_ERROR, (int)reason);
}
