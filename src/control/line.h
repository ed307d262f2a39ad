/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Cuts a byte stream into lines, however it arrives: split anywhere, or many lines at once. */
#pragma once

#include <glib.h>

typedef struct {
    GByteArray *bytes;
    gsize start;   /* of the line that comes next */
    gsize scanned; /* no newline before this one */
    gsize max;     /* bytes in a line without its newline */
} RmLineBuffer;

typedef enum { RM_LINE_NONE, RM_LINE_OK, RM_LINE_TOO_LONG } RmLineStatus;

void rm_line_buffer_init(RmLineBuffer *buffer, gsize max);
void rm_line_buffer_clear(RmLineBuffer *buffer);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmLineBuffer, rm_line_buffer_clear)

void rm_line_buffer_append(RmLineBuffer *buffer, const void *data, gsize size);
/* The next whole line, without its newline; borrowed until the next append, and not terminated. */
RmLineStatus rm_line_buffer_next(RmLineBuffer *buffer, const char **ret_line, gsize *ret_length);
/* Bytes of a line that has begun. */
gsize rm_line_buffer_pending(const RmLineBuffer *buffer);
