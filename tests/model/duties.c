/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Actors: taking an event, carrying out a row's duties, letting go. */
#include "system.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void model_init(Model *model, const RmTransition *rows, unsigned count, unsigned max_faults)
{
    *model = (Model){.rows = rows, .count = count, .max_faults = max_faults};
    g_assert(count <= G_N_ELEMENTS(model->used));
    for (unsigned i = 0; i < RM_DUTY_COUNT; i++)
        model->order[i] = (uint8_t)i;
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned state = 0; state < RM_STATE_COUNT; state++) {
            model->recorded[side][state] = rm_table_recorded_in(rows, count, side, state);
            for (unsigned event = 0; event < RM_EVENT_COUNT; event++) {
                const RmTransition *row = rm_table_step_in(rows, count, side, state, event);
                model->index[side][state][event] = row != NULL ? (int16_t)(row - rows) : -1;
            }
        }
    }
}

void system_init(System *system, unsigned kind)
{
    static const struct {
        uint8_t started, was_paused, to_pause, keep;
    } kinds[SYSTEM_KINDS] = {
        {0}, {.started = 1}, {.keep = 1}, {.to_pause = 1}, {.was_paused = 1, .to_pause = 1}};
    memset(system, 0, sizeof *system);
    system->s.who = WHO_DAEMON;
    system->s.state = system->d.state = RM_STATE_CONNECTING;
    system->sj.disk = system->dj.disk = NO_RECORD;
    system->listening = 1;
    system->started = kinds[kind].started;
    system->was_paused = kinds[kind].was_paused;
    system->to_pause = kinds[kind].to_pause;
    system->keep = kinds[kind].keep;
    system->s_vmm = system->was_paused ? VMM_PAUSED : VMM_RUNNING;
    system->d_vmm = VMM_WAITING;
}

unsigned journal_latest(const Journal *journal)
{
    return journal->pending > 0 ? journal->log[journal->pending - 1] : journal->disk;
}

gboolean journal_loaded(const Journal *journal)
{
    gboolean loaded = journal->loaded || journal->disk == RM_STATE_SWITCHOVER;
    for (unsigned i = 0; i < journal->pending; i++)
        loaded |= journal->log[i] == RM_STATE_SWITCHOVER;
    return loaded;
}

gboolean state_ends(unsigned state)
{
    return state == RM_STATE_DONE || state == RM_STATE_REFUSED || state == RM_STATE_FAILED ||
           state == RM_STATE_CANCELLED || state == RM_STATE_DOUBTFUL;
}

gboolean state_settled(unsigned state)
{
    return state == NO_RECORD || (state_ends(state) && state != RM_STATE_DOUBTFUL);
}

const char *who_name(unsigned who)
{
    static const char *const names[] = {"nobody", "daemon", "guardian", "resolve", "query"};
    return names[who];
}

static Journal *journal_of(System *system, RmSide side)
{
    return side == RM_SIDE_SOURCE ? &system->sj : &system->dj;
}

static Actor *actor_of(System *system, RmSide side)
{
    return side == RM_SIDE_SOURCE ? &system->s : &system->d;
}

void emit(Model *model, const System *next, Kind kind, const char *format, ...)
{
    char label[160] = "";
    if (model->labels) {
        va_list list;
        va_start(list, format);
        vsnprintf(label, sizeof label, format, list);
        va_end(list);
    }
    model->emit(model, next, kind, label);
}

/* ---- rows ---- */

static int look_up(Model *model, RmSide side, unsigned state, RmEvent event)
{
    if (state >= RM_STATE_COUNT)
        return -1;
    model->looked[side][state][event] = TRUE;
    return model->index[side][state][event];
}

gboolean offered(Model *model, RmSide side, unsigned state, RmEvent event)
{
    return state < RM_STATE_COUNT && look_up(model, side, state, event) >= 0;
}

