/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The text of a journal: one JSON object a line. The first has the facts, each further one a record.
 *
 *   {"journal":1,"session":UUID,"side":"source",…}
 *   {"state":"switchover","time_us":…}
 *   {"state":"committed","run":true,"time_us":…}
 *
 * Only lines that end in a newline count. Any other deviation is an error: half-understood, a journal would
 * be worse than none. Members that are not known are ignored; a newer version that needs more of its readers
 * gives `journal` another number.
 */
#pragma once

#include "handover/journal.h"

#define RM_JOURNAL_VERSION 1

/* A line with its newline; caller frees. */
char *rm_journal_text_facts(const RmJournalFacts *facts);
char *rm_journal_text_record(RmState state, gboolean run, json_object *note, int64_t time_us);

/* Reads a whole journal. `ret_facts` (may be NULL) and `ret_record` are for the caller to clear; *ret_used is
 * the number of bytes that count. Reason journal; the message says what is wrong, the caller says where. */
gboolean rm_journal_text_parse(const char *text, gsize length, RmJournalFacts *ret_facts,
                               RmJournalRecord *ret_record, gsize *ret_used, GError **error);
