/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The answer to `query`: what became of a session, by its journal, whichever process had it.
 *
 * Asking decides: what is not committed is aborted for good, on disk before the answer. The guest runs here
 * only after `committed` is on disk, and only if that came first; so no source that hears "aborted" resumes a
 * guest that may yet run here, whoever dies or reboots in between.
 */
#pragma once

#include "control/message.h"

/* `token`: the session's, as its source knows it. *ret_done: committed, and the guest is as `commit` wished
 * (runs, or was left paused). A session that no journal here knows is unknown, whatever the token. Reasons
 * token-rejected (nothing is aborted then), journal. */
gboolean rm_fates_query(const char *session, const char *token, RmFate *ret_fate, gboolean *ret_done,
                        GError **error);
