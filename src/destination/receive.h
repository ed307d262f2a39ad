/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session at the destination: from `hello` to `running`, or to an end without a guest.
 *
 * One thread, that of the control connection, makes every decision, in the order of the messages; the
 * transport's threads write RAM, the registration pool populates it. Phases, each entered once and never left
 * backwards:
 *
 * - receiving: RAM is written by the transport. Any failure: the waiting QEMU stays as it is, ready for
 * another attempt, since its RAM is emptied when the next session is accepted.
 * - loaded: the transport has been stopped and the state loaded; nothing of ours writes RAM any more. Any
 *   failure: this QEMU is used up, and is ended, so that it can't be asked again.
 * - committed: `committed` is in the journal, on disk: the guest is ours, and is run whatever becomes of the
 * connection.
 */
#pragma once

#include "destination/daemon.h"

/* Serves a control connection, a GSocketConnection or a GTlsConnection over one, to its end. `first` was read
 * from it already; `peer` names it in the log; `pass` stays the caller's. */
void rm_receive_run(RmDaemon *daemon, GIOStream *stream, const char *first, const char *peer, RmPass *pass);
