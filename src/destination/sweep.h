/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What an earlier rdmamigd left when it died: found in the journal at the start, and settled.
 *
 * Only sessions that nobody looks after (the journal's lock is free). Their QMP sockets are claimed before
 * the first connection is taken, in the main loop, so that no new session takes a QEMU that is about to be
 * ended; settling itself is left to a thread, since a QEMU may be slow to answer. Queries are answered
 * meanwhile: they go by the journal, too.
 */
#pragma once

#include "destination/daemon.h"

/* Before the main loop runs, which calls `done` once it is settled. */
void rm_sweep_start(RmDaemon *daemon, GSourceFunc done, gpointer data);
