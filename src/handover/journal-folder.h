/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folders of the journals, and what lies in them. Reason journal throughout. */
#pragma once

#include "handover/journal.h"

/* A side's folder, to use with the *at() calls; -1 with the error. With `make`, it
 * and its parents are made and synced; without, a missing one is -1 without an error. */
int rm_journal_folder(RmSide side, gboolean make, GError **error);

/* STATEDIR/journal/SIDE, for messages; caller frees. */
char *rm_journal_folder_path(RmSide side);
