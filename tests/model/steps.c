/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What happens by itself, and what an operator may do. */
#include "system.h"

#include <string.h>

static const char *message_name(unsigned message)
{
    static const char *const names[] = {"",         "hello",  "hello (dry)", "accept", "load",
                                        "prepared", "commit", "running",     "failed"};
    return names[message];
}

static void shift(uint8_t *queue)
{
    memmove(queue, queue + 1, QUEUE - 1);
    queue[QUEUE - 1] = MSG_NONE;
}

static void event_step(Model *model, const System *system, RmSide side, RmEvent event)
{
    System next = *system;
    take(model, &next, side, event);
    emit(model, &next, KIND_STEP, "%s %s: %s", rm_side_name(side),
         who_name(side == RM_SIDE_SOURCE ? system->s.who : system->d.who), rm_event_name(event));
}

/* One more duty of an actor that is in the middle of a row. */
static void duty_step(Model *model, const System *system, RmSide side)
{
    System next = *system;
    Actor *actor = side == RM_SIDE_SOURCE ? &next.s : &next.d;
    RmDutyIndex duty = next_duty(model, actor);
    if (duty == RM_DUTY_INDEX_ASK && system->ask != ASK_NONE)
        return; /* an earlier asker's query is still under way */
    const RmTransition *row = &model->rows[actor->row - 1];
    perform(model, &next, actor, side, 0);
    emit(model, &next, KIND_STEP, "%s %s: … %s (%s in %s)", rm_side_name(side),
         who_name(side == RM_SIDE_SOURCE ? system->s.who : system->d.who),
         duty < RM_DUTY_COUNT ? rm_duty_name(duty) : "nothing", rm_event_name(row->event),
         rm_state_name(row->from));
}

static void read_journal(Model *model, const System *system, RmSide side)
{
    System next = *system;
    Actor *actor = side == RM_SIDE_SOURCE ? &next.s : &next.d;
    settle(model, &next, actor, side);
    emit(model, &next, KIND_STEP, "%s %s: reads the journal", rm_side_name(side), who_name(actor->who));
}

/* ---- the source ---- */

static void source_message(Model *model, const System *system)
{
    unsigned state = system->s.state;
    System next = *system;
    unsigned message = next.to_s[0];
    RmEvent event = message == MSG_ACCEPT         ? (system->dry ? RM_EVENT_CHECKED : RM_EVENT_ACCEPTED)
                    : message == MSG_PREPARED     ? RM_EVENT_PREPARED
                    : message == MSG_RUNNING      ? RM_EVENT_RUNNING
                    : state == RM_STATE_COMMITTED ? RM_EVENT_LOST
                                                  : RM_EVENT_FAILED;
    shift(next.to_s);
    next.told_failed |= event == RM_EVENT_LOST;
    take(model, &next, RM_SIDE_SOURCE, event);
    emit(model, &next, KIND_STEP, "source daemon: takes `%s`", message_name(message));
}

static void connect_step(Model *model, const System *system)
{
    if (!system->listening) {
        event_step(model, system, RM_SIDE_SOURCE, RM_EVENT_FAILED);
        return;
    }
    for (uint8_t dry = 0; dry < 2; dry++) {
        System next = *system;
        next.link = LINK_UP;
        next.d = (Actor){.who = WHO_DAEMON, .state = RM_STATE_CONNECTING};
        next.dry = dry;
        take(model, &next, RM_SIDE_SOURCE, RM_EVENT_CONNECTED);
        emit(model, &next, KIND_STEP, "source daemon: connects%s", dry ? ", --dry-run" : "");
    }
}

/* The daemon waits for an event. */
static void source_daemon(Model *model, const System *system)
{
    if (system->s.state != RM_STATE_COMMITTED &&
        !offered(model, RM_SIDE_SOURCE, system->s.state, RM_EVENT_CANCELLED)) {
        System next = *system;
        next.bad = BAD_NO_CANCEL;
        emit(model, &next, KIND_STEP, "source daemon: is to cancel");
        return;
    }
    if (system->to_s[0] != MSG_NONE) {
        source_message(model, system);
        return;
    }
    gboolean lost = system->link == LINK_BROKEN;
    switch (system->s.state) {
    case RM_STATE_CONNECTING:
        connect_step(model, system);
        return;
    case RM_STATE_ATTACHING:
        event_step(model, system, RM_SIDE_SOURCE, RM_EVENT_ARMED);
        break;
    case RM_STATE_PRECOPY:
        event_step(model, system, RM_SIDE_SOURCE, RM_EVENT_CONVERGED);
        break;
    case RM_STATE_PREPARED: /* check_still_ours() */
        event_step(model, system, RM_SIDE_SOURCE,
                   system->s_vmm == VMM_GONE ? RM_EVENT_FAILED : RM_EVENT_COMMIT);
        break;
    case RM_STATE_COMMITTED:
        if (lost)
            event_step(model, system, RM_SIDE_SOURCE, RM_EVENT_LOST);
        return;
    default:
        break;
    }
    if (lost || (system->s_vmm == VMM_GONE && system->s.state != RM_STATE_PREPARED))
        event_step(model, system, RM_SIDE_SOURCE, RM_EVENT_FAILED);
}

