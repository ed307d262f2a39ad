/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Log lines with an event and a reason. They pass by g_log(), as others do, so that whoever handles those
 * sees these; the writer looks here for what that has no room for.
 */
#include "common/log-event.h"

static const char *const ids[] = {
#define X(name, id) [RM_LOG_##name] = id,
    RM_LOG_EVENTS(X)
#undef X
};

static _Thread_local struct {
    const char *id, *reason;
} current; /* of the line that this thread is writing; NULL: none of ours */

void rm_log_event(RmLogEvent event, GLogLevelFlags level, RmReason reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    current.id = ids[event];
    current.reason = rm_reason_name(reason);
    g_log(G_LOG_DOMAIN, level, "%s", text);
    current.id = current.reason = NULL;
}

void rm_log_event_get(const char **ret_id, const char **ret_reason)
{
    *ret_id = current.id;
    *ret_reason = current.reason;
}
