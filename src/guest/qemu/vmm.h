/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU as a process of this host: which one it is, what it has mapped, and whether it is still there. */
#pragma once

#include <gio/gio.h>
#include <stdint.h>
#include <sys/types.h>

/* One mapping. Identity is (dev, ino); the path is never looked at: it may hold anything, " (deleted)"
 * included. */
typedef struct {
    uint64_t start, end; /* as in the name of its /proc/PID/map_files entry */
    uint64_t offset;     /* of `start` in the file */
    dev_t dev;
    ino_t ino; /* 0: anonymous */
    gboolean shared;
} RmVma;

/* The mappings of `pid`, in order; an array of RmVma, caller unrefs. Reasons privilege, guest-gone. */
gboolean rm_vmm_maps(pid_t pid, GArray **ret_vmas, GError **error);

/* Parses the text of a maps file, for rm_vmm_maps() and its tests; lines that are none are skipped. */
GArray *rm_vmm_parse_maps(const char *text);

/* Opens the file behind a mapping, read-write if `writable`. Reasons privilege, guest-changed. -1 on failure.
 */
int rm_vmm_open(pid_t pid, const RmVma *vma, gboolean writable, GError **error);

/* Decides which process is QEMU. `peer` is what the socket says (0: unknown, and with libvirt it may be
 * whoever made the socket), `thread` a vCPU's thread id as QEMU itself knows it (in its own PID namespace; 0:
 * none). Reason internal. */
gboolean rm_vmm_find(pid_t peer, pid_t thread, pid_t *ret_pid, GError **error);

/* The name of a process (comm), "?" if it has gone; caller frees. */
char *rm_vmm_comm(pid_t pid);

/* Waits until the process behind `pidfd` has ended; FALSE after `timeout_ms`. */
gboolean rm_vmm_wait_end(int pidfd, unsigned timeout_ms);
