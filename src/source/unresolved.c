/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is to be resolved, and where the guest is meanwhile. */
#include "source/unresolved.h"

#include "destination/settle.h"

gboolean rm_unresolved_is_due(RmJournal *journal, const RmJournalRecord *record)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    if (facts->side == RM_SIDE_DESTINATION)
        return rm_settle_destination_due(journal);
    gboolean left = record->state == RM_STATE_DONE && rm_journal_vmm_lives(facts) && !facts->keep_source;
    return !rm_state_is_end(record->state) || record->state == RM_STATE_DOUBTFUL || left;
}

static char *where_at_source(const RmJournalFacts *facts, RmOwner owner, RmState state)
{
    const char *here = g_get_host_name();
    if (state == RM_STATE_DONE)
        return g_strdup_printf("guest %s is on %s; its old QEMU (pid %d) is still here", facts->guest,
                               facts->peer, (int)facts->pid);
    if (owner != RM_OWNER_SOURCE)
        return g_strdup_printf("guest %s is paused on %s, and may run on %s", facts->guest, here,
                               facts->peer);
    return g_strdup_printf("guest %s is on %s (pid %d), and may stand still", facts->guest, here,
                           (int)facts->pid);
}

char *rm_unresolved_where(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    const char *here = g_get_host_name();
    RmOwner owner = rm_state_owner(record->state);
    if (!rm_journal_vmm_lives(facts))
        return g_strdup_printf("guest %s has no QEMU on %s any more", facts->guest, here);
    if (facts->side == RM_SIDE_SOURCE)
        return where_at_source(facts, owner, record->state);
    if (owner == RM_OWNER_SOURCE)
        return g_strdup_printf("guest %s is not on %s; the QEMU for it (pid %d) may still wait", facts->guest,
                               here, (int)facts->pid);
    return g_strdup_printf("guest %s is on %s (pid %d), and may stand still", facts->guest, here,
                           (int)facts->pid);
}
