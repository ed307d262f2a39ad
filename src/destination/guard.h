/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What outlives the daemon of a session: its journal, and the guardian that goes by it. */
#pragma once

#include "control/message.h"
#include "destination/find.h"
#include "handover/guardian.h"

/* Whether the session is new here. Before anything is started or emptied for it; making the journal has the
 * last word. Reasons journal, protocol. */
gboolean rm_guard_destination_check(const RmHello *hello, GError **error);

/* Makes the journal, with its first state, from which moment the session can be asked after, and starts the
 * guardian. Reasons journal, protocol, internal; *ret_journal may be set even then, and has to be moved to an
 * end. */
gboolean rm_guard_destination_start(const RmHello *hello, const RmAccept *accept, const RmFound *found,
                                    const char *peer, RmState first, RmJournal **ret_journal,
                                    RmGuardian **ret_guardian, GError **error);

/* The guardian's main(). */
int rm_guard_destination_main(int argc, char **argv);