static gboolean begin(Model *model, System *next, Actor *actor, RmSide side, RmEvent event)
{
    int row = look_up(model, side, actor->state, event);
    if (row < 0) {
        next->bad = BAD_EVENT;
        return FALSE;
    }
    model->used[row] = TRUE;
    next->armed |= event == RM_EVENT_ARMED;
    next->cancelled |= side == RM_SIDE_SOURCE && event == RM_EVENT_CANCELLED;
    next->in_vain |=
        event == RM_EVENT_FATE_UNKNOWN || event == RM_EVENT_FATE_STUCK || event == RM_EVENT_FATE_COMMITTED;
    actor->row = (uint8_t)(row + 1);
    actor->step = 0;
    return TRUE;
}

void take(Model *model, System *next, RmSide side, RmEvent event)
{
    Actor *actor = actor_of(next, side);
    next->asking = side == RM_SIDE_SOURCE ? 0 : next->asking;
    if (begin(model, next, actor, side, event) && next_duty(model, actor) == RM_DUTY_COUNT)
        perform(model, next, actor, side, 0);
}

RmDutyIndex next_duty(const Model *model, const Actor *actor)
{
    const RmTransition *row = &model->rows[actor->row - 1];
    for (unsigned i = actor->step; i < RM_DUTY_COUNT; i++) {
        if ((row->duties & (1u << model->order[i])) != 0)
            return model->order[i];
    }
    return RM_DUTY_COUNT;
}

/* ---- letting go ---- */

static void close_link(System *next, RmSide side)
{
    if (next->link == LINK_UP)
        next->link = LINK_BROKEN;
    memset(side == RM_SIDE_SOURCE ? next->to_s : next->to_d, 0, QUEUE);
}

static void drop(System *next, Actor *actor, RmSide side)
{
    if (actor->who == WHO_DAEMON)
        close_link(next, side);
    if (side == RM_SIDE_SOURCE)
        next->asking = next->told_failed = 0;
    *actor = (Actor){0};
}

void let_go(System *next, Actor *actor, RmSide side)
{
    unsigned latest = journal_latest(journal_of(next, side));
    if (latest != NO_RECORD && latest != actor->state && !next->dropped)
        next->bad = BAD_LET_GO;
    drop(next, actor, side);
    *(side == RM_SIDE_SOURCE ? &next->s_guardian : &next->d_guardian) = 0;
}

void leave(System *next, RmSide side)
{
    Actor *actor = actor_of(next, side);
    uint8_t *guardian = side == RM_SIDE_SOURCE ? &next->s_guardian : &next->d_guardian;
    gboolean daemon = actor->who == WHO_DAEMON;
    drop(next, actor, side);
    if (daemon && *guardian)
        *actor = (Actor){.who = WHO_GUARDIAN, .state = FRESH};
    else
        *guardian = 0;
}

void settle(Model *model, System *next, Actor *actor, RmSide side)
{
    unsigned latest = journal_latest(journal_of(next, side));
    actor->state = (uint8_t)latest;
    actor->row = actor->step = actor->hears = 0;
    if (side == RM_SIDE_SOURCE)
        next->asking = next->told_failed = 0;
    if (offered(model, side, latest, RM_EVENT_SETTLE))
        begin(model, next, actor, side, RM_EVENT_SETTLE);
    else if (latest == NO_RECORD || state_ends(latest))
        let_go(next, actor, side);
    else
        next->bad = BAD_EVENT;
}

/* ---- duties ---- */

static RmEvent fate_of(unsigned state)
{
    switch (state) {
    case RM_STATE_DONE:
        return RM_EVENT_FATE_DONE;
    case RM_STATE_COMMITTED:
        return RM_EVENT_FATE_COMMITTED;
    case RM_STATE_FAILED:
    case RM_STATE_CANCELLED:
        return RM_EVENT_FATE_ABORTED;
    default:
        return RM_EVENT_FATE_UNKNOWN;
    }
}

static void send(System *next, uint8_t *queue, Message message)
{
    if (next->link != LINK_UP)
        return;
    for (unsigned i = 0; i < QUEUE; i++) {
        if (queue[i] == MSG_NONE) {
            queue[i] = (uint8_t)message;
            return;
        }
    }
    next->bad = BAD_OVERFLOW;
}

