/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Socket options and the loops. The buffer sizes are left to the kernel on purpose: setting SO_SNDBUF or
 * SO_RCVBUF turns its auto-tuning off and caps them at net.core.[rw]mem_max, by default far below what it
 * tunes to.
 */
#include "transport/tcp/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

/* ---- options ---- */

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

/* ---- the line's life ---- */

/* Allocated ahead: a first touch that finds no memory would be a SIGBUS, too. */
static int make_landing(RmTcpLine *line)
{
    line->landing_fd = memfd_create("rdmamig-landing", MFD_CLOEXEC);
    if (line->landing_fd < 0)
        return -errno;
    void *map = MAP_FAILED;
    if (fallocate(line->landing_fd, 0, 0, RM_TCP_LANDING_BYTES) == 0)
        map = mmap(NULL, RM_TCP_LANDING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, line->landing_fd, 0);
    if (map == MAP_FAILED) {
        int code = -errno;
        close(line->landing_fd);
        return code;
    }
    madvise(map, RM_TCP_LANDING_BYTES, MADV_DONTDUMP); /* as guest RAM itself */
    line->landing = map;
    return 0;
}

/* Our own calls are to block; GSocket, which TLS goes on using, makes its own block by poll() and must find
 * the socket as it left it. Nor may it give up a channel that is slow, but lives: that is rm_tcp_tune()'s. */
