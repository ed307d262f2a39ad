/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Log lines with an event and a reason. */
#include "common/log-event.h"

static const char *const ids[] = {
#define X(name, id) [RM_LOG_##name] = id,
    RM_LOG_EVENTS(X)
#undef X
};

void rm_log_event(RmLogEvent event, GLogLevelFlags level, RmReason reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_log_structured(G_LOG_DOMAIN, level, "MESSAGE_ID", ids[event], "REASON", rm_reason_name(reason),
                     "MESSAGE", "%s", text);
}