void journal_sync(Journal *journal, gboolean entry)
{
    journal->loaded = journal_loaded(journal) != FALSE;
    journal->disk = (uint8_t)journal_latest(journal);
    journal->pending = 0;
    memset(journal->log, 0, sizeof journal->log);
    if (entry)
        journal->entry = 1;
}

/* Compare and append, as one step. FALSE if another record stands in the way. */
static gboolean record(Model *model, System *next, const Actor *actor, RmSide side, gboolean effect)
{
    Journal *journal = journal_of(next, side);
    const RmTransition *row = &model->rows[actor->row - 1];
    unsigned latest = journal_latest(journal), mask = model->recorded[side][row->from];
    if (actor->who == WHO_QUERY || row->event == RM_EVENT_SETTLE)
        mask = 1u << row->from;
    if (latest == NO_RECORD ? (mask & RM_STATE_BIT(CONNECTING)) == 0 : (mask & (1u << latest)) == 0)
        return FALSE;
    if (!effect)
        return TRUE;
    if (latest == row->to || (latest == NO_RECORD && state_ends(row->to)) ||
        (latest != NO_RECORD && state_settled(latest)))
        next->bad = BAD_RECORD;
    if (side == RM_SIDE_DESTINATION && (row->to == RM_STATE_CANCELLED) != (row->event == RM_EVENT_CANCELLED))
        next->bad = BAD_WORD;
    if (journal->pending == UNSYNCED) {
        next->bad = BAD_OVERFLOW;
        return TRUE;
    }
    journal->log[journal->pending++] = row->to;
    return TRUE;
}

static void end_vmm(System *next, RmSide side)
{
    uint8_t *vmm = side == RM_SIDE_SOURCE ? &next->s_vmm : &next->d_vmm;
    if (*vmm == VMM_RUNNING && side == RM_SIDE_SOURCE && next->forced)
        return; /* one that runs is never ended, see rm_settle_source() */
    if (*vmm == VMM_RUNNING)
        next->bad = BAD_END_RUNNING;
    else if (*vmm == VMM_OTHERS || (*vmm == VMM_WAITING && !next->started && !next->d_tried) ||
             (side == RM_SIDE_DESTINATION && *vmm == VMM_PAUSED))
        next->bad = BAD_END_OTHER;
    else if (side == RM_SIDE_SOURCE && *vmm != VMM_GONE)
        next->s_ended = 1;
    *vmm = VMM_GONE;
}

static void reply(System *next, const Actor *actor, RmEvent event)
{
    Message message = event == RM_EVENT_HELLO || event == RM_EVENT_CHECKED ? MSG_ACCEPT
                      : event == RM_EVENT_LOADED                           ? MSG_PREPARED
                      : event == RM_EVENT_ACTIVATED                        ? MSG_RUNNING
                                                                           : MSG_FAILED;
    if (actor->who == WHO_DAEMON)
        send(next, next->to_s, message);
}

/* Its own row's record, or the one it was to sync. */
static void drop_record(const Model *model, System *next, const Actor *actor, Journal *journal)
{
    Actor *other = actor == &next->d ? &next->q : &next->d;
    if (journal->pending == 0)
        return;
    journal->log[--journal->pending] = 0;
    next->dropped = 1;
    if (actor != &next->s && will_sync(model, other))
        other->hears = 1;
}

static void move_vmm(uint8_t *vmm, Vmm from, Vmm to)
{
    if (*vmm == from)
        *vmm = (uint8_t)to;
}

gboolean will_sync(const Model *model, const Actor *actor)
{
    if (actor->who == WHO_NOBODY || actor->row == 0)
        return FALSE;
    const RmTransition *row = &model->rows[actor->row - 1];
    for (unsigned i = actor->step; i < RM_DUTY_COUNT; i++) {
        if (model->order[i] == RM_DUTY_INDEX_SYNC)
            return (row->duties & RM_DUTY(SYNC)) != 0;
    }
    return FALSE;
}

