/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A STATEDIR of the test's own, and journals in it. */
#pragma once

#include "common/autoptr.h"
#include "common/reason.h"
#include "handover/journal.h"

#include <glib/gstdio.h>
#include <string.h>

#define TOKEN "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SESSION "11111111-2222-4333-8444-555555555555"

static inline char *state_folder_new(void)
{
    /* in memory, since thousands of syncs are made here */
    char *path = g_strdup("/dev/shm/rdmamig-unit-XXXXXX");
    g_assert_nonnull(g_mkdtemp(path));
    g_setenv("RDMAMIG_STATE_DIR", path, TRUE);
    return path;
}

static inline void state_folder_free(char *path)
{
    const char *argv[] = {"rm", "-rf", path, NULL};
    g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL);
    g_unsetenv("RDMAMIG_STATE_DIR");
    g_free(path);
}

static inline RmJournal *create(const char *session, RmSide side, RmState first)
{
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {.session = (char *)session,
                            .side = side,
                            .guest = (char *)"a \"guest\"",
                            .pid = 1,
                            .token = (char *)TOKEN};
    rm_journal_facts_stamp(&facts);
    RmJournal *journal = rm_journal_create(&facts, first, &error);
    g_assert_no_error(error);
    g_free(facts.host_boot);
    return journal;
}

static inline RmState latest(RmJournal *journal)
{
    g_autoptr(GError) error = NULL;
    g_auto(RmJournalRecord) record = {0};
    rm_journal_read(journal, &record, &error);
    g_assert_no_error(error);
    return record.state;
}

/* Returns the state afterwards. */
static inline RmState move(RmJournal *journal, unsigned from, RmState to, gboolean synced)
{
    g_autoptr(GError) error = NULL;
    RmState state = RM_STATE_COUNT;
    rm_journal_move(journal, from, to, FALSE, NULL, synced, &state, &error);
    g_assert_no_error(error);
    return state;
}

static inline char *file_path(const char *folder, const char *side, const char *session)
{
    return g_build_filename(folder, "journal", side, session, NULL);
}
