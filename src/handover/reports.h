/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Reports: what became of each session, for whoever looks later.
 *
 * STATEDIR/reports/SESSION.json (0600, the folder 0700): a JSON object a line, one line a side. As a rule a
 * host has one side of a session, and the file is one object; where it has both (two VMMs of one host), each
 * side replaces its own line, under flock(2) on the folder. The fields are in docs/reports.md.
 *
 * A report is written when its session has ended, and again by whoever settles the session later, with the
 * journal's lock held, so that nobody else is at the same side of it. Nothing is ever done on a report's
 * word: that is the journal's. So a file is replaced by renaming a new one, but not synced, and one that
 * can't be written is warned of, and costs nobody anything.
 */
#pragma once

#include "common/reason.h"
#include "handover/journal.h"
#include "handover/settled.h"

/* Who wrote it. */
#define RM_REPORT_BY_DAEMON "daemon"
#define RM_REPORT_BY_GUARDIAN "guardian"
#define RM_REPORT_BY_RESOLVE "resolve"
#define RM_REPORT_BY_SWEEP "rdmamigd"

#define RM_REPORT_ROUNDS_MAX 256   /* in a report: the first half, and the latest ones */
#define RM_REPORT_BYTES (1u << 20) /* no file is larger; a larger one is not ours */

typedef struct {
    const char *session, *guest;
    RmSide side;
    const char *peer;         /* HOST:PORT; NULL: unknown */
    int64_t start_us, end_us; /* wall clock, since 1970 */
    RmState state;
    RmReason reason;
    RmOwner owner;
    const char *where, *detail, *next, *transport; /* NULL: none, or unknown */
    const char *by;
    json_object *metrics, *rounds; /* taken; NULL: unknown */
} RmReport;

/* Takes metrics and rounds; caller owns what it returns. */
json_object *rm_report_object(const RmReport *report);

/* Puts it in its side's place in its session's file, and prunes. Warns if that failed. */
void rm_reports_write(json_object *report);

/* The same for a session that was settled by somebody else than its daemon: what an earlier report says of
 * its course is kept. Nothing is written if it would say nothing new. `problem` (may be NULL): why it could
 * not be settled, or not tidied; it goes before settled->detail. */
void rm_reports_settled(const RmJournalFacts *facts, const RmSettled *settled, const GError *problem,
                        const char *by);
/* … at the destination, where `guest` is NULL if its VMM is gone, or does not answer. */
void rm_reports_settled_here(const RmJournalFacts *facts, RmGuest *guest, RmState state,
                             const GError *problem, const char *by);

/* The reports of a session (json_object*; caller unrefs), none if there is no file. Reason journal, and NULL,
 * if there is one that can't be read. */
GPtrArray *rm_reports_read(const char *session, GError **error);

/* A side's, as rm_reports_read(); caller owns. NULL if there is none. */
json_object *rm_reports_read_side(const char *session, RmSide side);

/* Ids (char*) of the sessions that have one, newest first; caller unrefs. */
GPtrArray *rm_reports_list(void);
