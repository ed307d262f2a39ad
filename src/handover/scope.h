/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A systemd scope of its own for a process: a cgroup that is not its parent's, so that it outlives what is
 * done to that one as a whole (systemctl stop or kill, the OOM killer).
 */
#pragma once

#include <gio/gio.h>
#include <sys/types.h>

/* Asks the system's systemd for the scope `name` (NAME.scope) around `pid`. FALSE where there is no systemd,
 * or it declines; bounded to a few seconds. */
gboolean rm_scope_enter(const char *name, const char *description, pid_t pid, GError **error);

/* Whether `pid` is in the same cgroup as this process: nobody has put it elsewhere, then. */
gboolean rm_scope_is_ours(pid_t pid);

/* The request itself, over a connection to the bus, or to systemd. */
gboolean rm_scope_request(GDBusConnection *connection, const char *name, const char *description, pid_t pid,
                          GError **error);
