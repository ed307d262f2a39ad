/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sessions that nobody looks after, and that `rdmamig resolve` is for. */
#pragma once

#include "handover/journal.h"

/* `record`: the journal's latest. Whether anything is left to do, should nobody look after the session. */
gboolean rm_unresolved_is_due(RmJournal *journal, const RmJournalRecord *record);

/* Where its guest is, as far as journal and process table tell: its QEMU is not asked. Caller frees. */
char *rm_unresolved_where(const RmJournalFacts *facts, const RmJournalRecord *record);