static void check_answer(System *next, const RmTransition *row)
{
    unsigned latest = journal_latest(&next->dj);
    gboolean since = row->from == RM_STATE_COMMITTED && holds_commit(latest);
    gboolean decides = fate_of(row->to) != RM_EVENT_FATE_UNKNOWN || row->from == RM_STATE_DOUBTFUL;
    if (((latest != row->to && !since) || !decides) && !next->dropped)
        next->bad = BAD_ANSWER;
}

/* Where a duty may be carried out at all, whatever comes of it. */
static gboolean may_act(const System *system, const Actor *actor, RmSide side, RmDutyIndex duty,
                        const RmTransition *row)
{
    gboolean source = side == RM_SIDE_SOURCE, daemon = actor->who == WHO_DAEMON;
    unsigned recorded = journal_latest(&system->sj);
    switch (duty) {
    case RM_DUTY_INDEX_RESUME: /* a guest that was never stopped by us may have been stopped by its operator
                                */
        return source && recorded >= RM_STATE_SWITCHOVER && recorded != NO_RECORD;
    case RM_DUTY_INDEX_PAUSE:
        return source && daemon && actor->state == RM_STATE_PRECOPY;
    case RM_DUTY_INDEX_SEND_COMMIT:
        return source && daemon && system->sj.disk == RM_STATE_COMMITTED &&
               system->s.state == RM_STATE_PREPARED;
    case RM_DUTY_INDEX_ASK:
        return source;
    case RM_DUTY_INDEX_END: /* of the old VMM: the guest runs at the destination */
        return source && recorded == RM_STATE_DONE;
    case RM_DUTY_INDEX_LOAD:
        return !source && daemon && actor->state == RM_STATE_PRECOPY;
    case RM_DUTY_INDEX_RUN:
        return !source && (row->duties & RM_DUTY(SYNC)) != 0 && system->dj.disk == RM_STATE_COMMITTED;
    case RM_DUTY_INDEX_ANSWER:
        return actor->who == WHO_QUERY;
    case RM_DUTY_INDEX_REPLY: /* to a request: what ends a session is told by the end of the connection */
        return !source && actor->who != WHO_QUERY;
    case RM_DUTY_INDEX_END_SPENT: /* by then nobody can commit it any more */
        return !source && actor->who != WHO_QUERY &&
               fate_of(journal_latest(&system->dj)) == RM_EVENT_FATE_ABORTED;
    default:
        return TRUE;
    }
}

/* What a duty does to the world, apart from the journal. */
static void act(const Model *model, System *next, const Actor *actor, RmSide side, RmDutyIndex duty,
                const RmTransition *row)
{
    gboolean stays = next->to_pause && (model->blind & BLIND_RUN) == 0;
    switch (duty) {
    case RM_DUTY_INDEX_RESUME:
        if (!next->was_paused || (model->blind & BLIND_RESUME) != 0)
            move_vmm(&next->s_vmm, VMM_PAUSED, VMM_RUNNING);
        break;
    case RM_DUTY_INDEX_PAUSE:
        move_vmm(&next->s_vmm, VMM_RUNNING, VMM_PAUSED);
        break;
    case RM_DUTY_INDEX_LOAD:
        move_vmm(&next->d_vmm, VMM_WAITING, VMM_LOADING);
        break;
    case RM_DUTY_INDEX_SEND_COMMIT:
        send(next, next->to_d, MSG_COMMIT);
        break;
    case RM_DUTY_INDEX_RUN:
        move_vmm(&next->d_vmm, VMM_LOADED, stays ? VMM_PAUSED : VMM_RUNNING);
        next->d_ran |= destination_holds(next) != FALSE;
        break;
    case RM_DUTY_INDEX_ASK:
        next->ask = ASK_SENT;
        next->asking = 1;
        break;
    case RM_DUTY_INDEX_ANSWER:
        check_answer(next, row);
        next->ask = ASK_ANSWERED;
        next->fate = row->to;
        break;
    case RM_DUTY_INDEX_REPLY:
        reply(next, actor, row->event);
        break;
    case RM_DUTY_INDEX_END_SPENT:
        if (next->started || journal_loaded(&next->dj))
            end_vmm(next, side);
        break;
    case RM_DUTY_INDEX_END:
        if (!next->keep || (model->blind & BLIND_END) != 0)
            end_vmm(next, side);
        break;
    default:
        break;
    }
}