static void source_steps(Model *model, const System *system)
{
    const Actor *actor = &system->s;
    if (actor->who == WHO_NOBODY)
        return;
    if (actor->state == FRESH)
        read_journal(model, system, RM_SIDE_SOURCE);
    else if (actor->row != 0)
        duty_step(model, system, RM_SIDE_SOURCE);
    else if (actor->who == WHO_DAEMON &&
             (!system->asking || (system->to_s[0] == MSG_RUNNING && actor->state == RM_STATE_COMMITTED)))
        source_daemon(model, system); /* the answer may still come while it is asked for */
}

/* ---- the destination ---- */

static void destination_message(Model *model, const System *system)
{
    static const RmEvent events[] = {[MSG_HELLO] = RM_EVENT_HELLO,
                                     [MSG_HELLO_DRY] = RM_EVENT_CHECKED,
                                     [MSG_LOAD] = RM_EVENT_LOAD,
                                     [MSG_COMMIT] = RM_EVENT_COMMIT};
    System next = *system;
    unsigned message = next.to_d[0];
    RmEvent event = events[message];
    shift(next.to_d);
    next.d_tried |= event == RM_EVENT_LOAD;
    /* A VMM that has died since is noticed before the row is taken, or not. */
    if ((event == RM_EVENT_COMMIT && system->d_vmm != VMM_LOADED) ||
        (event == RM_EVENT_LOAD && system->d_vmm != VMM_WAITING))
        event = RM_EVENT_FAILED;
    take(model, &next, RM_SIDE_DESTINATION, event);
    emit(model, &next, KIND_STEP, "destination daemon: takes `%s`%s", message_name(message),
         event == RM_EVENT_FAILED ? ", its VMM is gone" : "");
}

static gboolean fate_is_aborted(unsigned latest)
{
    return latest == RM_STATE_FAILED || latest == RM_STATE_CANCELLED;
}

gboolean precedes_commit(unsigned state)
{
    return state == RM_STATE_CONNECTING || state == RM_STATE_PRECOPY || state == RM_STATE_SWITCHOVER ||
           state == RM_STATE_PREPARED;
}

/* It waits for an event; a guardian, or whoever settles, waits only for its VMM. */
static void destination_waits(Model *model, const System *system)
{
    unsigned state = system->d.state, vmm = system->d_vmm;
    if (state == RM_STATE_COMMITTED) {
        if (destination_holds(system))
            event_step(model, system, RM_SIDE_DESTINATION, RM_EVENT_ACTIVATED);
        else if (vmm != VMM_LOADED)
            event_step(model, system, RM_SIDE_DESTINATION, RM_EVENT_GONE);
        return;
    }
    if (system->d.who != WHO_DAEMON)
        return;
    if (state == RM_STATE_SWITCHOVER && vmm == VMM_LOADED)
        event_step(model, system, RM_SIDE_DESTINATION, RM_EVENT_LOADED);
    if (system->to_d[0] != MSG_NONE && state != RM_STATE_SWITCHOVER) {
        destination_message(model, system);
        return;
    }
    unsigned latest = journal_latest(&system->dj);
    gboolean aborted = fate_is_aborted(latest);
    if (precedes_commit(state) && (system->link == LINK_BROKEN || vmm == VMM_GONE || aborted))
        event_step(model, system, RM_SIDE_DESTINATION, RM_EVENT_FAILED);
}

static void destination_steps(Model *model, const System *system)
{
    const Actor *actor = &system->d;
    if (actor->who == WHO_NOBODY)
        return;
    if (actor->state == FRESH)
        read_journal(model, system, RM_SIDE_DESTINATION);
    else if (actor->row != 0)
        duty_step(model, system, RM_SIDE_DESTINATION);
    else
        destination_waits(model, system);
}

/* ---- the query ---- */

