/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the destination: by the table's rows for `settle`, and for what comes of `run`. */
#include "destination/settle.h"

#include "common/reason.h"
#include "handover/actor.h"

#define LOADED (RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(PREPARED))

typedef struct {
    RmActor actor;
    RmGuest *guest;  /* NULL: its VMM is gone, or does not answer */
    RmEvent after;   /* what has come of `run`; RM_EVENT_COUNT: not tried */
    GError *problem; /* why the guest does not run */
} Case;

static Case *case_of(RmActor *actor)
{
    return (Case *)((char *)actor - G_STRUCT_OFFSET(Case, actor));
}

/* Whether the session's VMM is of no use to anybody: used up, or started for it alone. */
static gboolean vmm_is_spent(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    return (record->past & LOADED) != 0 || facts->started;
}

gboolean rm_settle_destination_due(RmJournal *journal)
{
    g_auto(RmJournalRecord) record = {0};
    const RmJournalFacts *facts = rm_journal_facts(journal);
    if (!rm_journal_read(journal, &record, NULL) || rm_actor_is_idle(RM_SIDE_DESTINATION, record.state))
        return FALSE;
    const RmTransition *row = rm_table_step(RM_SIDE_DESTINATION, record.state, RM_EVENT_SETTLE);
    return row == NULL || row->duties != RM_DUTY(END_SPENT) ||
           (vmm_is_spent(facts, &record) && rm_journal_vmm_lives(facts));
}

/* If the VMM has ended, nobody can tell whether the guest had run in it. That it was committed here must no
 * longer be said, for nothing would ever run it; that it was aborted must not be said either, for it may have
 * run. So the answer is "unknown" from now on, and the source's operator decides. */
static RmEvent run_guest(Case *this, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(this->actor.journal);
    if (this->guest == NULL && !rm_journal_vmm_lives(facts)) {
        rm_fail(error, RM_REASON_GUEST_GONE,
                "guest %s had been handed over to this host, and its QEMU (pid %d) has ended; it may have "
                "run here",
                facts->guest, (int)facts->pid);
        return RM_EVENT_GONE;
    }
    if (this->guest == NULL)
        rm_fail(error, RM_REASON_QMP_UNREACHABLE, "QEMU (pid %d) with guest %s cannot be reached",
                (int)facts->pid, facts->guest);
    else if (!this->actor.record.run || this->guest->ops->activate(this->guest, error))
        return RM_EVENT_ACTIVATED;
    return RM_EVENT_ACTIVATE_FAILED;
}

/* Without effect on a guest that runs. */
static gboolean duty_run(RmActor *actor, G_GNUC_UNUSED GError **error)
{
    Case *this = case_of(actor);
    this->after = run_guest(this, &this->problem);
    if (this->after == RM_EVENT_ACTIVATED) {
        this->guest->ops->recall(this->guest, actor->record.note);
        this->guest->ops->put_back(this->guest);
    }
    return TRUE;
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

/* A VMM that still waits is as it was found before the load was prepared. One that does not is in other hands
 * by now. */
static void release_waiting(RmGuest *guest, json_object *note)
{
    RmGuestRun run;
    if (note == NULL || !guest->ops->run_state(guest, &run, NULL) || run != RM_GUEST_WAITING)
        return;
    guest->ops->recall(guest, note);
    guest->ops->put_back(guest);
}

static gboolean duty_end_spent(RmActor *actor, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(actor->journal);
    RmGuest *guest = case_of(actor)->guest;
    if (guest != NULL && !vmm_is_spent(facts, &actor->record))
        release_waiting(guest, actor->record.note);
    if (guest == NULL || !vmm_is_spent(facts, &actor->record))
        return TRUE;
    /* Another's record, maybe: it is to stand before what can't be undone. */
    return rm_journal_sync(actor->journal, error) && end_spent(facts, guest, error);
}

/* Whoever had made a request is gone. */
static gboolean duty_reply(G_GNUC_UNUSED RmActor *actor, G_GNUC_UNUSED GError **error)
{
    return TRUE;
}

static const RmDutyFunc duties[RM_DUTY_COUNT] = {
    [RM_DUTY_INDEX_RUN] = duty_run,
    [RM_DUTY_INDEX_END_SPENT] = duty_end_spent,
    [RM_DUTY_INDEX_REPLY] = duty_reply,
};

static gboolean settle(Case *this, GError **error)
{
    if (rm_actor_is_idle(RM_SIDE_DESTINATION, this->actor.record.state))
        return TRUE;
    if (!rm_actor_take(&this->actor, RM_EVENT_SETTLE, error) ||
        (this->after != RM_EVENT_COUNT && !rm_actor_take(&this->actor, this->after, error)))
        return FALSE;
    if (this->problem == NULL)
        return TRUE;
    g_propagate_error(error, g_steal_pointer(&this->problem));
    return FALSE;
}

gboolean rm_settle_destination(RmJournal *journal, RmGuest *guest, RmState *ret_state, GError **error)
{
    Case this = {.actor = {.journal = journal, .duties = duties}, .guest = guest, .after = RM_EVENT_COUNT};
    if (!rm_journal_take(journal))
        return rm_fail(error, RM_REASON_JOURNAL, "somebody else looks after session %s",
                       rm_journal_facts(journal)->session);
    if (!rm_actor_look(&this.actor, error))
        return FALSE;
    gboolean ok = settle(&this, error);
    if (ret_state != NULL)
        *ret_state = this.actor.record.state;
    g_clear_error(&this.problem);
    rm_actor_clear(&this.actor);
    return ok;
}
