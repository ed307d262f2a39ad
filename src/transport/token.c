/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Making, writing, reading and comparing tokens. */
#include "transport/token.h"

#include "common/reason.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

gboolean rm_token_new(uint8_t token[RM_TOKEN_BYTES], GError **error)
{
    return getrandom(token, RM_TOKEN_BYTES, 0) == RM_TOKEN_BYTES ||
           rm_set_errno(error, RM_REASON_INTERNAL, errno, "no random token");
}

char *rm_token_format(const uint8_t token[RM_TOKEN_BYTES])
{
    GString *text = g_string_new(NULL);
    for (unsigned i = 0; i < RM_TOKEN_BYTES; i++)
        g_string_append_printf(text, "%02x", token[i]);
    return g_string_free(text, FALSE);
}

gboolean rm_token_parse(const char *text, uint8_t token[RM_TOKEN_BYTES])
{
    gboolean ok = strlen(text) == 2 * RM_TOKEN_BYTES;
    for (unsigned i = 0; i < RM_TOKEN_BYTES && ok; i++) {
        int high = g_ascii_xdigit_value(text[2 * i]), low = g_ascii_xdigit_value(text[2 * i + 1]);
        ok = high >= 0 && low >= 0;
        token[i] = (uint8_t)(high * 16 + low);
    }
    return ok;
}

gboolean rm_token_equal(const uint8_t a[RM_TOKEN_BYTES], const uint8_t b[RM_TOKEN_BYTES])
{
    volatile uint8_t difference = 0; /* volatile: keeps the compiler from leaving the loop early */
    for (unsigned i = 0; i < RM_TOKEN_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}