static void query_steps(Model *model, const System *system)
{
    System next = *system;
    if (system->q.row != 0) {
        RmDutyIndex duty = next_duty(model, &next.q);
        perform(model, &next, &next.q, RM_SIDE_DESTINATION, 0);
        emit(model, &next, KIND_STEP, "query: … %s", duty < RM_DUTY_COUNT ? rm_duty_name(duty) : "nothing");
    } else if (system->ask == ASK_SENT && !system->listening) {
        next.ask = ASK_NONE;
        if (system->asking)
            take(model, &next, RM_SIDE_SOURCE, RM_EVENT_FATE_UNKNOWN);
        emit(model, &next, KIND_STEP, "query: nobody listens");
    } else if (system->ask == ASK_SENT) {
        begin_query(model, &next);
        emit(model, &next, KIND_STEP, "query: arrives; the journal says %s",
             journal_latest(&system->dj) == NO_RECORD ? "nothing"
                                                      : rm_state_name(journal_latest(&system->dj)));
    } else if (system->ask == ASK_ANSWERED) {
        next.ask = ASK_NONE;
        RmEvent event = fate_event(system);
        if (system->asking)
            take(model, &next, RM_SIDE_SOURCE, event);
        emit(model, &next, KIND_STEP, "source %s: %s", who_name(system->s.who), rm_event_name(event));
    }
}

void expand_steps(Model *model, const System *system)
{
    source_steps(model, system);
    destination_steps(model, system);
    query_steps(model, system);
    if (system->d_vmm == VMM_LOADING) {
        System next = *system;
        next.d_vmm = VMM_LOADED;
        emit(model, &next, KIND_STEP, "destination VMM: has loaded the state");
    }
}

/* ---- the operator, and what comes later ---- */

static void resolve(Model *model, const System *system, RmSide side)
{
    System next = *system;
    Actor *actor = side == RM_SIDE_SOURCE ? &next.s : &next.d;
    const Journal *journal = side == RM_SIDE_SOURCE ? &system->sj : &system->dj;
    if (!offered(model, side, journal_latest(journal), RM_EVENT_SETTLE))
        return;
    *actor = (Actor){.who = WHO_RESOLVE, .state = FRESH};
    emit(model, &next, KIND_OPERATOR, "%s: resolve", rm_side_name(side));
}

static void force_resume(Model *model, const System *system)
{
    unsigned latest = journal_latest(&system->sj);
    if (!offered(model, RM_SIDE_SOURCE, latest, RM_EVENT_FORCE_RESUME))
        return;
    System next = *system;
    next.s = (Actor){.who = WHO_RESOLVE, .state = (uint8_t)latest};
    next.forced = 1; /* also where it isn't true to the word */
    take(model, &next, RM_SIDE_SOURCE, RM_EVENT_FORCE_RESUME);
    emit(model, &next, KIND_OPERATOR, "source: resolve --force-resume");
}

/* Another session takes over a VMM that this one has left settled. Only then may it: its preflight looks, and
 * syncs what it has seen. */
static void later_sessions(Model *model, const System *system)
{
    unsigned source = journal_latest(&system->sj);
    if (system->s.who == WHO_NOBODY && source_holds(system) && !system->moved && state_settled(source) &&
        source != NO_RECORD && (source != RM_STATE_DONE || system->s_vmm == VMM_RUNNING)) {
        System next = *system;
        journal_sync(&next.sj, FALSE);
        next.s_vmm = VMM_PAUSED;
        next.moved = 1;
        emit(model, &next, KIND_OPERATOR, "source: a later session moves the guest elsewhere");
    }
    if (system->d.who == WHO_NOBODY && destination_holds(system) && !system->moved &&
        state_settled(journal_latest(&system->dj))) {
        System next = *system;
        journal_sync(&next.dj, FALSE);
        next.d_vmm = VMM_PAUSED;
        next.moved = 1;
        emit(model, &next, KIND_OPERATOR, "destination: a later session moves the guest elsewhere");
    }
    if (system->d.who == WHO_NOBODY && system->d_vmm == VMM_WAITING && !system->started &&
        fate_is_aborted(journal_latest(&system->dj)) && !journal_loaded(&system->dj)) {
        System next = *system;
        journal_sync(&next.dj, FALSE);
        next.d_vmm = VMM_OTHERS;
        emit(model, &next, KIND_OPERATOR, "destination: a later session uses the waiting VMM");
    }
}

void expand_operator(Model *model, const System *system)
{
    if (system->s.who == WHO_NOBODY) {
        resolve(model, system, RM_SIDE_SOURCE);
        /* The operator's word: the guest runs on no other host, and can't. That the peer is off does not say
         * so: it may have handed the guest on before. */
        if (system->d_vmm == VMM_GONE && !system->moved)
            force_resume(model, system);
    }
    if (system->d.who == WHO_NOBODY && !system->fenced)
        resolve(model, system, RM_SIDE_DESTINATION);
    if (!system->listening && !system->fenced) {
        System next = *system;
        next.listening = 1;
        emit(model, &next, KIND_OPERATOR, "destination: rdmamigd starts again");
    }
    later_sessions(model, system);
}
