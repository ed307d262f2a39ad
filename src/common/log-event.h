/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The log lines that an operator has alerts on. In the journal each has a MESSAGE_ID of its own, which never
 * changes, and a REASON; docs/metrics.md lists them.
 */
#pragma once

#include "common/reason.h"

#define RM_LOG_EVENTS(X)                                                                                     \
    X(ACCEPTED, "19e9478137934228b0b197fa38c2ec68")  /* destination: a session has been let in */            \
    X(MOVED, "7cacdb63ce484811ac4bbaf0189e63f8")     /* the guest is at the destination */                   \
    X(REFUSED, "5988836a452c4cf095cb7b940a32a920")   /* before a byte moved; the guest is at the source */   \
    X(FAILED, "2b50d6ca967c43aa87d4b0a490edf517")    /* the guest is at the source */                        \
    X(CANCELLED, "9af03aa6569746c0ad73677de04bdb35") /* the guest is at the source */                        \
    X(DOUBTFUL, "d9d0c22194e346fd867608fc732e3b89")  /* nobody knows yet where the guest is: resolve */      \
    X(STUCK, "2e3b69217fd64e2aa7c7437f60f23b45")     /* a guest is paused that should run: resolve */        \
    X(CHECKED, "b56deab62d8643c2ae548b1413d26618")   /* --dry-run: all checks passed */

typedef enum {
#define X(name, id) RM_LOG_##name,
    RM_LOG_EVENTS(X)
#undef X
} RmLogEvent;

/* A line in GLib's log, as g_message() and its like write it, with the event and the reason. */
void rm_log_event(RmLogEvent event, GLogLevelFlags level, RmReason reason, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

/* Of the line that is being written, for the writer: MESSAGE_ID and REASON; NULL if it is no event. */
void rm_log_event_get(const char **ret_id, const char **ret_reason);
