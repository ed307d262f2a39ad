/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The session's journal at the source: what the next one to look needs to know if we die.
 *
 * It begins after `accept`, which brings the token, and before anything is done to the guest. Which states
 * are recorded and which records are synced says the table (handover/table.h), and docs/handover.md says why.
 * So after a crash between any two steps the journal never says less than what may have happened, and all
 * that settle.c does on its word may be done twice.
 */
#include "common/reason.h"
#include "source/connect.h"
#include "source/session.h"

static gboolean record_start(RmSession *session, RmState first, GError **error)
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
        .tls_creds = session->options->common.tls_creds,
        .tls_host = session->options->tls_host,
        .was_running = session->was_running,
        .keep_source = session->options->keep_source,
    };
    rm_journal_facts_stamp(&facts);
    session->journal = rm_journal_create(&facts, first, error);
    g_free(facts.host_boot);
    if (session->journal == NULL)
        return FALSE;
    g_autofree char *in_memory = rm_journal_volatile();
    if (in_memory != NULL)
        rm_reporter_warning(session->reporter, RM_REASON_JOURNAL, in_memory);
    rm_journal_prune(RM_SIDE_SOURCE);
    return TRUE;
}

gboolean rm_record_runs(const RmSession *session)
{
    return session->was_running && !session->options->suspend;
}

static gboolean record(RmSession *session, unsigned from, RmState to, gboolean synced, json_object *note,
                       GError **error)
{
    RmState state;
    if (!rm_journal_move(session->journal, from, to, rm_record_runs(session), note, synced, &state, error))
        return FALSE;
    return state == to ||
           rm_fail(error, RM_REASON_JOURNAL, "somebody else has changed the session's journal, which says %s",
                   rm_state_name(state));
}

gboolean rm_record(RmSession *session, const RmTransition *row, GError **error)
{
    if ((row->duties & RM_DUTY(RECORD)) == 0)
        return TRUE;
    if (session->journal == NULL)
        return record_start(session, row->to, error);
    return record(session, rm_table_recorded(RM_SIDE_SOURCE, row->from), row->to,
                  (row->duties & RM_DUTY(SYNC)) != 0, NULL, error);
}

gboolean rm_record_note(gpointer data, json_object *found, GError **error)
{
    return record(data, RM_STATE_BIT(SWITCHOVER), RM_STATE_SWITCHOVER, FALSE, found, error);
}
