/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU as a process of this host: which one it is, the files it has mapped, and whether it is still there. */
#pragma once

#include "common/mappings.h"

#include <gio/gio.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens the file behind a mapping, read-write if `writable`. Reasons privilege, guest-changed. -1 on failure.
 */
int rm_vmm_open(pid_t pid, const RmMapping *mapping, gboolean writable, GError **error);

/* Decides which process is QEMU. `peer` is what the socket says (0: unknown, and with libvirt it may be
 * whoever made the socket), `thread` a vCPU's thread id as QEMU itself knows it (in its own PID namespace; 0:
 * none). Reason internal. */
gboolean rm_vmm_find(pid_t peer, pid_t thread, pid_t *ret_pid, GError **error);

/* The name of a process (comm), "?" if it has gone; caller frees. */
char *rm_vmm_comm(pid_t pid);

/* Waits until the process behind `pidfd` has ended; FALSE after `timeout_ms`. */
gboolean rm_vmm_wait_end(int pidfd, unsigned timeout_ms);
