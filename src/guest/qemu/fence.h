/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Waiting for QEMU's block I/O in flight (docs/architecture.md: direct I/O goes round the page tables). */
#pragma once

#include "guest/qemu/events.h"

/* Returns once all block I/O that was in flight at the call has ended. *ret_stall_us is for how long the
 * guest's console, and with stop/cont the guest itself, may have stood still; 0 if it has no block devices.
 */
gboolean rm_fence(RmQmp *qmp, RmEvents *events, int64_t *ret_stall_us, GError **error);