static int set_blocking(RmTcpLine *line)
{
    if (line->tls) {
        g_socket_set_timeout(rm_tls_socket(line->stream), 0);
        return 0;
    }
    int flags = fcntl(line->fd, F_GETFL);
    return flags < 0 || fcntl(line->fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? -errno : 0;
}

int rm_tcp_line_open(RmTcpLine *line, GIOStream *stream, RmTcpLineUse use, unsigned timeout_ms, RmChoice tos)
{
    *line = (RmTcpLine){.stream = g_object_ref(stream),
                        .fd = g_socket_get_fd(rm_tls_socket(stream)),
                        .tls = G_IS_TLS_CONNECTION(stream)};
    int code = set_blocking(line);
    if (code == 0)
        code = rm_tcp_tune(line->fd, timeout_ms, tos);
    if (code == 0 && line->tls && use == RM_TCP_LINE_RECEIVES)
        code = make_landing(line);
    if (code < 0)
        rm_tcp_line_close(line);
    return code;
}

void rm_tcp_line_try(RmTcpLine *line, uint8_t byte)
{
    GOutputStream *out = g_io_stream_get_output_stream(line->stream);
    if (line->tls)
        g_pollable_output_stream_write_nonblocking(G_POLLABLE_OUTPUT_STREAM(out), &byte, 1, NULL, NULL);
    else
        (void)!send(line->fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void rm_tcp_line_finish(RmTcpLine *line)
{
    /* Writable means that a good part of the socket's buffer is free: far more than these few bytes. */
    struct pollfd writable = {.fd = line->fd, .events = POLLOUT};
    if (line->stream != NULL && line->tls && poll(&writable, 1, 0) == 1 && writable.revents == POLLOUT)
        g_io_stream_close(line->stream, NULL, NULL);
}

void rm_tcp_line_shut_down(RmTcpLine *line)
{
    if (line->stream != NULL && !g_io_stream_is_closed(line->stream))
        shutdown(line->fd, SHUT_RDWR);
}

void rm_tcp_line_close(RmTcpLine *line)
{
    /* Dropping a GTlsConnection has a last word to the peer, which must not wait for it. */
    if (line->tls)
        rm_tcp_line_shut_down(line);
    g_clear_object(&line->stream);
    if (line->landing != NULL) {
        munmap(line->landing, RM_TCP_LANDING_BYTES);
        close(line->landing_fd);
    }
    *line = (RmTcpLine){0};
}

/* ---- moving bytes ---- */

typedef ssize_t Move(const RmTcpLine *line, struct msghdr *piece, size_t skip);

static ssize_t move_out(const RmTcpLine *line, struct msghdr *piece, size_t skip)
{
    return sendmsg(line->fd, piece, MSG_NOSIGNAL);
}

static ssize_t move_in(const RmTcpLine *line, struct msghdr *piece, size_t skip)
{
    return recvmsg(line->fd, piece, MSG_WAITALL);
}

static ssize_t move_landed(const RmTcpLine *line, struct msghdr *piece, size_t skip)
{
    return preadv(line->landing_fd, piece->msg_iov, (int)piece->msg_iovlen, (off_t)skip);
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

/* How much of `message` is within `limit`: bytes, and the pieces that they touch. */
static size_t measure(const struct msghdr *message, size_t limit, size_t *ret_pieces)
{
    size_t length = 0, pieces;
    for (pieces = 0; pieces < message->msg_iovlen && length < limit; pieces++)
        length += message->msg_iov[pieces].iov_len;
    *ret_pieces = pieces;
    return length;
}

/* `move` of the first `limit` bytes of `message`. */
static ssize_t transfer(const RmTcpLine *line, const struct msghdr *message, Move *move, size_t limit,
                        size_t skip)
{
    struct msghdr piece = *message;
    size_t length = measure(message, limit, &piece.msg_iovlen);
    size_t excess = length > limit ? length - limit : 0;
    struct iovec *last = &piece.msg_iov[piece.msg_iovlen - 1];
    last->iov_len -= excess;
    ssize_t done;
    do {
        done = move(line, &piece, skip);
    } while (done < 0 && errno == EINTR);
    int code = done < 0 ? -errno : 0;
    last->iov_len += excess;
    return code < 0 ? code : done;
}

static int send_clear(const RmTcpLine *line, struct msghdr *message, uint64_t *sent)
{
    while (message->msg_iovlen > 0) {
        ssize_t done = transfer(line, message, move_out, PIECE, 0);
        if (done < 0)
            return (int)done;
        rm_tcp_count(sent, (uint64_t)done);
        advance(message, (size_t)done);
    }
    return 0;
}

static int receive_clear(const RmTcpLine *line, struct msghdr *message, uint64_t *received)
{
    gboolean any = FALSE;
    while (message->msg_iovlen > 0) {
        ssize_t done = transfer(line, message, move_in, PIECE, 0);
        if (done < 0)
            return (int)done;
        if (done == 0)
            return any ? -EPIPE : -ENODATA;
        any = TRUE;
        rm_tcp_count(received, (uint64_t)done);
        advance(message, (size_t)done);
    }
    return 0;
}

/* ---- inside TLS ---- */

/* The errno that the same mishap has in clear. */
static int code_of(const GError *problem)
{
    g_debug("TLS of a data channel: %s", problem->message);
    if (problem->domain == G_TLS_ERROR)
        return problem->code == G_TLS_ERROR_EOF ? -EPIPE : -EBADMSG;
    if (problem->domain != G_IO_ERROR)
        return -EIO;
    switch (problem->code) {
    case G_IO_ERROR_CONNECTION_CLOSED:
        return -EPIPE;
    case G_IO_ERROR_TIMED_OUT:
        return -ETIMEDOUT;
    case G_IO_ERROR_HOST_UNREACHABLE:
        return -EHOSTUNREACH;
    case G_IO_ERROR_NETWORK_UNREACHABLE:
        return -ENETUNREACH;
    default:
        return -EIO;
    }
}

/* Blocks until the socket is ready for `events`, or has met an error: which one, must be asked here. GIO
 * would try again after ETIMEDOUT, and hear of a mere end then. */
static int await(const RmTcpLine *line, short events)
{
    struct pollfd wanted = {.fd = line->fd, .events = events};
    int pending = 0, code = 0;
    socklen_t length = sizeof code;
    while (poll(&wanted, 1, -1) < 0)
        if (errno != EINTR)
            return -errno;
    if ((wanted.revents & POLLERR) == 0)
        return 0;
    /* What had arrived before the error counts. */
    if (events == POLLIN && ioctl(line->fd, FIONREAD, &pending) == 0 && pending > 0)
        return 0;
    return getsockopt(line->fd, SOL_SOCKET, SO_ERROR, &code, &length) < 0 ? -errno : -code;
}

/* 0 if it may be tried again now. */
static int retry(const RmTcpLine *line, const GError *problem, short events)
{
    return g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK) ? await(line, events)
                                                                        : code_of(problem);
}

static int send_tls(const RmTcpLine *line, struct msghdr *message, uint64_t *sent)
{
    GPollableOutputStream *out = G_POLLABLE_OUTPUT_STREAM(g_io_stream_get_output_stream(line->stream));
    while (message->msg_iovlen > 0) {
        g_autoptr(GError) problem = NULL;
        const struct iovec *part = &message->msg_iov[0];
        gssize n =
            g_pollable_output_stream_write_nonblocking(out, part->iov_base, part->iov_len, NULL, &problem);
        int code = n < 0 ? retry(line, problem, POLLOUT) : 0;
        if (code < 0)
            return code;
        rm_tcp_count(sent, (uint64_t)MAX(n, 0));
        advance(message, (size_t)MAX(n, 0));
    }
    return 0;
}

/* From the landing to where `message` says. */
static int land(const RmTcpLine *line, struct msghdr *message, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = transfer(line, message, move_landed, length - done, done);
        if (n <= 0)
            return n < 0 ? (int)n : -EIO; /* it cannot be shorter than we made it */
        advance(message, (size_t)n);
        done += (size_t)n;
    }
    return 0;
}

/* The peer's bytes have ended, or broken off: inside a record, TLS takes that for a bad one. */
static gboolean is_at_end(const RmTcpLine *line)
{
    uint8_t byte;
    ssize_t n = recv(line->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Fills the landing's first `wish` bytes; *ret_got: what came. -ENODATA at an end that the peer has
 * announced. */
static int fill_landing(const RmTcpLine *line, size_t wish, size_t *ret_got)
{
    GPollableInputStream *in = G_POLLABLE_INPUT_STREAM(g_io_stream_get_input_stream(line->stream));
    for (*ret_got = 0; *ret_got < wish;) {
        g_autoptr(GError) problem = NULL;
        gssize n = g_pollable_input_stream_read_nonblocking(in, line->landing + *ret_got, wish - *ret_got,
                                                            NULL, &problem);
        int code = n > 0 ? 0 : n == 0 ? -ENODATA : retry(line, problem, POLLIN);
        if (code < 0)
            return code == -EBADMSG && is_at_end(line) ? -EPIPE : code;
        *ret_got += (size_t)MAX(n, 0);
    }
    return 0;
}

static int receive_tls(const RmTcpLine *line, struct msghdr *message, uint64_t *received)
{
    gboolean any = FALSE;
    while (message->msg_iovlen > 0) {
        size_t pieces, got;
        size_t wish = MIN(measure(message, RM_TCP_LANDING_BYTES, &pieces), RM_TCP_LANDING_BYTES);
        int code = fill_landing(line, wish, &got);
        any = any || got > 0;
        if (code == -ENODATA)
            return any ? -EPIPE : -ENODATA;
        if (code == -EPIPE)
            return any ? -EPIPE : -ECONNABORTED;
        if (code == 0)
            code = land(line, message, got);
        if (code < 0)
            return code;
        rm_tcp_count(received, got);
    }
    return 0;
}

/* ---- either ---- */

int rm_tcp_send(RmTcpLine *line, struct iovec *iov, unsigned n, uint64_t *sent)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    return line->tls ? send_tls(line, &message, sent) : send_clear(line, &message, sent);
}

int rm_tcp_receive(RmTcpLine *line, struct iovec *iov, unsigned n, uint64_t *received)
{
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    return line->tls ? receive_tls(line, &message, received) : receive_clear(line, &message, received);
}

gboolean rm_tcp_read(GIOStream *stream, void *to, gsize n, gint64 deadline, GCancellable *cancellable,
                     GError **error)
{
    GPollableInputStream *in = G_POLLABLE_INPUT_STREAM(g_io_stream_get_input_stream(stream));
    for (gsize done = 0; done < n;) {
        g_autoptr(GError) problem = NULL;
        /* First what TLS may have decrypted already: the socket would show nothing of it. */
        gssize got = g_pollable_input_stream_read_nonblocking(in, (uint8_t *)to + done, n - done, cancellable,
                                                              &problem);
        done += got > 0 ? (gsize)got : 0;
        if (got == 0) {
            g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_CONNECTION_CLOSED, "closed by the peer");
            return FALSE;
        }
        if (got > 0)
            continue;
        if (!g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK)) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        gint64 left = MAX(deadline - g_get_monotonic_time(), 0);
        if (!g_socket_condition_timed_wait(rm_tls_socket(stream), G_IO_IN, left, cancellable, error))
            return FALSE;
    }
    return TRUE;
}
