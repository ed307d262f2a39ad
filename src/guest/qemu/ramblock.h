/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guest's RAM blocks: found in QEMU, opened through /proc/PID/map_files. */
#pragma once

#include "guest/qemu/qmp.h"
#include "memory/block.h"

/* A block that is not shared travels in QEMU's device state, while the guest stands still: more than this is
 * refused. */
#define RM_RAM_IN_STATE_MAX (UINT64_C(64) << 20)

/* The blocks to move, sorted by name, opened and mapped. The array frees its blocks. Reasons ram-not-shared,
 * ram-memfd, ram-backing, privilege, qemu-version. */
gboolean rm_ram_blocks(RmQmp *qmp, pid_t pid, gboolean writable, GPtrArray **ret_blocks, GError **error);

/* Whether QEMU's blocks are still what `blocks` says: same names, addresses, sizes and files. Reason
 * guest-changed. */
gboolean rm_ram_recheck(RmQmp *qmp, pid_t pid, GPtrArray *blocks, GError **error);
