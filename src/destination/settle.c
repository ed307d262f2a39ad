/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the destination. */
#include "destination/settle.h"

#include "common/reason.h"

#define LOADED (RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(PREPARED))

/* Whether the session's VMM is of no use to anybody: used up, or started for it alone. */
static gboolean vmm_is_spent(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    return (record->past & LOADED) != 0 || facts->started;
}

gboolean rm_settle_destination_due(RmJournal *journal)
{
    g_auto(RmJournalRecord) record = {0};
    const RmJournalFacts *facts = rm_journal_facts(journal);
    if (!rm_journal_read(journal, &record, NULL) || record.state == RM_STATE_DONE)
        return FALSE;
    if (!rm_state_is_end(record.state))
        return TRUE;
    return vmm_is_spent(facts, &record) && rm_journal_vmm_lives(facts);
}

/* The VMM has ended, and nobody can tell whether the guest had run in it. That it was committed here must no
 * longer be said, for nothing would ever run it; that it was aborted must not be said either, for it may have
 * run. So the answer is "unknown" from now on, and the source's operator decides. */
static gboolean leave_doubtful(RmJournal *journal, gboolean run, RmState *ret_state, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    if (!rm_journal_move(journal, RM_STATE_BIT(COMMITTED), RM_STATE_DOUBTFUL, run, NULL, FALSE, ret_state,
                         error))
        return FALSE;
    return rm_fail(error, RM_REASON_GUEST_GONE,
                   "guest %s had been handed over to this host, and its QEMU (pid %d) has ended; it may have "
                   "run here",
                   facts->guest, (int)facts->pid);
}

/* What the daemon had changed of the VMM's settings and noted, before it died. */
static void put_back(RmJournal *journal, RmGuest *guest)
{
    g_auto(RmJournalRecord) record = {0};
    g_autoptr(GError) problem = NULL;
    if (!rm_journal_read(journal, &record, NULL) || record.note == NULL)
        return;
    guest->ops->recall(guest, record.note);
    if (!guest->ops->put_back(guest, &problem))
        g_warning("session %s: %s", rm_journal_facts(journal)->session, problem->message);
}

/* A VMM that still waits is as it was found. One that does not is in other hands by now. */
static void release_waiting(RmJournal *journal, RmGuest *guest)
{
    RmGuestRun run;
    if (guest->ops->run_state(guest, &run, NULL) && run == RM_GUEST_WAITING)
        put_back(journal, guest);
}

/* The guest is here. activate() is without effect on one that runs. */
static gboolean run_guest(RmJournal *journal, RmGuest *guest, gboolean run, RmState *ret_state,
                          GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    if (!rm_journal_sync(journal, error))
        return FALSE;
    if (guest == NULL && !rm_journal_vmm_lives(facts))
        return leave_doubtful(journal, run, ret_state, error);
    if (guest == NULL)
        return rm_fail(error, RM_REASON_QMP_UNREACHABLE, "QEMU (pid %d) with guest %s cannot be reached",
                       (int)facts->pid, facts->guest);
    if (run && !guest->ops->activate(guest, error))
        return FALSE;
    put_back(journal, guest);
    return rm_journal_move(journal, RM_STATE_BIT(COMMITTED), RM_STATE_DONE, run, NULL, FALSE, ret_state,
                           error);
}

/* A spent VMM is paused. One that runs has got there by somebody else's hand since: it may be a guest's only
 * one. */
static gboolean end_spent(const RmJournalFacts *facts, RmGuest *guest, GError **error)
{
    RmGuestRun run;
    g_autoptr(GError) problem = NULL;
    if (!guest->ops->run_state(guest, &run, &problem)) {
        if (rm_error_reason(problem) == RM_REASON_GUEST_GONE)
            return TRUE;
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    if (run == RM_GUEST_RUNNING)
        return rm_fail(
            error, RM_REASON_GUEST_STATE,
            "QEMU (pid %d) should have been ended, and runs: somebody else let it run; it was left "
            "alone",
            (int)facts->pid);
    return guest->ops->quit(guest, error);
}

gboolean rm_settle_destination(RmJournal *journal, RmGuest *guest, RmState *ret_state, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmJournalRecord) record = {0};
    RmState state;
    /* The abort comes first, and so does the look: of a commit that comes in between, the move tells. */
    if (!rm_journal_move(journal, RM_JOURNAL_OPEN, RM_STATE_FAILED, FALSE, NULL, TRUE, &state, error) ||
        !rm_journal_read(journal, &record, error))
        return FALSE;
    gboolean ok = TRUE;
    if (state == RM_STATE_COMMITTED)
        ok = run_guest(journal, guest, record.run, &state, error);
    else if (rm_state_owner(state) == RM_OWNER_SOURCE && vmm_is_spent(facts, &record) && guest != NULL)
        ok = rm_journal_sync(journal, error) && end_spent(facts, guest, error);
    else if (rm_state_owner(state) == RM_OWNER_SOURCE && guest != NULL)
        release_waiting(journal, guest);
    if (ret_state != NULL)
        *ret_state = state;
    return ok;
}
