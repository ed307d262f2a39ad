/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Escapes what is not printable: control characters, invalid bytes, and marks that reorder a line on screen.
 */
#include "common/printable.h"

#include <string.h>

#define ELLIPSIS "..."

/* Appends the escape or copy of one character; returns the bytes of `text` it took. */
static gsize append(GString *out, const char *text)
{
    gunichar c = g_utf8_get_char_validated(text, -1);
    if (c == (gunichar)-1 || c == (gunichar)-2) {
        g_string_append_printf(out, "\\x%02x", (unsigned char)*text);
        return 1;
    }
    gsize size = g_utf8_skip[(unsigned char)*text];
    if (c == '\n')
        g_string_append(out, "\\n");
    else if (c == '\t')
        g_string_append(out, "\\t");
    else if (c == '\r')
        g_string_append(out, "\\r");
    else if (c < 0x80 && !g_ascii_isprint(c))
        g_string_append_printf(out, "\\x%02x", c);
    else if (!g_unichar_isprint(c))
        g_string_append_printf(out, "\\u%04x", c);
    else
        g_string_append_len(out, text, size);
    return size;
}

char *rm_printable(const char *text, gsize max)
{
    GString *out = g_string_new(NULL);
    gsize keep = 0; /* where to cut should the rest not fit */
    while (text != NULL && *text != '\0') {
        if (out->len + strlen(ELLIPSIS) <= max)
            keep = out->len;
        text += append(out, text);
        if (out->len > max) {
            g_string_truncate(out, keep);
            g_string_append_len(out, ELLIPSIS, MIN(max - keep, strlen(ELLIPSIS)));
            break;
        }
    }
    return g_string_free(out, FALSE);
}
