/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The systemd journal, for lines with fields. */
#pragma once

#include <glib.h>

/* Whether stderr is connected to it, as in a unit. */
gboolean rm_journald_is_stderr(void);

/* One entry: the text fields that GLib's log gives, and whose the line is (common/log-context.h). Never
 * waits: FALSE if it was not taken at once. */
gboolean rm_journald_send(const char *program, const GLogField *fields, gsize count);
