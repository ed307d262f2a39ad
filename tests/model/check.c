/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What must hold: in every state, where nothing happens any more, and in the end. */
#include "system.h"

#include <stdio.h>

gboolean holds_commit(unsigned state)
{
    return state == RM_STATE_COMMITTED || state == RM_STATE_DONE || state == RM_STATE_DOUBTFUL;
}

static unsigned running(const System *system)
{
    return (system->s_vmm == VMM_RUNNING) + (system->d_vmm == VMM_RUNNING) + system->moved;
}

gboolean source_holds(const System *system)
{
    return system->s_vmm == (system->was_paused ? VMM_PAUSED : VMM_RUNNING);
}

gboolean destination_holds(const System *system)
{
    return system->d_vmm == (system->to_pause ? VMM_PAUSED : VMM_RUNNING);
}

/* What the operator wished for his guest. */
static const char *check_wishes(const System *system)
{
    if (system->was_paused && system->s_vmm == VMM_RUNNING)
        return "a guest that was paused before runs at the source";
    if (system->to_pause && system->d_vmm == VMM_RUNNING)
        return "a guest that was to be left paused runs at the destination";
    if (system->keep && system->s_ended)
        return "the source has ended a VMM that was to be kept";
    if (system->d_has && system->s_vmm == VMM_RUNNING && !system->forced)
        return "the destination has the guest, and it runs at the source";
    return NULL;
}

const char *check_always(const System *system)
{
    static const char *const bads[] = {
        [BAD_EVENT] = "an event for which the table has no row",
        [BAD_LET_GO] = "an actor lets go of a session in a state that it has not recorded",
        [BAD_END_RUNNING] = "a VMM is ended that runs the guest",
        [BAD_END_OTHER] = "a VMM is ended that is not this session's to end",
        [BAD_WORD] = "a session ends in a state whose name is not what happened",
        [BAD_RECORD] = "a record that changes nothing, or that follows an end",
        [BAD_ANSWER] = "a query's answer is not what the journal says, or decides nothing",
        [BAD_GOES_ON] = "a failure or a cancel before commit does not end the session",
        [BAD_IDLE] = "somebody wishes something, and the row does nothing",
        [BAD_FORCE] = "the operator's word is taken although the destination was not asked",
        [BAD_DUTY] = "a duty is carried out where it has no business",
        [BAD_NO_CANCEL] = "the operator cannot cancel before commit",
        [BAD_OVERFLOW] = "the model's bounds are too small",
    };
    unsigned source = journal_latest(&system->sj), destination = journal_latest(&system->dj);
    if (system->bad != BAD_NOTHING)
        return bads[system->bad];
    if (running(system) > 1)
        return "two running guests";
    if (check_wishes(system) != NULL)
        return check_wishes(system);
    if (system->d_ran && system->s_vmm == VMM_RUNNING && !system->forced)
        return "the source runs a guest that has run at the destination since";
    if (system->s_ended && !system->d_ran)
        return "the source has ended its VMM, and the guest never ran at the destination";
    if (system->s_ended && source != RM_STATE_DONE && !system->dropped)
        return "the source has ended its VMM, and its journal does not say done";
    if (source == RM_STATE_DONE && !holds_commit(destination) && !system->disk_lost)
        return "the source's journal says done, and the destination's doesn't say committed";
    if (holds_commit(destination) && !system->dry && source != RM_STATE_COMMITTED &&
        source != RM_STATE_DOUBTFUL && source != RM_STATE_DONE && !system->forced)
        return "committed at the destination, and by its journal the source may resume";
    return NULL;
}

/* Nobody can be asked for a guest whose VMM was killed. */
static gboolean lost_to_a_fault(const System *system)
{
    gboolean committed = holds_commit(journal_latest(&system->dj)) || system->d_has;
    return committed ? system->d_vmm == VMM_GONE : system->s_vmm == VMM_GONE;
}

/* Of a paused guest two copies look alike: the journal says which is the guest. */
static gboolean is_in_place(const System *system)
{
    if (!system->was_paused && !system->to_pause)
        return running(system) == 1;
    if (system->moved)
        return TRUE;
    return journal_latest(&system->sj) == RM_STATE_DONE ? destination_holds(system) : source_holds(system);
}

static gboolean is_source_good(const System *system)
{
    unsigned source = journal_latest(&system->sj);
    /* The guest runs elsewhere and the one host that knows is gone: the session stays doubtful. */
    gboolean stranded = system->moved && system->d_vmm == VMM_GONE;
    if (!state_settled(source) && !stranded)
        return FALSE;
    if (!is_in_place(system) && !lost_to_a_fault(system))
        return FALSE;
    return source != RM_STATE_DONE || system->s_vmm == VMM_GONE || system->keep || system->forced;
}

/* A VMM that was loaded in vain, or started in vain, must not wait for somebody's `cont`. Only a disk that
 * drops records, at the very moment of the load, may leave one. */
static gboolean is_destination_good(const System *system)
{
    unsigned latest = journal_latest(&system->dj);
    gboolean left = system->d_vmm == VMM_LOADED || system->d_vmm == VMM_LOADING ||
                    (system->d_vmm == VMM_WAITING && system->started && !system->dry && latest != NO_RECORD);
    if (!state_settled(latest) && latest != RM_STATE_DOUBTFUL && !system->fenced)
        return FALSE;
    return !left || holds_commit(latest) || system->dropped;
}

static gboolean rests(const System *system)
{
    return system->s.who == WHO_NOBODY && system->d.who == WHO_NOBODY && system->ask == ASK_NONE;
}

gboolean is_good(const System *system)
{
    return rests(system) && is_source_good(system) && is_destination_good(system);
}

const char *check_quiet(const System *system)
{
    if (!rests(system))
        return "somebody waits for ever";
    if (!system->helpless && !is_destination_good(system))
        return "without an operator the destination is left in disorder";
    /* A source that has to ask needs somebody who answers. */
    if (!system->helpless && !system->in_vain && !is_source_good(system))
        return "without an operator the source is left in disorder";
    return NULL;
}

/* ---- for counter-examples ---- */

static void print_actor(const char *name, const Actor *actor)
{
    if (actor->who == WHO_NOBODY)
        printf(" %s:-", name);
    else
        printf(" %s:%s/%s%s", name, who_name(actor->who),
               actor->state < RM_STATE_COUNT ? rm_state_name(actor->state) : "?", actor->row != 0 ? "…" : "");
}

static void print_journal(const char *name, const Journal *journal)
{
    printf(" %s:%s", name, journal->disk < RM_STATE_COUNT ? rm_state_name(journal->disk) : "-");
    for (unsigned i = 0; i < journal->pending; i++)
        printf("+%s", rm_state_name(journal->log[i]));
}

void system_print(const System *system)
{
    static const char *const vmms[] = {"waiting", "loading", "loaded", "running",
                                       "paused",  "gone",    "others'"};
    print_actor("source", &system->s);
    print_journal("journal", &system->sj);
    printf(" vmm:%s |", vmms[system->s_vmm]);
    print_actor("destination", &system->d);
    print_journal("journal", &system->dj);
    printf(" vmm:%s\n", vmms[system->d_vmm]);
}
