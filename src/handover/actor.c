/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Actors that go by the journal. */
#include "handover/actor.h"

#include "common/reason.h"

typedef enum { TAKEN, OVERTAKEN, BROKEN_OFF } Outcome;

void rm_actor_clear(RmActor *actor)
{
    rm_journal_record_clear(&actor->record);
}

gboolean rm_actor_look(RmActor *actor, GError **error)
{
    rm_journal_record_clear(&actor->record);
    return rm_journal_read(actor->journal, &actor->record, error);
}

static RmSide side_of(const RmActor *actor)
{
    return rm_journal_facts(actor->journal)->side;
}

/* Always synced: it costs nothing here, where no guest waits for it but one that has waited long. */
static Outcome record(RmActor *actor, GError **error)
{
    const RmTransition *row = actor->row;
    RmState state;
    if (!rm_journal_move(actor->journal, 1u << row->from, row->to, actor->record.run, actor->note, TRUE,
                         &state, error))
        return BROKEN_OFF;
    return state == row->to ? TAKEN : OVERTAKEN;
}

static Outcome carry_out(RmActor *actor, RmDutyIndex duty, GError **error)
{
    if (duty == RM_DUTY_INDEX_RECORD)
        return record(actor, error);
    if (duty == RM_DUTY_INDEX_SYNC)
        return rm_journal_sync(actor->journal, error) ? TAKEN : BROKEN_OFF;
    if (actor->duties[duty] != NULL)
        return actor->duties[duty](actor, error) ? TAKEN : BROKEN_OFF;
    rm_fail(error, RM_REASON_INTERNAL, "`%s` is none of the duties of who settles a session; report this",
            rm_duty_name(duty));
    return BROKEN_OFF;
}

static Outcome take(RmActor *actor, RmEvent event, GError **error)
{
    RmSide side = side_of(actor);
    actor->row = rm_table_step(side, actor->record.state, event);
    if (actor->row == NULL) {
        rm_fail(error, RM_REASON_JOURNAL,
                "the journal of session %s (%s side) says %s, where `%s` has no meaning; nothing was done: "
                "look at the guest at both ends",
                rm_journal_facts(actor->journal)->session, rm_side_name(side),
                rm_state_name(actor->record.state), rm_event_name(event));
        return BROKEN_OFF;
    }
    for (unsigned duty = 0; duty < RM_DUTY_COUNT; duty++) {
        Outcome outcome = (actor->row->duties & (1u << duty)) != 0 ? carry_out(actor, duty, error) : TAKEN;
        if (outcome != TAKEN)
            return outcome;
    }
    actor->record.state = actor->row->to;
    return TAKEN;
}

/* A session moves forwards only, so it cannot be overtaken more often than there are states. */
gboolean rm_actor_take(RmActor *actor, RmEvent event, GError **error)
{
    for (unsigned i = 0; i < RM_STATE_COUNT; i++) {
        Outcome outcome = take(actor, event, error);
        if (outcome != OVERTAKEN)
            return outcome == TAKEN;
        if (!rm_actor_look(actor, error))
            return FALSE;
        if (event == RM_EVENT_SETTLE && rm_actor_is_idle(side_of(actor), actor->record.state)) {
            actor->row = NULL;
            return TRUE;
        }
    }
    return rm_fail(error, RM_REASON_JOURNAL, "the journal of session %s is changed by somebody else",
                   rm_journal_facts(actor->journal)->session);
}

gboolean rm_actor_is_idle(RmSide side, RmState state)
{
    return rm_state_is_end(state) && rm_table_step(side, state, RM_EVENT_SETTLE) == NULL;
}
