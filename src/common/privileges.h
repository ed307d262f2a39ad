/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a program that root starts keeps of root's rights.
 *
 * One table (privileges.c) says which capability each program needs, and what for; docs/architecture.md has
 * it in words, and the systemd unit's CapabilityBoundingSet is its column of rdmamigd. Everything else leaves
 * the permitted and effective sets when the program starts, before it has threads: capabilities are a
 * thread's own, and threads inherit them.
 *
 * Those that only a moment needs, or only a guardian that is started later, are permitted without being
 * effective. A guardian is this program executed anew, by which root gets back all that the bounding set
 * allows; it then drops what a guardian has no use for.
 *
 * A program that is not root keeps what it was given.
 */
#pragma once

#include <glib.h>

typedef enum {
    RM_PROGRAM_SEND,
    RM_PROGRAM_DAEMON,
    RM_PROGRAM_GUARDIAN, /* at either end */
    RM_PROGRAM_RESOLVE,
    RM_PROGRAM_ASK, /* status, cancel */
    RM_PROGRAM_COUNT,
} RmProgram;

/* First of all, before any thread: files and sockets from now on are their owner's alone. */
void rm_privileges_begin(void);

/* Before any thread. `runs_commands`: of others (--exec), which are to have all of root's rights; without it
 * the bounding set goes, too, and no program that this one may be made to execute ever gets more. Something
 * that can't be dropped is logged. */
void rm_privileges_drop(RmProgram program, gboolean runs_commands);

/* As begin() found it: for the command that --exec runs. Async-signal-safe. */
void rm_privileges_restore_umask(void);

/* Makes CAP_SYS_ADMIN effective for this thread, if it is permitted, or no longer. */
void rm_privileges_admin(gboolean on);