/* Whether the name of the end that the source has come to is what happened. */
static gboolean is_true_word(const System *system, const Actor *actor, const RmTransition *row)
{
    gboolean committed = journal_latest(&system->sj) == RM_STATE_COMMITTED ||
                         row->from == RM_STATE_COMMITTED || row->from == RM_STATE_DOUBTFUL;
    gboolean crashed = row->event == RM_EVENT_SETTLE;
    switch (row->to) {
    case RM_STATE_DONE: /* there is nothing left to be done here */
        return system->dry || (committed && (system->s_vmm != VMM_PAUSED || system->keep));
    case RM_STATE_DOUBTFUL: /* nobody has said for certain where it is */
        return committed && (system->s_vmm != VMM_RUNNING || actor->who != WHO_DAEMON || system->helpless) &&
               (row->event != RM_EVENT_FATE_COMMITTED || row->from == RM_STATE_DOUBTFUL);
    case RM_STATE_CANCELLED:
        return system->cancelled;
    case RM_STATE_REFUSED: /* before a byte moved */
        return !system->cancelled && !system->armed && !crashed && actor->who == WHO_DAEMON;
    case RM_STATE_FAILED:
        return crashed || (!system->cancelled && system->armed);
    default:
        return TRUE;
    }
}

static void check_finish(System *next, const Actor *actor, RmSide side, const RmTransition *row)
{
    gboolean ends = state_ends(row->to);
    if ((row->event == RM_EVENT_FAILED || row->event == RM_EVENT_CANCELLED) && !ends)
        next->bad = BAD_GOES_ON;
    if ((row->event == RM_EVENT_SETTLE || row->event == RM_EVENT_FORCE_RESUME) && row->duties == 0)
        next->bad = BAD_IDLE;
    if (row->event == RM_EVENT_FORCE_RESUME && !next->in_vain)
        next->bad = BAD_FORCE;
    if (side == RM_SIDE_SOURCE && ends && row->to != row->from && !next->dropped &&
        !is_true_word(next, actor, row))
        next->bad = BAD_WORD;
    if (side == RM_SIDE_DESTINATION &&
        ((row->to == RM_STATE_DOUBTFUL && next->d_vmm != VMM_GONE) ||
         (row->to == RM_STATE_REFUSED && row->event != RM_EVENT_FAILED) ||
         (row->from == RM_STATE_CONNECTING && row->event == RM_EVENT_FAILED && row->to != RM_STATE_REFUSED)))
        next->bad = BAD_WORD;
    if (row->event == RM_EVENT_CHECKED && row->to != RM_STATE_DONE)
        next->bad = BAD_WORD;
}

static void finish(System *next, Actor *actor, RmSide side, const RmTransition *row)
{
    check_finish(next, actor, side, row);
    actor->state = row->to;
    actor->row = actor->step = 0;
    if (actor->who == WHO_QUERY) {
        *actor = (Actor){0};
        return;
    }
    if (row->event == RM_EVENT_CONNECTED)
        send(next, next->to_d, next->dry ? MSG_HELLO_DRY : MSG_HELLO);
    if (row->event == RM_EVENT_CONVERGED)
        send(next, next->to_d, MSG_LOAD);
    if (row->event == RM_EVENT_ACCEPTED)
        next->s_guardian = 1;
    if (row->event == RM_EVENT_HELLO)
        next->d_guardian = 1;
    gboolean waits = side == RM_SIDE_SOURCE && next->asking;
    if ((state_ends(row->to) && !waits) || row->event == RM_EVENT_ACTIVATE_FAILED ||
        row->event == RM_EVENT_FATE_COMMITTED)
        let_go(next, actor, side);
}

/* The daemon's own way where `commit` could not be recorded: it has not sent it, so it rolls back, whatever
 * may stand in the journal by now. If that is `committed`, the roll-back is not recorded, and whoever comes
 * next has to ask. */
