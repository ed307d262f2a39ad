/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling what an earlier daemon left. */
#include "destination/sweep.h"

#include "common/log-context.h"
#include "common/log-event.h"
#include "common/reason.h"
#include "destination/settle.h"
#include "handover/reach.h"

#define QMP_TIMEOUT_MS 30000

typedef struct {
    RmDaemon *daemon;
    GPtrArray *journals; /* RmJournal*, each with its lock */
    GPtrArray *claimed;  /* char*: QMP paths */
    GSourceFunc done;
    gpointer data;
} Sweep;

static void settle(RmJournal *journal)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_autoptr(GError) error = NULL, unreachable = NULL;
    g_autoptr(RmGuest) guest = NULL;
    RmState state = RM_STATE_COUNT;
    gboolean reached = rm_reach_guest(facts, QMP_TIMEOUT_MS, &guest, &unreachable);
    gboolean ok = rm_settle_destination(journal, guest, &state, &error);
    rm_log_context_set(facts->session, facts->guest, facts->peer);
    const GError *problem =
        reached ? error : unreachable; /* the latter says more of what did not come of it */
    if (ok && reached)
        rm_log_event(rm_state_log_event(state), G_LOG_LEVEL_MESSAGE,
                     state == RM_STATE_DONE ? RM_REASON_NONE : RM_REASON_INTERNAL,
                     "session %s, which an earlier rdmamigd left: guest %s, %s", facts->session, facts->guest,
                     rm_state_name(state));
    else
        rm_log_event(RM_LOG_STUCK, G_LOG_LEVEL_WARNING, rm_error_reason(problem),
                     "session %s, which an earlier rdmamigd left: guest %s: %s; next: rdmamig resolve %s",
                     facts->session, facts->guest, problem->message, facts->session);
    rm_log_context_enter(NULL);
}

static gpointer sweep_main(gpointer data)
{
    Sweep *sweep = data;
    for (guint i = 0; i < sweep->journals->len; i++)
        settle(sweep->journals->pdata[i]);
    for (guint i = 0; i < sweep->claimed->len; i++)
        rm_daemon_release(sweep->daemon, sweep->claimed->pdata[i]);
    g_ptr_array_unref(sweep->journals);
    g_ptr_array_unref(sweep->claimed);
    g_idle_add(sweep->done, sweep->data);
    g_free(sweep);
    rm_journal_prune(RM_SIDE_DESTINATION);
    return NULL;
}

/* A session that somebody looks after is none of ours. */
static void add(Sweep *sweep, const char *session)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_DESTINATION, session, &error);
    if (journal == NULL) {
        if (error != NULL)
            g_warning("%s", error->message);
        return;
    }
    if (!rm_journal_take(journal) || !rm_settle_destination_due(journal))
        return;
    const char *path = rm_journal_facts(journal)->qmp;
    if (path != NULL && rm_daemon_claim(sweep->daemon, path))
        g_ptr_array_add(sweep->claimed, g_strdup(path));
    g_ptr_array_add(sweep->journals, g_steal_pointer(&journal));
}

static void journal_close(gpointer journal)
{
    rm_journal_close(journal);
}

void rm_sweep_start(RmDaemon *daemon, GSourceFunc done, gpointer data)
{
    g_autoptr(GPtrArray) sessions = rm_journal_list(RM_SIDE_DESTINATION);
    Sweep *sweep = g_new0(Sweep, 1);
    sweep->daemon = daemon;
    sweep->done = done;
    sweep->data = data;
    sweep->journals = g_ptr_array_new_with_free_func(journal_close);
    sweep->claimed = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; i < sessions->len; i++)
        add(sweep, sessions->pdata[i]);
    g_thread_unref(g_thread_new("sweep", sweep_main, sweep));
}
