/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session's token: what proves that a data channel belongs to it. Travels as hexadecimal text on the
 * control channel, and as it is at the head of a data channel. */
#pragma once

#include <glib.h>
#include <stdint.h>

#define RM_TOKEN_BYTES 32 /* 256 bits from the kernel's random source, one per session */

/* A fresh one. */
gboolean rm_token_new(uint8_t token[RM_TOKEN_BYTES], GError **error);
char *rm_token_format(const uint8_t token[RM_TOKEN_BYTES]); /* caller frees */
/* FALSE if the text is not exactly what format() makes, in either case; what `token` then holds is of no use.
 */
gboolean rm_token_parse(const char *text, uint8_t token[RM_TOKEN_BYTES]);
/* Compares in a time that does not depend on where the tokens differ. */
gboolean rm_token_equal(const uint8_t a[RM_TOKEN_BYTES], const uint8_t b[RM_TOKEN_BYTES]);
