/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The session's journal at the source: what the next one to look needs to know if we die.
 *
 * It begins after `accept`, which brings the token, and before anything is done to the guest. Each state is
 * recorded before the step that it stands for, and an end after what it says is true: `switchover` before
 * `stop`, `committed` before the message is sent, `failed` once the guest runs again, `done` once `running`
 * was heard and before the old VMM is ended. So after a crash between any two steps the journal never says
 * less than what may have happened, and all that settle.c does on its word may be done twice.
 *
 * Only `committed` is synced: a reboot takes the VMM with it, and what matters then is whether the guest may
 * be started again here, which it may unless `commit` was sent.
 */
#include "common/reason.h"
#include "source/connect.h"
#include "source/session.h"

gboolean rm_record_start(RmSession *session, GError **error)
{
    g_autofree char *qmp = g_canonicalize_filename(session->options->qmp, NULL);
    g_autofree char *peer = rm_connect_format(session->options->host, session->options->port);
    RmJournalFacts facts = {
        .session = session->id,
        .side = RM_SIDE_SOURCE,
        .guest = (char *)rm_session_guest_name(session),
        .qmp = qmp,
        .pid = session->info->pid,
        .peer = peer,
        .token = session->accept->token,
        .was_running = session->was_running,
        .keep_source = session->options->keep_source,
    };
    rm_journal_facts_stamp(&facts);
    session->journal = rm_journal_create(&facts, RM_STATE_PRECOPY, error);
    g_free(facts.host_boot);
    if (session->journal == NULL)
        return FALSE;
    rm_journal_prune(RM_SIDE_SOURCE);
    return TRUE;
}

gboolean rm_record_runs(const RmSession *session)
{
    return session->was_running && !session->options->suspend;
}

static gboolean record(RmSession *session, RmState from, RmState to, json_object *note, GError **error)
{
    RmState state;
    if (!rm_journal_move(session->journal, 1u << from, to, rm_record_runs(session), note,
                         to == RM_STATE_COMMITTED, &state, error))
        return FALSE;
    return state == to ||
           rm_fail(error, RM_REASON_JOURNAL, "somebody else has changed the session's journal, which says %s",
                   rm_state_name(state));
}

gboolean rm_record(RmSession *session, RmState from, RmState to, GError **error)
{
    return record(session, from, to, NULL, error);
}

gboolean rm_record_note(gpointer data, json_object *found, GError **error)
{
    return record(data, RM_STATE_SWITCHOVER, RM_STATE_SWITCHOVER, found, error);
}

void rm_record_end(RmSession *session)
{
    g_autoptr(GError) problem = NULL;
    if (session->journal == NULL)
        return;
    if (!rm_journal_move(session->journal, RM_JOURNAL_OPEN | RM_STATE_BIT(COMMITTED), session->state,
                         rm_record_runs(session), NULL, FALSE, NULL, &problem))
        rm_reporter_warning(session->reporter, RM_REASON_JOURNAL, problem->message);
}
