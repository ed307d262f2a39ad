/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What can go wrong. Each counts as one fault of a run. */
#include "system.h"

#include <string.h>

#define FAULT(model, next, ...)                                                                              \
    do {                                                                                                     \
        (next)->faults++;                                                                                    \
        emit(model, next, KIND_FAULT, "FAULT " __VA_ARGS__);                                                 \
    } while (0)

static unsigned queued(const uint8_t *queue)
{
    unsigned n = 0;
    while (n < QUEUE && queue[n] != MSG_NONE)
        n++;
    return n;
}

static void keep(uint8_t *queue, unsigned n)
{
    memset(queue + n, MSG_NONE, QUEUE - n);
}

/* The connection ends for both, noticed or not yet; of what was under way, some still arrives. */
static void connection_faults(Model *model, const System *system)
{
    if (system->link != LINK_UP)
        return;
    for (unsigned i = 0; i <= queued(system->to_d); i++) {
        for (unsigned j = 0; j <= queued(system->to_s); j++) {
            System next = *system;
            next.link = LINK_BROKEN;
            keep(next.to_d, i);
            keep(next.to_s, j);
            FAULT(model, &next, "the connection breaks");
        }
    }
}

/* Something else fails at one end, a time-out included; or the operator cancels. */
static void session_faults(Model *model, const System *system)
{
    static const RmEvent source[] = {RM_EVENT_FAILED, RM_EVENT_CANCELLED, RM_EVENT_LOST};
    gboolean waits = system->s.who == WHO_DAEMON && system->s.row == 0 && !system->asking;
    for (unsigned i = 0; waits && i < G_N_ELEMENTS(source); i++) {
        if ((source[i] == RM_EVENT_LOST) != (system->s.state == RM_STATE_COMMITTED) &&
            source[i] != RM_EVENT_CANCELLED)
            continue; /* until commit is sent a lost peer is a failure like any other */
        if (!offered(model, RM_SIDE_SOURCE, system->s.state, source[i]))
            continue;
        System next = *system;
        take(model, &next, RM_SIDE_SOURCE, source[i]);
        FAULT(model, &next, "source daemon: %s", rm_event_name(source[i]));
    }
    waits = system->d.who == WHO_DAEMON && system->d.row == 0 && precedes_commit(system->d.state);
    for (unsigned i = 0; waits && i < 2; i++) {
        RmEvent event =
            i == 0 ? RM_EVENT_FAILED : RM_EVENT_CANCELLED; /* by the source, or as rdmamigd stops */
        if (i > 0 && system->d.state == RM_STATE_CONNECTING)
            continue;
        System next = *system;
        take(model, &next, RM_SIDE_DESTINATION, event);
        FAULT(model, &next, "destination daemon: %s", rm_event_name(event));
    }
}

static void query_faults(Model *model, const System *system)
{
    System next = *system;
    if (system->ask == ASK_SENT || system->ask == ASK_ANSWERED) {
        next.ask = system->asking ? ASK_SENT : ASK_NONE;
        if (system->ask == ASK_ANSWERED)
            FAULT(model, &next, "the answer to the query is lost; asked again");
    }
    if (system->asking) { /* the query may still arrive, and is then answered to nobody */
        next = *system;
        next.helpless = 1;
        take(model, &next, RM_SIDE_SOURCE, RM_EVENT_FATE_UNKNOWN);
        FAULT(model, &next, "source %s: gives up asking", who_name(system->s.who));
    }
    if (system->ask == ASK_SERVED) {
        next = *system;
        next.q = (Actor){0};
        next.ask = system->asking ? ASK_SENT : ASK_NONE;
        FAULT(model, &next, "who answers the query is killed");
    }
}

/* ---- deaths ---- */

static void source_dies(System *next, gboolean guardian_too)
{
    if (guardian_too)
        next->s_guardian = 0;
    if (!next->s_guardian)
        next->helpless = 1;
    leave(next, RM_SIDE_SOURCE);
}

