/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Mutants of the table: the walk has to find each of them wrong, or it would not notice if somebody made that
 * change. Of each row: it is deleted, leads to any other state, lacks any of its duties, has any duty more.
 * For each event without a row in a state: a row is added, to any state, with several sets of duties. And the
 * order of duties is changed.
 *
 * A mutant is walked with more and more faults until it is found. A row that the walk has used under no
 * number of faults is found wrong, too: nothing in the table may be there for nothing.
 */
#include "system.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    RmTransition rows[128];
    unsigned count;
    uint8_t order[RM_DUTY_COUNT];
    unsigned max_faults, every, seen, tried, survived, blind;
    gboolean looked[2][RM_STATE_COUNT][RM_EVENT_COUNT]; /* by the true table */
    unsigned by_faults[8], unused, unreachable;
} Mutations;

static void reset(Mutations *mutations)
{
    memcpy(mutations->rows, rm_table, rm_table_rows * sizeof *rm_table);
    mutations->count = rm_table_rows;
    for (unsigned i = 0; i < RM_DUTY_COUNT; i++)
        mutations->order[i] = (uint8_t)i;
}

static gboolean all_used(const Model *model)
{
    for (unsigned i = 0; i < model->count; i++) {
        if (!model->used[i])
            return FALSE;
    }
    return TRUE;
}

static void print_row(const RmTransition *row)
{
    printf("%s %s %s -> %s [", rm_side_name(row->side), rm_state_name(row->from), rm_event_name(row->event),
           rm_state_name(row->to));
    for (unsigned i = 0; i < RM_DUTY_COUNT; i++) {
        if ((row->duties & (1u << i)) != 0)
            printf(" %s", rm_duty_name(i));
    }
    printf(" ]");
}

/* Walks mutations->rows. */
static void try_mutant(Mutations *mutations, const char *what, const RmTransition *row)
{
    Model model;
    WalkResult result;
    if (mutations->seen++ % mutations->every != 0)
        return;
    mutations->tried++;
    for (unsigned faults = 0; faults <= mutations->max_faults; faults++) {
        model_init(&model, mutations->rows, mutations->count, faults);
        memcpy(model.order, mutations->order, sizeof model.order);
        model.blind = mutations->blind;
        walk(&model, FALSE, &result);
        if (result.problem != NULL) {
            mutations->by_faults[faults]++;
            return;
        }
    }
    if (!all_used(&model)) {
        mutations->unused++;
        return;
    }
    mutations->survived++;
    printf("SURVIVED: %s: ", what);
    if (row != NULL)
        print_row(row);
    printf("\n");
    fflush(stdout);
}

static void mutate_rows(Mutations *mutations)
{
    for (unsigned i = 0; i < rm_table_rows; i++) {
        reset(mutations);
        memmove(&mutations->rows[i], &mutations->rows[i + 1],
                (mutations->count - i - 1) * sizeof *mutations->rows);
        mutations->count--;
        try_mutant(mutations, "deleted", &rm_table[i]);
        for (unsigned to = 0; to < RM_STATE_COUNT; to++) {
            reset(mutations);
            mutations->rows[i].to = to;
            if (to != rm_table[i].to)
                try_mutant(mutations, "leads elsewhere", &mutations->rows[i]);
        }
        for (unsigned duty = 0; duty < RM_DUTY_COUNT; duty++) {
            reset(mutations);
            mutations->rows[i].duties &= ~(1u << duty);
            if (mutations->rows[i].duties != rm_table[i].duties)
                try_mutant(mutations, rm_duty_name(duty), &mutations->rows[i]);
        }
        /* Left out: what only costs time, and what tells the peer what the connection's end tells it. */
        for (unsigned duty = 0; duty < RM_DUTY_COUNT; duty++) {
            if (duty == RM_DUTY_INDEX_SYNC || duty == RM_DUTY_INDEX_REPLY || duty == RM_DUTY_INDEX_ASK)
                continue;
            reset(mutations);
            mutations->rows[i].duties |= (1u << duty);
            if (mutations->rows[i].duties != rm_table[i].duties)
                try_mutant(mutations, "one duty more", &mutations->rows[i]);
        }
    }
}

