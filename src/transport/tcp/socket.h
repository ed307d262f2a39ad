/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A data channel's line: a socket in clear, or the same socket inside TLS. Blocking, scattered, complete.
 *
 * In clear, sendmsg() and recvmsg() move bytes between the socket and guest memory, and a page that is not
 * there (a file truncated below us, a full tmpfs) is -EFAULT. TLS is worked in this process, where touching
 * such a page is SIGBUS and the end of the daemon, with every session in it. So no TLS code ever touches
 * guest memory:
 * - The source gives a TLS line copies, which it has read from the RAM's file (rm_block_read()). That also
 *   keeps a guest that goes on writing from changing a record between its authentication and its encryption.
 * - The destination decrypts into a small file in memory, the landing, and has the kernel copy from there
 * into the guest's, by preadv(): -EFAULT as with recvmsg(). process_vm_writev() on ourselves would do, too,
 * but is a debugger's call, which a hardened unit forbids; a pipe would copy twice.
 *
 * Threads: one sends or receives; another may shutdown() the socket meanwhile, which ends a call that blocks.
 * Inside TLS one thread may send while another receives.
 */
#pragma once

#include "transport/transport.h"

#include <stdint.h>
#include <sys/uio.h>

typedef struct {
    GIOStream *stream; /* keeps fd open, and in clear is never used for I/O any more; NULL: no line */
    int fd;
    gboolean tls, receives;
    int landing_fd;   /* TLS, of a line that receives: RM_TCP_LANDING_BYTES in memory … */
    uint8_t *landing; /* … mapped; else NULL */
} RmTcpLine;

/* Four TLS records: enough that what is done for each landing does not count, and few enough to stay in a
 * core's cache. */
#define RM_TCP_LANDING_BYTES ((size_t)64 << 10)

typedef enum { RM_TCP_LINE_SENDS, RM_TCP_LINE_RECEIVES } RmTcpLineUse;

/* Makes `line`, all zero, a line over `stream`, a GSocketConnection or a GTlsConnection over one, of which it
 * takes a reference; tunes its socket. 0 or a negative errno, and `line` is all zero again. */
int rm_tcp_line_open(RmTcpLine *line, GIOStream *stream, RmTcpLineUse use, unsigned timeout_ms, RmChoice tos);

/* Sends one byte, if it can go at once. */
void rm_tcp_line_try(RmTcpLine *line, uint8_t byte);

/* Tells the far end that this is the end and not a break (TLS's close_notify; in clear there is no
 * difference), unless the line is so full that it would block. */
void rm_tcp_line_finish(RmTcpLine *line);

/* Ends calls that block, in any thread; closes nothing. */
void rm_tcp_line_shut_down(RmTcpLine *line);

/* Closes it; nothing if it is no line. */
void rm_tcp_line_close(RmTcpLine *line);

/* No delay, packets marked as chosen, and a peer that vanishes or takes nothing for timeout_ms ends it. 0 or
 * a negative errno. */
int rm_tcp_tune(int fd, unsigned timeout_ms, RmChoice tos);

/* Sends all of `iov` (which it uses up): inside TLS never guest memory. `sent` is increased atomically as
 * bytes go, without what TLS adds. 0 or a negative errno; -EPIPE if the peer has closed. */
int rm_tcp_send(RmTcpLine *line, struct iovec *iov, unsigned n, uint64_t *sent);

/* Receives until `iov` (which it uses up) is full; `received` is increased atomically as bytes come, may be
 * NULL. 0 or a negative errno; -ENODATA if the stream ended before the first byte, -EPIPE if it ended later.
 * Inside TLS -ECONNABORTED if it ended there without the peer's word that this is the end, and -EBADMSG if
 * the bytes are not the peer's. */
int rm_tcp_receive(RmTcpLine *line, struct iovec *iov, unsigned n, uint64_t *received);

/* Reads exactly `n` bytes off a connection that is no line yet, of either kind, by `deadline` (of
 * g_get_monotonic_time()), and not a byte more. FALSE with GIO's error; G_IO_ERROR_CONNECTION_CLOSED if the
 * peer closed. */
gboolean rm_tcp_read(GIOStream *stream, void *to, gsize n, gint64 deadline, GCancellable *cancellable,
                     GError **error);

static inline void rm_tcp_count(uint64_t *counter, uint64_t n)
{
    if (counter != NULL)
        __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}
