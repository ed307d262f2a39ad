/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `rdmamig status` as text, for a terminal of 80 columns: a row a session, and indented lines below it for
 * what its operator should know. The objects are those of `--json`. */
#pragma once

#include <glib.h>
#include <json-c/json.h>

#define RM_STATUS_COLUMNS 80

void rm_status_text_head(GString *text);
/* Nothing if there are none. `full`: with the sessions' whole ids. */
void rm_status_text_group(GString *text, const char *heading, const GPtrArray *objects, gboolean full);
/* An rdmamigd's answer. */
void rm_status_text_daemon(GString *text, json_object *daemon);
