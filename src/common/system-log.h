/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The host's log, for a program that has no stderr that anybody reads. */
#pragma once

#include <glib.h>

/* Which the environment variable RDMAMIG_LOG asks for by this value, of rm_log_init() and in all programs
 * that are started from there. */
#define RM_LOG_VARIABLE "RDMAMIG_LOG"
#define RM_LOG_SYSTEM "system"

/* One line to syslog's socket, where journald listens, too. Never waits: FALSE if it was not taken at once.
 */
gboolean rm_system_log(GLogLevelFlags level, const char *program, const char *text);
