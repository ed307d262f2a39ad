/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control channel's lines and their JSON: the same lines however they arrive, and what is parsed is
 * exact. */
#include "fuzz.h"

#include "control/channel.h"
#include "control/json.h"
#include "control/line.h"

#include <string.h>

#define LINE_MAX_BYTES 4096

/* The lines, each ending in a newline, as they come out if `step` bytes are put in at a time. */
static GString *cut(const uint8_t *data, size_t size, size_t step)
{
    g_auto(RmLineBuffer) buffer = {0};
    RmLineStatus status = RM_LINE_NONE;
    GString *lines = g_string_new(NULL);
    rm_line_buffer_init(&buffer, LINE_MAX_BYTES);
    for (size_t done = 0; done < size && status != RM_LINE_TOO_LONG; done += step) {
        const char *line;
        gsize length;
        rm_line_buffer_append(&buffer, data + done, MIN(step, size - done));
        while ((status = rm_line_buffer_next(&buffer, &line, &length)) == RM_LINE_OK) {
            g_assert_cmpuint(length, <=, LINE_MAX_BYTES);
            g_string_append_len(lines, line, length);
            g_string_append_c(lines, '\n');
        }
        g_assert_true(status == RM_LINE_TOO_LONG || rm_line_buffer_pending(&buffer) <= LINE_MAX_BYTES);
    }
    return lines;
}

static void parse(const char *line, size_t length)
{
    json_object *object = rm_json_parse(line, length, RM_MESSAGE_DEPTH, NULL);
    if (object == NULL)
        return;
    const char *text = json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN);
    json_object *again = rm_json_parse(text, strlen(text), RM_MESSAGE_DEPTH, NULL);
    if (again == NULL)
        g_error("not accepted again: %s", text);
    fuzz_assert_same(object, again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t step = fuzz_byte(&data, &size) + 1u;
    GString *whole = cut(data, size, MAX(size, 1)), *pieces = cut(data, size, step);
    g_assert_cmpmem(whole->str, whole->len, pieces->str, pieces->len);
    for (const char *line = whole->str, *end; (end = memchr(line, '\n', whole->str + whole->len - line));
         line = end + 1)
        parse(line, end - line);
    g_string_free(whole, TRUE);
    g_string_free(pieces, TRUE);
    return 0;
}
