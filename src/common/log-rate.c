/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Token buckets, and warnings at their rate. */
#include "common/log-rate.h"

#define LINES_AT_ONCE 20
#define LINE_EACH_US (10 * G_USEC_PER_SEC)

gboolean rm_bucket_take(gint64 *full_at, gint64 now, guint burst, gint64 interval)
{
    gint64 from = MAX(*full_at, now);
    if (from - now > (gint64)(burst - 1) * interval)
        return FALSE;
    *full_at = from + interval;
    return TRUE;
}

gboolean rm_log_rate_take(RmLogRate *rate, gint64 now, guint64 *ret_dropped)
{
    g_mutex_lock(&rate->lock);
    gboolean ok = rm_bucket_take(&rate->full_at, now, LINES_AT_ONCE, LINE_EACH_US);
    if (ok) {
        *ret_dropped = rate->dropped;
        rate->dropped = 0;
    } else {
        rate->dropped++;
    }
    g_mutex_unlock(&rate->lock);
    return ok;
}

/* The line, or NULL if it is one too many. */
static char *line_at_rate(RmLogRate *rate, const char *format, va_list arguments)
{
    guint64 dropped;
    if (!rm_log_rate_take(rate, g_get_monotonic_time(), &dropped))
        return NULL;
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    if (dropped == 0)
        return g_steal_pointer(&text);
    return g_strdup_printf("%s (and %" G_GUINT64_FORMAT " more of this kind that were not logged)", text,
                           dropped);
}

void rm_log_rate_warn(RmLogRate *rate, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    g_autofree char *line = line_at_rate(rate, format, arguments);
    va_end(arguments);
    if (line != NULL)
        g_warning("%s", line);
}

void rm_log_rate_event(RmLogRate *rate, RmLogEvent event, RmReason reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    g_autofree char *line = line_at_rate(rate, format, arguments);
    va_end(arguments);
    if (line != NULL)
        rm_log_event(event, G_LOG_LEVEL_WARNING, reason, "%s", line);
}
