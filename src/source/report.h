/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the operator sees of a session: JSON lines, a progress bar, plain lines, the summary, the exit status.
 *
 * The session reports states, rounds and the result as they happen; a timer of the main loop calls tick() for
 * the bar and the progress lines. All calls are thread-safe.
 */
#pragma once

#include "common/reason.h"
#include "handover/states.h"

#include <json-c/json.h>
#include <stdint.h>

typedef struct RmReporter RmReporter;

typedef enum { RM_STYLE_QUIET, RM_STYLE_LINES, RM_STYLE_BAR, RM_STYLE_JSON, RM_STYLE_LOG } RmStyle;

/* One round, as it ended. Times in microseconds. */
typedef struct {
    uint32_t round;
    gboolean stopped; /* the guest was paused: one of the last rounds */
    gboolean fenced;
    uint64_t dirty_pages; /* looked at */
    uint64_t zero_pages;
    uint64_t sent_bytes;
    uint64_t registrations;
    int64_t registration_us; /* within send_us */
    int64_t scan_us, fence_us, send_us;
} RmRoundStats;

/* The session's figures; names of the JSON members in report.c. Times in microseconds, -1 where it did not
 * come to that. */
typedef struct {
    int64_t start_us;   /* monotonic */
    double start_cpu_s; /* user + system of this process when the session began */
    int64_t total_us, downtime_us;
    int64_t stop_us, last_scan_us, last_write_us, save_us, load_us, resume_us; /* the parts of the downtime */
    int64_t fence_us, fence_max_us, attach_us, registration_us;
    int64_t expected_downtime_us;
    uint64_t sent_bytes, wire_bytes, zero_pages, rounds, registrations, state_bytes, verified_chunks;
    double cpu_s;
} RmMetrics;

/* A moment of pre-copy. Rates in bytes/s; negative or 0: not known yet. */
typedef struct {
    uint32_t round;
    uint64_t done_bytes, remaining_bytes; /* of guest RAM: sent, or found zero */
    double rate, dirty_rate, expected_downtime_ms;
} RmProgress;

typedef struct {
    RmState state; /* an end state */
    RmReason reason;
    RmOwner owner;
    gboolean dry_run;
    char *detail; /* one line; NULL if done */
    char *where;  /* "guest NAME runs on HOST" */
    char *next;   /* a command, or NULL */
    char *transport;
    int exit_status;
} RmResult;

RmReporter *rm_reporter_new(RmStyle style, const char *session);
void rm_reporter_free(RmReporter *reporter);
void rm_reporter_set_guest(RmReporter *reporter, const char *name);

void rm_reporter_set_peer(RmReporter *reporter, const char *peer);
void rm_reporter_set_transport(RmReporter *reporter, const char *name); /* static */

void rm_reporter_state(RmReporter *reporter, RmState state);
/* `func` hears of each state, in the thread that reports it. Set it before the first one. */
void rm_reporter_watch(RmReporter *reporter, void (*func)(RmState state, gpointer data), gpointer data);
void rm_reporter_round(RmReporter *reporter, const RmRoundStats *stats);
void rm_reporter_progress(RmReporter *reporter, const RmProgress *progress); /* remembered until tick() */
void rm_reporter_warning(RmReporter *reporter, RmReason reason, const char *text);
void rm_reporter_tick(RmReporter *reporter);
/* Prints the result; writes its JSON line to `file` too, if not NULL. FALSE if that failed. */
gboolean rm_reporter_result(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics,
                            const char *file, GError **error);

/* Writes the session's report (handover/reports.h), unless it was a dry run. */
void rm_reporter_keep(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics);

/* The session as an object for `rdmamig status`; caller owns. */
json_object *rm_reporter_status(RmReporter *reporter);

double rm_cpu_seconds(void);
