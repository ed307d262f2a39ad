/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A journal's text: whole lines only, and what was understood can be written and is understood alike. */
#include "fuzz.h"

#include "handover/journal-text.h"

#include <string.h>

#define ONE_STATE(state) (1u << (state))

static void check_again(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    g_auto(RmJournalFacts) other = {0};
    g_auto(RmJournalRecord) latest = {0};
    g_autofree char *head = rm_journal_text_facts(facts);
    g_autofree char *line = rm_journal_text_record(record->state, record->run, record->note, record->time_us);
    g_autofree char *text = g_strconcat(head, line, NULL);
    gsize used = 0;
    g_autoptr(GError) error = NULL;
    if (!rm_journal_text_parse(text, strlen(text), &other, &latest, &used, &error))
        g_error("%s: %s", error->message, text);
    g_assert_cmpuint(used, ==, strlen(text));
    g_autofree char *again = rm_journal_text_facts(&other);
    g_assert_cmpstr(head, ==, again);
    g_assert_true(latest.state == record->state && latest.run == record->run &&
                  latest.time_us == record->time_us);
    g_assert_true(json_object_equal(latest.note, record->note));
    g_assert_cmpuint(latest.past, ==, ONE_STATE(record->state));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_auto(RmJournalFacts) facts = {0};
    g_auto(RmJournalRecord) record = {0};
    g_autoptr(GError) error = NULL;
    gsize used = 0;
    if (!rm_journal_text_parse((const char *)data, size, &facts, &record, &used, &error)) {
        g_assert_nonnull(error);
        return 0;
    }
    g_assert_true(used > 0 && used <= size && data[used - 1] == '\n');
    g_assert_null(memchr(data + used, '\n', size - used));
    g_assert_true(record.state < RM_STATE_COUNT && record.past & ONE_STATE(record.state));
    g_assert_true(g_uuid_string_is_valid(facts.session) && facts.pid >= 0 && facts.time_us >= 0);
    check_again(&facts, &record);

    /* A line that is torn off changes nothing. */
    g_auto(RmJournalRecord) same = {0};
    gsize used_again = 0;
    g_assert_true(rm_journal_text_parse((const char *)data, used, NULL, &same, &used_again, NULL));
    g_assert_true(used_again == used && same.state == record.state && same.past == record.past);
    return 0;
}
