/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Earlier sessions with the same VMM. */
#include "handover/earlier.h"

#include "common/reason.h"
#include "handover/journal.h"
#include "handover/table.h"

/* The destination's VMM is used up by a load; it waits only to be ended. */
static gboolean is_spent(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    return facts->side == RM_SIDE_DESTINATION && rm_state_owner(record->state) == RM_OWNER_SOURCE &&
           (record->past & (RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(PREPARED))) != 0;
}

/* One that nobody looks after and that had not come to the guest, so that a record is all that is due: it is
 * settled by the way. */
static gboolean settle_by_record(RmJournal *journal, RmJournalRecord *record, GError **error)
{
    const RmTransition *row = rm_table_step(rm_journal_facts(journal)->side, record->state, RM_EVENT_SETTLE);
    return row == NULL || row->duties != RM_DUTY(RECORD) || !rm_journal_take(journal) ||
           rm_journal_move(journal, 1u << row->from, row->to, record->run, NULL, TRUE, &record->state, error);
}

static gboolean check(RmJournal *journal, pid_t pid, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmJournalRecord) record = {0};
    if (facts->pid != pid || !rm_journal_vmm_lives(facts))
        return TRUE;
    if (!rm_journal_read(journal, &record, error) || !settle_by_record(journal, &record, error))
        return FALSE;
    if (!rm_state_is_end(record.state) || record.state == RM_STATE_DOUBTFUL)
        return rm_fail(error, RM_REASON_GUEST_BUSY,
                       "session %s with this QEMU (pid %d) stands at %s; settle it first: rdmamig resolve %s",
                       facts->session, (int)pid, rm_state_name(record.state), facts->session);
    if (is_spent(facts, &record))
        return rm_fail(error, RM_REASON_GUEST_BUSY,
                       "this QEMU (pid %d) was used up by session %s; end it, and start a new one", (int)pid,
                       facts->session);
    return rm_journal_sync(journal, error);
}

gboolean rm_earlier_check(pid_t pid, GError **error)
{
    for (int side = RM_SIDE_SOURCE; side <= RM_SIDE_DESTINATION; side++) {
        g_autoptr(GPtrArray) sessions = rm_journal_list_of(side, pid);
        for (guint i = 0; i < sessions->len; i++) {
            g_autoptr(GError) problem = NULL;
            g_autoptr(RmJournal) journal = rm_journal_open(side, sessions->pdata[i], &problem);
            if (problem != NULL) /* which VMM it names can't be told; nobody settles by it either */
                g_debug("%s", problem->message);
            if (journal != NULL && !check(journal, pid, error))
                return FALSE;
        }
    }
    return TRUE;
}
