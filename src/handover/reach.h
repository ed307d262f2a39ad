/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The VMM of a journal, reached by a process that did not start with it. */
#pragma once

#include "guest/guest.h"
#include "handover/journal.h"

/* *ret_guest is NULL if the VMM has ended (or this host was booted since): TRUE all the same. FALSE if it is
 * there and can't be reached; reasons as rm_guest_qemu_new(), guest-changed if its socket is another's now.
 */
gboolean rm_reach_guest(const RmJournalFacts *facts, unsigned timeout_ms, RmGuest **ret_guest,
                        GError **error);
