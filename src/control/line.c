/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Line splitting. Each byte is looked at once, so that a peer which sends single bytes cannot make it
 * quadratic. */
#include "control/line.h"

#include <string.h>

void rm_line_buffer_init(RmLineBuffer *buffer, gsize max)
{
    *buffer = (RmLineBuffer){.bytes = g_byte_array_new(), .max = max};
}

void rm_line_buffer_clear(RmLineBuffer *buffer)
{
    g_clear_pointer(&buffer->bytes, g_byte_array_unref);
}

void rm_line_buffer_append(RmLineBuffer *buffer, const void *data, gsize size)
{
    if (buffer->start > 0) {
        g_byte_array_remove_range(buffer->bytes, 0, buffer->start);
        buffer->scanned -= buffer->start;
        buffer->start = 0;
    }
    g_byte_array_append(buffer->bytes, data, size);
}

RmLineStatus rm_line_buffer_next(RmLineBuffer *buffer, const char **ret_line, gsize *ret_length)
{
    if (buffer->bytes->len == 0) /* whose data is NULL */
        return RM_LINE_NONE;
    const char *line = (const char *)buffer->bytes->data + buffer->start;
    gsize left = buffer->bytes->len - buffer->scanned;
    const char *newline = left > 0 ? memchr(buffer->bytes->data + buffer->scanned, '\n', left) : NULL;
    gsize length = newline != NULL ? (gsize)(newline - line) : rm_line_buffer_pending(buffer);
    if (length > buffer->max)
        return RM_LINE_TOO_LONG;
    if (newline == NULL) {
        buffer->scanned = buffer->bytes->len;
        return RM_LINE_NONE;
    }
    buffer->start += length + 1;
    buffer->scanned = buffer->start;
    *ret_line = line;
    *ret_length = length;
    return RM_LINE_OK;
}

gsize rm_line_buffer_pending(const RmLineBuffer *buffer)
{
    return buffer->bytes->len - buffer->start;
}
