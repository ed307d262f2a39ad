/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Earlier sessions with the same VMM.
 *
 * Whoever settles a session acts on its VMM by what the journal says: rolls it back, lets it run, ends it. If
 * a later session had meanwhile handed the guest on, or filled that VMM with another, this would give a
 * second running guest, or end the only one. So no session begins with a VMM that an earlier one, of either
 * side, has left to be settled, unless all that takes is a record, which is made here; and what the earlier
 * journals say is synced first, so that it stays so.
 */
#pragma once

#include <glib.h>
#include <sys/types.h>

/* `pid`: the VMM's. Reason guest-busy, naming the session and what to do; journal. */
gboolean rm_earlier_check(pid_t pid, GError **error);
