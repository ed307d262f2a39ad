/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What became of each session: the one place that decides between `commit` and an abort.
 *
 * A session is active until either commit() or abort() comes first; the other then fails, for good. The guest
 * runs here only after commit() has returned TRUE; a query answers "aborted" only after abort() has, so no
 * source resumes a guest that may yet run here. Thread-safe.
 */
#pragma once

#include "control/message.h"

#define RM_FATES_KEPT 1024 /* ended sessions remembered; older ones answer "unknown" */

typedef struct RmFates RmFates;

RmFates *rm_fates_new(void);
void rm_fates_free(RmFates *fates);

/* Makes `session` active; FALSE if its id was seen before. */
gboolean rm_fates_begin(RmFates *fates, const char *session);
/* Active → committed; FALSE if it isn't active any more. */
gboolean rm_fates_commit(RmFates *fates, const char *session);
/* Active → aborted. Returns what the fate is now: aborted, committed or unknown. */
RmFate rm_fates_abort(RmFates *fates, const char *session);
