/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What rdmamigd counts, and its text for Prometheus. docs/metrics.md says what each is for.
 *
 * All numbers are atomics: whoever counts never waits, and a reader takes them one after the other, so that
 * two that change together may be seen apart. Labels have values from enums only, never a word of a peer's or
 * a guest's name: those are without bound, and a scrape is not authenticated.
 */
#pragma once

#include "common/process.h"
#include "common/reason.h"
#include "handover/states.h"

/* Thread-safe; NULL is fine in every function that counts. */
typedef struct RmDaemonMetrics RmDaemonMetrics;

RmDaemonMetrics *rm_daemon_metrics_new(void);
void rm_daemon_metrics_free(RmDaemonMetrics *metrics);

/* Counters, which only grow, and gauges, which rm_metrics_add() takes up and down. What a refused connection
 * is counted under comes beside what it was taken for, if that is known. */
typedef enum {
    RM_METRIC_CONNECTIONS_CONTROL, /* a source began a session, or tried to */
    RM_METRIC_CONNECTIONS_QUERY,   /* … or asked after one */
    RM_METRIC_CONNECTIONS_DATA,    /* proved a session's token */
    RM_METRIC_REFUSED_BUSY,        /* no thread or descriptors left for it */
    RM_METRIC_REFUSED_SILENT,      /* said nothing, or not all of it, in time */
    RM_METRIC_REFUSED_STRANGER,    /* is none of ours */
    RM_METRIC_REFUSED_TLS,         /* no certificate, or one that is not let in */
    RM_METRIC_REFUSED_TOKEN,       /* a data channel that proved no session's token */
    RM_METRIC_CONNECTIONS,         /* gauge: open now, but for data channels that were handed over */
    RM_METRIC_REGISTRATIONS,       /* chunks made writable */
    RM_METRIC_REGISTRATION_US,     /* … and how long that took, over all threads */
    RM_METRIC_COUNT
} RmMetric;

void rm_metrics_count(RmDaemonMetrics *metrics, RmMetric metric);
void rm_metrics_add(RmDaemonMetrics *metrics, RmMetric metric, int64_t by);
/* A connection that ended for `reason` before it was anything. */
void rm_metrics_count_refusal(RmDaemonMetrics *metrics, RmReason reason);

typedef enum {
    RM_HISTOGRAM_LOAD,   /* device state loaded by the waiting QEMU */
    RM_HISTOGRAM_COMMIT, /* from `commit` to the guest's running */
    RM_HISTOGRAM_COUNT
} RmHistogram;

/* `since_us`: g_get_monotonic_time() at its beginning. */
void rm_metrics_observe(RmDaemonMetrics *metrics, RmHistogram histogram, int64_t since_us);

/* One session's place among all: begun with its `hello`, moved by its states, ended once. Each may be called
 * on one that is zero, or has ended, and does nothing then. Owned by the session's thread. */
typedef struct {
    RmDaemonMetrics *metrics; /* NULL: not begun, or ended */
    RmState state;
} RmSessionMeter;

void rm_session_meter_begin(RmSessionMeter *meter, RmDaemonMetrics *metrics);
void rm_session_meter_move(RmSessionMeter *meter, RmState state);
/* `outcome`: the state that the session is left in, or refused. One that was only a check (--dry-run) and
 * passed it does not count among the ended ones. */
void rm_session_meter_end(RmSessionMeter *meter, RmState outcome, RmReason reason, gboolean dry_run);

/* What is not counted, but looked at. */
typedef struct {
    uint64_t received_bytes;   /* guest memory and device state that has landed, since the start */
    uint64_t registered_bytes; /* registered now, of all sessions */
    uint64_t half_open;        /* connections that have not said yet what they are */
    uint64_t half_open_ended;  /* … of which one too many made room, since the start */
    uint64_t blocked;          /* addresses, now */
    uint64_t blocked_ended;    /* connections from such, since the start */
    RmProcessUsage process;
} RmMetricsSample;

/* In Prometheus' text format, version 0.0.4. Caller frees. */
char *rm_metrics_render(const RmDaemonMetrics *metrics, const RmMetricsSample *sample);
