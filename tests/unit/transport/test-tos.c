/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The mark of the tcp transport's packets. */
#include "pair.h"

#include "transport/tcp/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

static int get(int fd, int level, int option)
{
    int value = -1;
    socklen_t length = sizeof value;
    g_assert_cmpint(getsockopt(fd, level, option, &value, &length), ==, 0);
    return value;
}

/* A connection to the loopback's address `text` on a socket of `family`; -1 if there is no such family here.
 */
static int connected(int family, const char *text, int *ret_listener)
{
    struct sockaddr_storage native = {.ss_family = (sa_family_t)family};
    void *bytes = family == AF_INET ? (void *)&((struct sockaddr_in *)&native)->sin_addr
                                    : (void *)&((struct sockaddr_in6 *)&native)->sin6_addr;
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *ret_listener = listener;
    g_assert_cmpint(inet_pton(family, text, bytes), ==, 1);
    if (listener >= 0 && bind(listener, (struct sockaddr *)&native, length) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&native, &length) == 0 &&
        connect(fd, (struct sockaddr *)&native, length) == 0)
        return fd;
    g_test_message("%s: %s", text, g_strerror(errno));
    close(fd);
    return -1;
}

static void test_families(void)
{
    const struct {
        int family;
        const char *text;
    } cases[] = {{AF_INET, "127.0.0.1"}, {AF_INET6, "::1"}, {AF_INET6, "::ffff:127.0.0.1"}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        int listener, fd = connected(cases[i].family, cases[i].text, &listener);
        if (fd >= 0) {
            g_assert_cmpint(rm_tcp_tune(fd, 1000, (RmChoice){0}), ==, 0);
            g_assert_cmpint(get(fd, IPPROTO_IP, IP_TOS), ==, 0);
            g_assert_cmpint(rm_tcp_tune(fd, 1000, (RmChoice){TRUE, 184}), ==, 0);
            g_assert_cmpint(get(fd, IPPROTO_IP, IP_TOS), ==, 184);
            if (cases[i].family == AF_INET6)
                g_assert_cmpint(get(fd, IPPROTO_IPV6, IPV6_TCLASS), ==, 184);
            close(fd);
        } else {
            g_assert_cmpint(cases[i].family, ==, AF_INET6); /* a host may have none */
        }
        close(listener);
    }
}

/* The mark of the process's socket with this port at its own end, or at the other; -1 if there is none. */
static int mark_of(guint16 port, gboolean own)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in local = {0}, peer = {0};
        socklen_t length = sizeof local;
        if (getsockname(fd, (struct sockaddr *)&local, &length) < 0 || local.sin_family != AF_INET ||
            getpeername(fd, (struct sockaddr *)&peer, &length) < 0)
            continue;
        if (g_ntohs(own ? local.sin_port : peer.sin_port) == port)
            return get(fd, IPPROTO_IP, IP_TOS);
    }
    return -1;
}

/* Each end marks what it sends, as its own side wishes. */
static void test_ends(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Pair) pair = pair_new(1, MIB, (const uint64_t[]){MIB, 0});
    pair->source.tos = (RmChoice){TRUE, 96};
    pair->destination.tos = (RmChoice){TRUE, 40};
    pair_start(pair);
    pair_connect(pair, &error);
    g_assert_no_error(error);
    g_assert_cmpint(mark_of(pair->port, FALSE), ==, 96);
    g_assert_cmpint(mark_of(pair->port, TRUE), ==, 40);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/tos/families", test_families);
    g_test_add_func("/tos/ends", test_ends);
    return g_test_run();
}
