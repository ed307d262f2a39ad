/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guardian: a small process beside a session, which looks after the guest when its daemon dies.
 *
 * It is this program again (/proc/self/exe), started by posix_spawn before any memory is registered, and
 * ready before anything depends on it; in a session of its own (setsid), and outside the daemon's cgroup
 * where systemd can be asked for a scope. It holds the QMP connection (shared: it neither reads nor writes
 * while the daemon lives), the journal's file, and one end of a socket pair. When the daemon's process has
 * ended, no thread of it can do anything any more, so what the journal says then is final: the guardian
 * settles the session by it (settle.h), and ends.
 *
 * The daemon tells it when the guest is paused and when it no longer is; a pause longer than `max_pause_ms`
 * without `commit` means that the daemon hangs: the guardian kills it, waits for its end, and settles.
 */
#pragma once

#include "handover/journal.h"

/* Hidden: it makes either program a guardian, see RmGuardianParams. */
#define RM_GUARDIAN_VERB "guardian"

typedef struct RmGuardian RmGuardian;

typedef struct {
    const char *verb;      /* of this program: its main() calls rm_guardian_main() for argv[1] == verb */
    int qmp_fd;            /* stays the caller's */
    RmJournal *journal;    /* borrowed */
    uint64_t max_pause_ms; /* 0: no bound */
} RmGuardianParams;

/* Returns at once: a process takes its time to start, which the caller has better uses for. */
RmGuardian *rm_guardian_start(const RmGuardianParams *params, GError **error);

/* Waits until it is ready. Before anything is done that would need it: the guest stopped, or its state
 * loaded. FALSE if it did not start. NULL is fine. */
gboolean rm_guardian_ready(RmGuardian *guardian, GError **error);

/* Async: tells it that the guest is paused now, or isn't any more; and that `commit` is journalled: the bound
 * is off. */
void rm_guardian_paused(RmGuardian *guardian, gboolean paused);

/* After the journal's last record: lets it end, and waits for that. NULL is fine. */
void rm_guardian_end(RmGuardian *guardian);

/* The guardian's main(); returns its exit status. `settle` is the side's. */
int rm_guardian_main(int argc, char **argv,
                     gboolean (*settle)(RmJournal *journal, int qmp_fd, GError **error));