static void destination_dies(System *next, gboolean guardian_too)
{
    next->listening = 0;
    next->q = (Actor){0};
    if (next->ask == ASK_SERVED)
        next->ask = next->asking ? ASK_SENT : ASK_NONE;
    if (guardian_too)
        next->d_guardian = 0;
    if (next->d.who == WHO_DAEMON && !next->d_guardian)
        next->helpless = 1;
    if (next->d.who == WHO_DAEMON)
        leave(next, RM_SIDE_DESTINATION);
}

static void kills(Model *model, const System *system)
{
    for (unsigned both = 0; both < 2; both++) {
        for (unsigned arrives = 0; arrives < 2; arrives++) {
            System next = *system;
            if (system->s.who == WHO_DAEMON && (!both || system->s_guardian) &&
                (arrives || queued(system->to_d) > 0)) {
                source_dies(&next, both);
                keep(next.to_d, arrives ? queued(next.to_d) : 0);
                FAULT(model, &next, "source: daemon%s killed%s", both ? " and guardian" : "",
                      arrives ? "" : ", and what it had sent is lost");
            }
            next = *system;
            if (system->listening && (!both || system->d_guardian) && (arrives || queued(system->to_s) > 0)) {
                destination_dies(&next, both);
                keep(next.to_s, arrives ? queued(next.to_s) : 0);
                FAULT(model, &next, "destination: daemon%s killed%s", both ? " and guardian" : "",
                      arrives ? "" : ", and what it had sent is lost");
            }
        }
    }
    System next = *system;
    if (system->s_guardian && system->s.who == WHO_DAEMON) {
        next.s_guardian = 0;
        FAULT(model, &next, "source: guardian killed");
    } else if (system->s.who == WHO_GUARDIAN || system->s.who == WHO_RESOLVE) {
        next.helpless = 1;
        leave(&next, RM_SIDE_SOURCE);
        FAULT(model, &next, "source: %s killed", who_name(system->s.who));
    }
    next = *system;
    if (system->d_guardian && system->d.who == WHO_DAEMON) {
        next.d_guardian = 0;
        FAULT(model, &next, "destination: guardian killed");
    } else if (system->d.who == WHO_GUARDIAN || system->d.who == WHO_RESOLVE) {
        next.helpless = 1;
        leave(&next, RM_SIDE_DESTINATION);
        FAULT(model, &next, "destination: %s killed", who_name(system->d.who));
    }
}

static void vmm_faults(Model *model, const System *system)
{
    System next = *system;
    if (system->s_vmm != VMM_GONE) {
        next.s_vmm = VMM_GONE;
        FAULT(model, &next, "source: the VMM dies");
    }
    next = *system;
    if (system->d_vmm != VMM_GONE && system->d_vmm != VMM_OTHERS) {
        next.d_vmm = VMM_GONE;
        FAULT(model, &next, "destination: the VMM dies");
    }
}

/* ---- disks and power ---- */

/* `kept` of the unsynced records survive. */
static void truncate_journal(Journal *journal, unsigned kept)
{
    for (unsigned i = kept; i < UNSYNCED; i++)
        journal->log[i] = 0;
    journal->pending = (uint8_t)kept;
}

static void after_power_loss(Journal *journal, unsigned kept)
{
    truncate_journal(journal, kept);
    journal->loaded = journal_loaded(journal) != FALSE;
    journal->disk = (uint8_t)journal_latest(journal);
    truncate_journal(journal, 0);
    journal->entry = journal->disk != NO_RECORD;
}

static void lose_file(Journal *journal)
{
    *journal = (Journal){.disk = NO_RECORD};
}

static void source_power(Model *model, const System *system)
{
    System base = *system;
    base.helpless = 1;
    base.s_guardian = 0;
    leave(&base, RM_SIDE_SOURCE);
    base.s_vmm = VMM_GONE;
    base.s_ended = 0; /* it would be gone in any case now */
    for (unsigned kept = 0; kept <= system->sj.pending; kept++) {
        System next = base;
        after_power_loss(&next.sj, kept);
        FAULT(model, &next, "source: power loss, the journal says %s afterwards",
              next.sj.disk == NO_RECORD ? "nothing" : rm_state_name(next.sj.disk));
    }
    if (!system->sj.entry && journal_latest(&system->sj) != NO_RECORD) {
        System next = base;
        lose_file(&next.sj);
        FAULT(model, &next, "source: power loss, the journal's file is gone");
    }
}

