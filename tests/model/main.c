/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * walk --faults N          walks the table, with at most N faults in a run
 * walk --mutations N [K]   walks every mutant of it (every K-th only)
 * walk --tables            prints the tables of docs/handover.md
 * walk --document FILE     checks that FILE holds them
 *
 * The output is TAP. A walk that finds something prints the shortest way to it.
 */
#include "document.h"
#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gboolean check_walk(unsigned faults)
{
    Model model;
    WalkResult result;
    unsigned unused = 0;
    model_init(&model, rm_table, rm_table_rows, faults);
    walk(&model, TRUE, &result);
    printf("# %zu states, %zu transitions between them, with up to %u faults in a run\n", result.states,
           result.edges, faults);
    for (unsigned i = 0; i < rm_table_rows; i++) {
        if (model.used[i])
            continue;
        printf("# never used: %s %s %s\n", rm_side_name(rm_table[i].side), rm_state_name(rm_table[i].from),
               rm_event_name(rm_table[i].event));
        unused++;
    }
    return result.problem == NULL && unused == 0;
}

static gboolean check_single_rows(void)
{
    for (unsigned i = 0; i < rm_table_rows; i++) {
        if (rm_table_step(rm_table[i].side, rm_table[i].from, rm_table[i].event) != &rm_table[i])
            return FALSE;
    }
    return TRUE;
}

static int report(unsigned number, gboolean ok, const char *what)
{
    printf("%sok %u - %s\n", ok ? "" : "not ", number, what);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    unsigned number = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    if (strcmp(mode, "--tables") == 0) {
        g_autofree char *tables = document_tables();
        fputs(tables, stdout);
        return 0;
    }
    if (strcmp(mode, "--faults") == 0) {
        printf("1..2\n");
        int status = report(1, check_single_rows(), "one row for an event in a state");
        return report(2, check_walk(number), "every interleaving ends well, and every row is used") | status;
    }
    if (strcmp(mode, "--mutations") == 0) {
        printf("1..1\n");
        unsigned every = argc > 3 ? (unsigned)MAX(atoi(argv[3]), 1) : 1;
        return report(1, mutations_run(number, every) == 0, "every mutant of the table is found");
    }
    if (strcmp(mode, "--document") == 0 && argc > 2) {
        printf("1..1\n");
        return report(1, document_check(argv[2]), "the tables of docs/handover.md are the program's");
    }
    fprintf(stderr, "usage: walk --faults N | --mutations N [K] | --tables | --document FILE\n");
    return 2;
}
