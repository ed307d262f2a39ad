/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connecting to a unix socket by path, of any length, within a time. */
#pragma once

#include <gio/gio.h>
#include <sys/types.h>

/* Connects a non-blocking, close-on-exec stream socket to `path` before `deadline_us` (monotonic). A full
 * backlog is waited for. Reasons qmp-unreachable, qmp-busy, cancelled. Returns the descriptor or -1. */
int rm_qmp_socket_connect(const char *path, gint64 deadline_us, GCancellable *cancellable, GError **error);

/* The process that listens at the other end, as it was when it called listen(); 0 if it is in a PID namespace
 * that this process cannot see. Reason internal; -1 then. */
pid_t rm_qmp_socket_peer(int fd, GError **error);
