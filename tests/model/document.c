/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tables of docs/handover.md. */
#include "document.h"

#include "handover/table.h"

#include <stdio.h>
#include <string.h>

#define BEGIN "<!-- made by `walk --tables`: do not edit -->\n"
#define END "<!-- end -->\n"

static void add_facts(GString *text, RmSide side)
{
    g_string_append_printf(text,
                           "### States of the %s\n\n"
                           "| state | owner | the guest here | bound | on failure |\n"
                           "| --- | --- | --- | --- | --- |\n",
                           rm_side_name(side));
    for (unsigned i = 0; i < rm_table_facts_count; i++) {
        const RmStateFacts *facts = &rm_table_facts[i];
        if (facts->side == side)
            g_string_append_printf(text, "| %s | %s | %s | %s | %s |\n", rm_state_name(facts->state),
                                   rm_owner_name(facts->owner), facts->guest, facts->bound, facts->failure);
    }
    g_string_append_c(text, '\n');
}

static void add_rows(GString *text, RmSide side)
{
    g_string_append_printf(text,
                           "### Transitions of the %s\n\n"
                           "| in | on | do, in this order | then |\n| --- | --- | --- | --- |\n",
                           rm_side_name(side));
    for (unsigned i = 0; i < rm_table_rows; i++) {
        const RmTransition *row = &rm_table[i];
        const char *comma = "";
        if (row->side != side)
            continue;
        g_string_append_printf(text, "| %s | %s | ", rm_state_name(row->from), rm_event_name(row->event));
        for (unsigned duty = 0; duty < RM_DUTY_COUNT; duty++) {
            if ((row->duties & (1u << duty)) == 0)
                continue;
            g_string_append_printf(text, "%s%s", comma, rm_duty_name(duty));
            comma = ", ";
        }
        g_string_append_printf(text, "%s | %s |\n", *comma == '\0' ? "–" : "", rm_state_name(row->to));
    }
    g_string_append_c(text, '\n');
}

char *document_tables(void)
{
    GString *text = g_string_new(NULL);
    for (unsigned side = 0; side < 2; side++) {
        add_facts(text, side);
        add_rows(text, side);
    }
    g_string_truncate(text, text->len - 1);
    return g_string_free(text, FALSE);
}

gboolean document_check(const char *path)
{
    g_autofree char *text = NULL, *tables = document_tables();
    if (!g_file_get_contents(path, &text, NULL, NULL)) {
        printf("# cannot read %s\n", path);
        return FALSE;
    }
    const char *begin = strstr(text, BEGIN), *end = strstr(text, END);
    if (begin == NULL || end == NULL || end < begin) {
        printf("# %s lacks the markers of the tables\n", path);
        return FALSE;
    }
    begin += strlen(BEGIN);
    if ((size_t)(end - begin) == strlen(tables) && strncmp(begin, tables, strlen(tables)) == 0)
        return TRUE;
    printf(
        "# the tables in %s are not those of src/handover/table.c: put the output of `walk --tables` there\n",
        path);
    return FALSE;
}
