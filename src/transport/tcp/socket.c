/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Socket options and the two loops. The buffer sizes are left to the kernel on purpose: setting SO_SNDBUF or
 * SO_RCVBUF turns its auto-tuning off and caps them at net.core.[rw]mem_max, by default far below what it
 * tunes to.
 */
#include "transport/tcp/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define PIECE ((size_t)1 << 20)

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) < 0 ? -errno : 0;
}

/* An IPv6 socket may have an IPv4 peer; what is not its peer's family has no effect. The kernel keeps the two
 * lowest bits, which are not the DSCP's but ECN's. */
static int mark(int fd, uint8_t tos)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return -errno;
    int result = address.ss_family == AF_INET6 ? set(fd, IPPROTO_IPV6, IPV6_TCLASS, tos) : 0;
    return result == 0 ? set(fd, IPPROTO_IP, IP_TOS, tos) : result;
}

int rm_tcp_tune(int fd, unsigned timeout_ms, RmChoice tos)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return -errno;
    /* TCP_USER_TIMEOUT bounds data that is not acknowledged and a window that stays shut; it also replaces
     * the number of keep-alive probes, which find a peer that vanished while the line was idle. */
    int seconds = (int)MAX(timeout_ms / 2000, 1u);
    int result = set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (result == 0)
        result = set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)timeout_ms);
    if (result == 0)
        result = set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    if (result == 0)
        result = set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    if (result == 0)
        result = set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (result == 0 && tos.given)
        result = mark(fd, tos.value);
    return result;
}

/* Drops the first `done` bytes of what `message` names. */
static void advance(struct msghdr *message, size_t done)
{
    while (message->msg_iovlen > 0 && done >= message->msg_iov->iov_len) {
        done -= message->msg_iov->iov_len;
        message->msg_iov++;
        message->msg_iovlen--;
    }
    if (message->msg_iovlen > 0) {
        message->msg_iov->iov_base = (uint8_t *)message->msg_iov->iov_base + done;
        message->msg_iov->iov_len -= done;
    }
}

/* sendmsg() or recvmsg() of the first PIECE bytes of `message`. */
static ssize_t transfer(int fd, const struct msghdr *message, gboolean send)
{
    struct msghdr piece = *message;
    size_t length = 0;
    for (piece.msg_iovlen = 0; piece.msg_iovlen < message->msg_iovlen && length < PIECE; piece.msg_iovlen++)
        length += message->msg_iov[piece.msg_iovlen].iov_len;
    size_t excess = length > PIECE ? length - PIECE : 0;
    struct iovec *last = &piece.msg_iov[piece.msg_iovlen - 1];
    last->iov_len -= excess;
    ssize_t done;
    do {
        done = send ? sendmsg(fd, &piece, MSG_NOSIGNAL) : recvmsg(fd, &piece, MSG_WAITALL);
    } while (done < 0 && errno == EINTR);
    int code = done < 0 ? -errno : 0;
    last->iov_len += excess;
    return code < 0 ? code : done;
}

int rm_tcp_send(int fd, struct iovec *iov, unsigned n, uint64_t *sent)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    while (message.msg_iovlen > 0) {
        ssize_t done = transfer(fd, &message, TRUE);
        if (done < 0)
            return (int)done;
        rm_tcp_count(sent, (uint64_t)done);
        advance(&message, (size_t)done);
    }
    return 0;
}

int rm_tcp_receive(int fd, struct iovec *iov, unsigned n, uint64_t *received)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    gboolean any = FALSE;
    while (message.msg_iovlen > 0) {
        ssize_t done = transfer(fd, &message, FALSE);
        if (done < 0)
            return (int)done;
        if (done == 0)
            return any ? -EPIPE : -ENODATA;
        any = TRUE;
        rm_tcp_count(received, (uint64_t)done);
        advance(&message, (size_t)done);
    }
    return 0;
}