/* What could be added without a walk's noticing would be an event that never comes in that state. */
static void add_rows(Mutations *mutations)
{
    static const unsigned duties[] = {0, RM_DUTY(RECORD), RM_DUTY(RESUME) | RM_DUTY(RECORD),
                                      RM_DUTY(RECORD) | RM_DUTY(SYNC) | RM_DUTY(RUN),
                                      RM_DUTY(RECORD) | RM_DUTY(END)};
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned from = 0; from < RM_STATE_COUNT; from++) {
            for (unsigned event = 0; event < RM_EVENT_COUNT; event++) {
                if (rm_table_step(side, from, event) != NULL)
                    continue;
                if (!mutations->looked[side][from][event]) {
                    mutations->unreachable++;
                    continue;
                }
                for (unsigned i = 0; i < RM_STATE_COUNT * G_N_ELEMENTS(duties); i++) {
                    reset(mutations);
                    RmTransition *row = &mutations->rows[mutations->count++];
                    *row = (RmTransition){side, from, event, i % RM_STATE_COUNT, duties[i / RM_STATE_COUNT]};
                    try_mutant(mutations, "added", row);
                }
            }
        }
    }
}

/* Each duty before which the record must be on disk moved before it, and the one that must come first behind.
 */
static void reorder(Mutations *mutations)
{
    static const RmDutyIndex later[] = {RM_DUTY_INDEX_PAUSE, RM_DUTY_INDEX_LOAD,   RM_DUTY_INDEX_SEND_COMMIT,
                                        RM_DUTY_INDEX_RUN,   RM_DUTY_INDEX_ANSWER, RM_DUTY_INDEX_END};
    for (unsigned i = 0; i < G_N_ELEMENTS(later); i++) {
        reset(mutations);
        memmove(mutations->order + 1, mutations->order, later[i]);
        mutations->order[0] = (uint8_t)later[i];
        g_autofree char *what = g_strdup_printf("order: %s before record", rm_duty_name(later[i]));
        try_mutant(mutations, what, NULL);
    }
    reset(mutations);
    mutations->order[0] = RM_DUTY_INDEX_RECORD;
    mutations->order[1] = RM_DUTY_INDEX_RESUME;
    try_mutant(mutations, "order: record before resume", NULL);
}

/* Duties that do not look at the facts which they go by. */
static void blind_duties(Mutations *mutations)
{
    static const struct {
        const char *what;
        unsigned blind;
    } cases[] = {{"resume runs a guest that was paused before", BLIND_RESUME},
                 {"run runs a guest that is to be left paused", BLIND_RUN},
                 {"end ends a VMM that is to be kept", BLIND_END}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        reset(mutations);
        mutations->blind = cases[i].blind;
        try_mutant(mutations, cases[i].what, NULL);
    }
    mutations->blind = 0;
}

unsigned mutations_run(unsigned max_faults, unsigned every)
{
    g_autofree Mutations *mutations = g_new0(Mutations, 1);
    Model model;
    WalkResult result;
    mutations->max_faults = max_faults;
    mutations->every = every;
    model_init(&model, rm_table, rm_table_rows, max_faults);
    walk(&model, TRUE, &result);
    if (result.problem != NULL) {
        printf("# the table itself is wrong\n");
        return 1;
    }
    memcpy(mutations->looked, model.looked, sizeof model.looked);
    mutate_rows(mutations);
    add_rows(mutations);
    reorder(mutations);
    blind_duties(mutations);
    printf("# %u mutants, %u tried", mutations->seen, mutations->tried);
    for (unsigned i = 0; i <= max_faults; i++)
        printf(", %u found with %u faults", mutations->by_faults[i], i);
    printf(", %u have a row that is never used, %u survived; %u more (state, event) never occur\n",
           mutations->unused, mutations->survived, mutations->unreachable);
    return mutations->survived;
}
