/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A thread that reads from or writes to one end of a pipe whose other end QEMU has, so that QMP can be spoken
 * meanwhile: QEMU may answer nothing while the pipe is full, or empty.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct RmPump RmPump;

/* Makes the pipe. *ret_fd is QEMU's end, the caller's to close. A reader collects from now on; a writer waits
 * for rm_pump_write(). Reason internal. NULL on failure. */
RmPump *rm_pump_reader(int *ret_fd, GError **error);
RmPump *rm_pump_writer(int *ret_fd, GError **error);

/* A writer, once: sends [data, data + length), which it copies not, and ends the stream. Reason internal. */
gboolean rm_pump_write(RmPump *pump, const uint8_t *data, gsize length, GError **error);

/* Waits for at most `ms` until a reader's stream has ended, or its thread has failed; FALSE if neither. */
gboolean rm_pump_wait(RmPump *pump, unsigned ms);

/* Waits until QEMU has closed its end (reader), or has taken everything (writer); FALSE after `timeout_ms` or
 * if it failed. Reason state-save or state-load. */
gboolean rm_pump_finish(RmPump *pump, unsigned timeout_ms, GError **error);

/* What a finished reader collected; caller unrefs. */
GByteArray *rm_pump_steal(RmPump *pump);

void rm_pump_free(RmPump *pump); /* stops the thread wherever it is, closes our end */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmPump, rm_pump_free)
