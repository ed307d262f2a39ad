/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The objects of `--json`, of `rdmamig status` and of reports: what they begin with, and how times are told.
 */
#pragma once

#include <glib.h>
#include <json-c/json.h>
#include <stdint.h>

#define RM_NOTICE_SCHEMA 1

/* Wall clock, microseconds since 1970, as ISO 8601 in UTC; caller frees. */
char *rm_notice_time(int64_t wall_us);

/* With `schema`, `time` (now), `session`, `guest` and `event`; caller owns. */
json_object *rm_notice_new(const char *session, const char *guest, const char *event);

/* A duration in milliseconds with three decimals; null if negative: it did not come to that. */
void rm_notice_add_ms(json_object *notice, const char *key, int64_t us);

/* A string, made printable, for parts of it may be other people's words; null if NULL. */
void rm_notice_add_text(json_object *notice, const char *key, const char *text);

/* One line of an object, without its newline; caller frees. */
char *rm_notice_line(json_object *notice);
