/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * `rdmamig send --background`: the session in a process of its own, which is waited for until its checks have
 * passed.
 */
#pragma once

#include <glib.h>

#define RM_BACKGROUND_VERB "background" /* of the session's process; its arguments are those of `send` */

/* The caller's half: starts the other one with `argv`, the words after `send`, NULL-terminated; passes on
 * what it says until it has detached, and then its session id on stdout. Returns the exit status: 0, or, of a
 * session that ended before, its own. Call before anything else that the process does: no threads, no log. */
int rm_background_run(char **argv);

/* The session's half. First of all: it leaves the caller's session and terminal. */
void rm_background_begin(void);
/* Where there is systemd, the session gets a scope of its own, so that it does not
 * end with the caller's service, or login. */
void rm_background_enter_scope(const char *id);
/* The session `id` goes on: the caller is told, and nothing is heard of this process any more but in the log.
 * FALSE if nobody could be told. */
gboolean rm_background_detach(const char *id);