static void destination_power(Model *model, const System *system)
{
    System base = *system;
    base.helpless = 1;
    destination_dies(&base, TRUE);
    leave(&base, RM_SIDE_DESTINATION);
    base.d_vmm = VMM_GONE;
    for (unsigned kept = 0; kept <= system->dj.pending; kept++) {
        System next = base;
        after_power_loss(&next.dj, kept);
        next.d_has |= next.dj.disk == RM_STATE_COMMITTED || next.dj.disk == RM_STATE_DONE;
        FAULT(model, &next, "destination: power loss, the journal says %s afterwards",
              next.dj.disk == NO_RECORD ? "nothing" : rm_state_name(next.dj.disk));
        next.faults--;
        next.fenced = 1;
        FAULT(model, &next, "destination: off for good");
    }
    System next = base;
    lose_file(&next.dj);
    if (!system->dj.entry && journal_latest(&system->dj) != NO_RECORD)
        FAULT(model, &next, "destination: power loss, the journal's file is gone");
    else if (journal_latest(&system->dj) != NO_RECORD) {
        next.disk_lost = 1;
        FAULT(model, &next, "destination: power loss, and its disk is lost");
    }
}

/* A failed write-back takes a record from the page cache that was never synced. */
static void dropped_records(Model *model, const System *system)
{
    unsigned least = system->sj.disk == NO_RECORD;
    for (unsigned kept = least; !will_sync(model, &system->s) && kept < system->sj.pending; kept++) {
        System next = *system;
        truncate_journal(&next.sj, kept);
        next.dropped = next.helpless = 1;
        FAULT(model, &next, "source: the disk drops what the journal said");
    }
    least = system->dj.disk == NO_RECORD;
    if (will_sync(model, &system->d) || will_sync(model, &system->q))
        return;
    for (unsigned kept = least; kept < system->dj.pending; kept++) {
        System next = *system;
        truncate_journal(&next.dj, kept);
        next.dropped = next.helpless = 1;
        FAULT(model, &next, "destination: the disk drops what the journal said");
    }
}

/* The duty that an actor is about to carry out fails. */
static void duty_faults(Model *model, const System *system)
{
    for (unsigned i = 0; i < 3; i++) {
        const Actor *actor = i == 0 ? &system->s : i == 1 ? &system->d : &system->q;
        if (actor->who == WHO_NOBODY || actor->row == 0)
            continue;
        RmDutyIndex duty = next_duty(model, actor);
        gboolean journal = duty == RM_DUTY_INDEX_RECORD || duty == RM_DUTY_INDEX_SYNC;
        if (!journal && duty != RM_DUTY_INDEX_RESUME &&
            (duty != RM_DUTY_INDEX_RUN || system->d_vmm != VMM_LOADED))
            continue;
        for (unsigned fails = 1; fails <= (journal ? 2u : 1u); fails++) {
            System next = *system;
            next.helpless = 1;
            perform(model, &next,
                    i == 0   ? &next.s
                    : i == 1 ? &next.d
                             : &next.q,
                    i == 0 ? RM_SIDE_SOURCE : RM_SIDE_DESTINATION, fails);
            FAULT(model, &next, "%s %s: %s fails%s", i == 0 ? "source" : "destination", who_name(actor->who),
                  rm_duty_name(duty), fails == 2 ? ", half-way" : "");
        }
    }
    if (system->d_vmm == VMM_LOADING) {
        System next = *system;
        next.d_vmm = VMM_GONE;
        FAULT(model, &next, "destination: the VMM rejects the state");
    }
}

void expand_faults(Model *model, const System *system)
{
    if (system->faults >= model->max_faults)
        return;
    connection_faults(model, system);
    session_faults(model, system);
    query_faults(model, system);
    kills(model, system);
    vmm_faults(model, system);
    duty_faults(model, system);
    dropped_records(model, system);
    source_power(model, system);
    if (!system->fenced)
        destination_power(model, system);
}

void expand(Model *model, const System *system)
{
    expand_steps(model, system);
    expand_operator(model, system);
    expand_faults(model, system);
}
