/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The plain-socket part of the tcp transport: blocking, scattered, complete. */
#pragma once

#include "transport/transport.h"

#include <stdint.h>
#include <sys/uio.h>

/* Makes `fd` a data channel: blocking, no delay, packets marked as chosen, and a peer that vanishes or takes
 * nothing for timeout_ms ends it. 0 or a negative errno. */
int rm_tcp_tune(int fd, unsigned timeout_ms, RmChoice tos);

/* Sends all of `iov` (which it uses up). `sent` is increased atomically as bytes go. 0 or a negative errno.
 */
int rm_tcp_send(int fd, struct iovec *iov, unsigned n, uint64_t *sent);

/* Receives until `iov` (which it uses up) is full; `received` is increased atomically as bytes come, may be
 * NULL. 0 or a negative errno; -ENODATA if the stream ended before the first byte, -EPIPE if it ended later.
 */
int rm_tcp_receive(int fd, struct iovec *iov, unsigned n, uint64_t *received);

static inline void rm_tcp_count(uint64_t *counter, uint64_t n)
{
    if (counter != NULL)
        __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}
