/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sizes, rates and durations as operators write and read them. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* "64M", "64MiB", "17179869184": bytes, suffix K/M/G/T (also KiB…, KB is refused) a power of 1024. Exact or
 * refused: no sign, fraction, space or overflow. Reason usage; the message quotes the text. */
gboolean rm_parse_size(const char *text, uint64_t *ret_bytes, GError **error);

/* A size in bytes per second, or a bit rate: "10Gbit", "100Mbit", "500Kbit" (powers of 1000, as links are
 * sold). */
gboolean rm_parse_rate(const char *text, uint64_t *ret_bytes_per_second, GError **error);

/* Milliseconds: "300", "300ms", "5s", "2m"; a bare number counts in `unit_ms`. */
gboolean rm_parse_duration(const char *text, uint64_t unit_ms, uint64_t *ret_ms, GError **error);

/* An unsigned integer in [min, max]. */
gboolean rm_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value, GError **error);

/* "64 MiB", "1.5 GiB"; caller frees. */
char *rm_format_size(uint64_t bytes);

/* "HOST", "HOST:PORT", "[IPV6]", "[IPV6%scope]:PORT", ":PORT"; ret_host is NULL if absent, and has no
 * brackets. Several colons without brackets are an IPv6 address without port. Reason usage. */
gboolean rm_parse_address(const char *text, uint16_t default_port, char **ret_host, uint16_t *ret_port,
                          GError **error);
