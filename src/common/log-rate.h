/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Warnings that somebody else decides the number of: so many at once, then one now and then, which says how
 * many like it were not logged. So that a peer that repeats itself fills no disk, and hides nothing that
 * others log.
 */
#pragma once

#include "common/log-event.h"

#include <glib.h>

/* A token bucket in one number: the time at which it will be full again. 0 is a full one. Takes a token if
 * there is one: `burst` at once, and a new one each `interval`, in the units of `now`. */
gboolean rm_bucket_take(gint64 *full_at, gint64 now, guint burst, gint64 interval);

/* Of one kind of warning. Zeroed memory is a fresh one; any thread. */
typedef struct {
    GMutex lock;
    gint64 full_at;  /* lock */
    guint64 dropped; /* lock: since the last that was logged */
} RmLogRate;

/* Whether to log this one, at monotonic time `now`; *ret_dropped is how many were not since the last. */
gboolean rm_log_rate_take(RmLogRate *rate, gint64 now, guint64 *ret_dropped);

/* g_warning() with `domain`, at that rate. */
void rm_log_rate_warn(RmLogRate *rate, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* The same as an event (common/log-event.h). */
void rm_log_rate_event(RmLogRate *rate, RmLogEvent event, RmReason reason, const char *format, ...)
    G_GNUC_PRINTF(4, 5);
