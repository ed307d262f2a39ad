/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A thread that reads from or writes to one end of a pipe whose other end QEMU has, so that QMP can be spoken
 * meanwhile: QEMU may answer nothing while the pipe is full, or empty.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct RmPump RmPump;

/* Makes the pipe and starts the thread. *ret_fd is QEMU's end, the caller's to close. A reader collects, a
 * writer sends [data, data + length), which it copies not. Reason internal. NULL on failure. */
RmPump *rm_pump_reader(int *ret_fd, GError **error);
RmPump *rm_pump_writer(const uint8_t *data, gsize length, int *ret_fd, GError **error);

/* Waits until QEMU has closed its end (reader), or has taken everything (writer); FALSE after `timeout_ms` or
 * if it failed. Reason state-save or state-load. */
gboolean rm_pump_finish(RmPump *pump, unsigned timeout_ms, GError **error);

/* What a finished reader collected; caller unrefs. */
GByteArray *rm_pump_steal(RmPump *pump);

void rm_pump_free(RmPump *pump); /* stops the thread wherever it is, closes our end */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmPump, rm_pump_free)
