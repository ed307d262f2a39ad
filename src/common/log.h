/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where messages go: GLib's structured log, written to the journal if stderr is connected to it, with whose
 * the line is in fields (common/log-context.h), else one line each on stderr; with RDMAMIG_LOG=system in the
 * environment to the host's log (the journal, or common/system-log.h) and to stderr. Modules log with
 * g_debug(); sessions and main() report with g_message(), g_warning() and g_critical().
 */
#pragma once

#include <glib.h>

/* `program` prefixes each line on stderr. Levels: -1 warnings only, 0 messages too, 1 info too, 2 debug too.
 * `program` is kept, not copied. A line that cannot be written (full disk, closed pipe, a reader that does
 * not read) is dropped: it never costs a guest. Ignores SIGPIPE. Call once, before the first thread; GLib
 * aborts on a second call. */
void rm_log_init(const char *program, int verbosity);

/* What each line on stderr begins with: the terminal's sequence that clears a progress bar off the line; ""
 * without one. A static string, set before threads are started. */
void rm_log_set_line_start(const char *text);
