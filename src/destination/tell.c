/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is said, and under which event. */
#include "destination/tell.h"

#include "common/log-event.h"
#include "destination/admit.h"

void rm_tell_accepted(const RmHello *hello, const RmAccept *accept, const char *path, const char *peer,
                      GIOStream *stream)
{
    rm_log_event(hello->dry_run ? RM_LOG_CHECKED : RM_LOG_ACCEPTED, G_LOG_LEVEL_MESSAGE, RM_REASON_NONE,
                 "session %s: guest %s from %s into %s: %s, %" G_GUINT64_FORMAT
                 " channels, chunks of %" G_GUINT64_FORMAT " MiB, %s%s",
                 hello->session, hello->guest_name, peer, path, accept->transport, accept->channels,
                 accept->chunk_size >> 20, rm_admit_data_kind(stream, accept),
                 hello->dry_run ? ", checks only" : "");
}

void rm_tell_ended(const char *session, const GError *problem)
{
    RmReason reason = rm_error_reason(problem);
    rm_log_event(reason == RM_REASON_CANCELLED ? RM_LOG_CANCELLED : RM_LOG_FAILED, G_LOG_LEVEL_WARNING,
                 reason, "session %s ended without the guest: %s: %s", session, rm_reason_name(reason),
                 problem->message);
}

void rm_tell_moved(const char *session, const char *guest, gboolean runs)
{
    rm_log_event(RM_LOG_MOVED, G_LOG_LEVEL_MESSAGE, RM_REASON_NONE, "session %s: guest %s is here and %s",
                 session, guest, runs ? "runs" : "is paused");
}

void rm_tell_stuck(const char *session, const GError *problem)
{
    rm_log_event(RM_LOG_STUCK, G_LOG_LEVEL_CRITICAL, rm_error_reason(problem),
                 "session %s: the guest is here and does not run: %s; next: rdmamig resolve %s", session,
                 problem->message, session);
}