static gboolean stumbles_at_commit(Model *model, System *next, Actor *actor, RmSide side, gboolean failed)
{
    const RmTransition *row = &model->rows[actor->row - 1];
    if (actor->who != WHO_DAEMON || side != RM_SIDE_SOURCE)
        return FALSE;
    if (failed && row->event == RM_EVENT_COMMIT) {
        actor->state = row->from;
        take(model, next, side, RM_EVENT_FAILED);
        return TRUE;
    }
    if (failed || row->event != RM_EVENT_FAILED || journal_latest(&next->sj) != RM_STATE_COMMITTED)
        return FALSE;
    drop(next, actor, side);
    next->s_guardian = 0;
    return TRUE;
}

/* The journal refused or failed: nothing more of this row. */
static void stumble(Model *model, System *next, Actor *actor, RmSide side, gboolean failed)
{
    if (actor->who == WHO_QUERY) {
        if (failed) { /* the asker hears an error, and asks again later */
            *actor = (Actor){0};
            next->ask = next->asking ? ASK_SENT : ASK_NONE;
        } else {
            begin_query(model, next);
        }
    } else if (stumbles_at_commit(model, next, actor, side, failed)) {
        return;
    } else if (failed && actor->tries) {
        leave(next, side);
    } else {
        actor->tries |= failed;
        settle(model, next, actor, side);
    }
}

void perform(Model *model, System *next, Actor *actor, RmSide side, unsigned fails)
{
    const RmTransition *row = &model->rows[actor->row - 1];
    RmDutyIndex duty = next_duty(model, actor);
    if (duty == RM_DUTY_INDEX_RECORD || duty == RM_DUTY_INDEX_SYNC) {
        Journal *journal = journal_of(next, side);
        if (duty == RM_DUTY_INDEX_SYNC && actor->hears)
            fails = 1;
        gboolean ok = duty == RM_DUTY_INDEX_RECORD ? record(model, next, actor, side, fails != 1) : TRUE;
        if (!ok || fails) {
            if (duty == RM_DUTY_INDEX_SYNC && fails == 2)
                drop_record(model, next, actor, journal);
            stumble(model, next, actor, side, ok);
            return;
        }
        if (duty == RM_DUTY_INDEX_SYNC)
            journal_sync(journal, row->event == RM_EVENT_ACCEPTED || row->event == RM_EVENT_HELLO);
        next->d_has |= next->dj.disk == RM_STATE_COMMITTED || next->dj.disk == RM_STATE_DONE;
    } else if (duty < RM_DUTY_COUNT) {
        if (fails) { /* the guest did not resume, or does not run */
            if (duty == RM_DUTY_INDEX_RESUME) {
                leave(next, side);
                return;
            }
            actor->state = row->to;
            actor->row = 0;
            take(model, next, side, RM_EVENT_ACTIVATE_FAILED);
            return;
        }
        if (!may_act(next, actor, side, duty, row) && !next->dropped)
            next->bad = BAD_DUTY;
        act(model, next, actor, side, duty, row);
    }
    if (duty < RM_DUTY_COUNT) {
        while (model->order[actor->step] != duty)
            actor->step++;
        actor->step++;
    }
    if (next_duty(model, actor) == RM_DUTY_COUNT)
        finish(next, actor, side, row);
}

void begin_query(Model *model, System *next)
{
    unsigned latest = journal_latest(&next->dj);
    if (latest == NO_RECORD) {
        next->q = (Actor){0};
        next->ask = ASK_ANSWERED;
        next->fate = NO_RECORD;
        return;
    }
    next->ask = ASK_SERVED;
    next->q = (Actor){.who = WHO_QUERY, .state = (uint8_t)latest};
    begin(model, next, &next->q, RM_SIDE_DESTINATION, RM_EVENT_QUERY);
}

RmEvent fate_event(const System *system)
{
    RmEvent event = fate_of(system->fate);
    if (event != RM_EVENT_FATE_COMMITTED)
        return event;
    if (system->s_vmm == VMM_GONE)
        return RM_EVENT_FATE_DONE; /* nothing is left to be done here, whatever comes of it there */
    return system->told_failed && system->s.state == RM_STATE_COMMITTED ? RM_EVENT_FATE_STUCK : event;
}
