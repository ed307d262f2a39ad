/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guest's pause and its bound, --max-pause: from `stop` to `commit`.
 *
 * Two keep to it. A timer of the main loop cancels the session, which then rolls back by itself, as on any
 * failure. The guardian has the same bound and a second of grace, for a daemon that does not get that far: it
 * kills it and rolls back in its place. Rolling back has the bound anew, for it may have to wait for the
 * destination to let go of the disks. After `commit` neither applies: the guest is no longer ours to resume.
 *
 * There is no bound for a guest that its operator had paused, and none by default for one that is moved
 * stopped since it did not converge: its pause is as long as the rest of its memory takes, and was asked for.
 */
#include "source/session.h"

uint64_t rm_pause_bound_ms(const RmSession *session)
{
    const RmSendOptions *options = session->options;
    if (!session->was_running || (session->moved_stopped && !options->max_pause_given))
        return 0;
    return options->max_pause_ms;
}

static gboolean on_exceeded(gpointer data)
{
    RmSession *session = data;
    g_atomic_int_set(&session->pause_exceeded, 1);
    g_cancellable_cancel(session->cancel);
    return G_SOURCE_REMOVE;
}

void rm_pause_begin(RmSession *session)
{
    uint64_t bound_ms = rm_pause_bound_ms(session);
    if (bound_ms == 0)
        return;
    rm_guardian_paused(session->guardian, TRUE);
    session->pause_timer = g_timeout_source_new((guint)bound_ms);
    g_source_set_callback(session->pause_timer, on_exceeded, session, NULL);
    g_source_attach(session->pause_timer, NULL);
}

static void stop_timer(RmSession *session)
{
    if (session->pause_timer == NULL)
        return;
    g_source_destroy(session->pause_timer);
    g_clear_pointer(&session->pause_timer, g_source_unref);
}

void rm_pause_roll_back(RmSession *session)
{
    stop_timer(session);
    if (rm_pause_bound_ms(session) != 0)
        rm_guardian_paused(session->guardian, TRUE);
}

void rm_pause_end(RmSession *session)
{
    stop_timer(session);
    rm_guardian_paused(session->guardian, FALSE);
}
