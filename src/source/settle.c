/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the source. */
#include "source/settle.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "common/size.h"
#include "source/connect.h"

#define ASK_EVERY_MS 500

typedef struct {
    RmJournal *journal;
    const RmJournalFacts *facts;
    RmJournalRecord record;
    RmGuest *guest;
    char *host; /* the peer's */
    uint16_t port;
    RmSettled *settled;
} Case;

void rm_settled_clear(RmSettled *settled)
{
    g_free(settled->where);
    g_free(settled->detail);
    g_free(settled->next);
    *settled = (RmSettled){0};
}

char *rm_settle_whereabouts(RmGuest *guest, const char *name)
{
    RmGuestRun run;
    const char *verb = "is";
    if (!guest->ops->run_state(guest, &run, NULL))
        return g_strdup_printf("guest %s does not answer on %s any more", name, g_get_host_name());
    if (run == RM_GUEST_RUNNING)
        verb = "runs";
    else if (run == RM_GUEST_PAUSED || run == RM_GUEST_SAVED)
        verb = "is paused";
    return g_strdup_printf("guest %s %s on %s", name, verb, g_get_host_name());
}

static char *resolve_command(const Case *this)
{
    return g_strdup_printf("rdmamig resolve %s", this->facts->session);
}

/* ---- the source has it ---- */

static void say_source_has_it(Case *this)
{
    if (this->guest != NULL) {
        this->settled->where = rm_settle_whereabouts(this->guest, this->facts->guest);
        return;
    }
    this->settled->where =
        g_strdup_printf("guest %s is nowhere: it was %s's, and its QEMU (pid %d) has ended",
                        this->facts->guest, g_get_host_name(), (int)this->facts->pid);
    this->settled->next = g_strdup("it is safe to start it here again");
}

static gboolean record(Case *this, RmState to, json_object *note, GError **error)
{
    return rm_journal_move(this->journal, 1u << this->record.state, to, this->record.run, note, TRUE,
                           &this->settled->state, error);
}

/* `forced`: by the operator's word, which the record tells. */
static gboolean roll_back(Case *this, gboolean forced, GError **error)
{
    g_autoptr(GError) problem = NULL;
    rm_autojson note = NULL;
    if (this->guest != NULL) {
        this->guest->ops->recall(this->guest, this->record.note);
        if (!this->guest->ops->resume(this->guest, this->facts->was_running, &problem) &&
            rm_error_reason(problem) != RM_REASON_CLEANUP) { /* that one says: it is as it was, otherwise */
            this->settled->next = resolve_command(this);
            this->settled->where = rm_settle_whereabouts(this->guest, this->facts->guest);
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        if (problem != NULL)
            this->settled->detail = g_strdup(problem->message);
    }
    if (forced) {
        note = json_object_new_object();
        json_object_object_add(note, "forced", json_object_new_boolean(TRUE));
    }
    say_source_has_it(this);
    return record(this, RM_STATE_FAILED, note, error);
}

/* ---- the destination has it ---- */

/* Nobody needs our VMM any more; but what is ended must be the guest's old self, and nothing else. */
static gboolean end_old(Case *this, GError **error)
{
    RmGuestRun run;
    g_autoptr(GError) problem = NULL;
    int pid = (int)this->facts->pid;
    this->settled->where = g_strdup_printf("guest %s %s on %s", this->facts->guest,
                                           this->record.run ? "runs" : "is paused", this->host);
    if (this->guest == NULL || this->facts->keep_source)
        return TRUE;
    if (!this->guest->ops->run_state(this->guest, &run, &problem) &&
        rm_error_reason(problem) == RM_REASON_GUEST_GONE)
        return TRUE;
    this->settled->next = g_strdup_printf("kill %d", pid);
    if (problem != NULL) {
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    if (run == RM_GUEST_RUNNING)
        return rm_fail(error, RM_REASON_GUEST_STATE,
                       "the guest was handed over, and its old QEMU (pid %d) runs, too: somebody let it run",
                       pid);
    if (run != RM_GUEST_SAVED)
        return rm_fail(error, RM_REASON_CLEANUP,
                       "the guest was handed over; its old QEMU (pid %d) is not as it was left: look at it",
                       pid);
    if (!this->guest->ops->quit(this->guest, error))
        return FALSE;
    g_clear_pointer(&this->settled->next, g_free);
    return TRUE;
}

static gboolean finish_done(Case *this, GError **error)
{
    return record(this, RM_STATE_DONE, NULL, error) && end_old(this, error);
}

static gboolean leave_committed(Case *this, GError **error)
{
    /* Without a VMM here there is nothing left to do here, whatever comes of it there. */
    if (this->guest == NULL)
        return finish_done(this, error);
    this->settled->where = g_strdup_printf("guest %s is on %s", this->facts->guest, this->host);
    this->settled->detail = g_strdup_printf("%s has taken the guest over, and does not say that it runs yet; "
                                            "it stays paused here",
                                            this->host);
    this->settled->next =
        g_strdup_printf("on %s: rdmamig resolve %s; then the same here", this->host, this->facts->session);
    return TRUE;
}

/* ---- nobody knows ---- */

static gboolean leave_doubtful(Case *this, const char *why, GError **error)
{
    RmSettled *settled = this->settled;
    if (this->guest != NULL) {
        settled->where = g_strdup_printf("guest %s is paused on %s, and may run on %s", this->facts->guest,
                                         g_get_host_name(), this->host);
        settled->next = g_strdup_printf("once %s answers: rdmamig resolve %s; if it never will, and cannot "
                                        "run the guest: rdmamig resolve %s --force-resume",
                                        this->host, this->facts->session, this->facts->session);
    } else {
        settled->where = g_strdup_printf("guest %s may run on %s; its QEMU here (pid %d) has ended",
                                         this->facts->guest, this->host, (int)this->facts->pid);
        settled->next =
            g_strdup_printf("look at %s; start the guest here only if it cannot run there", this->host);
    }
    settled->detail = g_strdup_printf("commit was sent, and %s", why);
    return this->record.state == RM_STATE_DOUBTFUL || record(this, RM_STATE_DOUBTFUL, NULL, error);
}

/* FALSE if nobody answered within the time; at least one attempt is made. */
static gboolean ask(Case *this, unsigned ask_for_ms, RmFate *ret_fate, gboolean *ret_done, char **ret_why)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)ask_for_ms * 1000;
    for (;;) {
        g_autoptr(GError) problem = NULL;
        if (rm_connect_query(this->host, this->port, this->facts->session, this->facts->token, ret_fate,
                             ret_done, &problem)) {
            *ret_why = g_strdup_printf("%s does not know the session", this->host);
            return TRUE;
        }
        if (g_get_monotonic_time() + ASK_EVERY_MS * 1000 > deadline) {
            *ret_why = g_strdup_printf("there is no answer: %s", problem->message);
            return FALSE;
        }
        g_usleep(ASK_EVERY_MS * 1000);
    }
}

static gboolean settle_committed(Case *this, gboolean force_resume, unsigned ask_for_ms, GError **error)
{
    RmFate fate = RM_FATE_UNKNOWN;
    gboolean done = FALSE;
    g_autofree char *why = NULL;
    if (this->facts->token == NULL || *this->host == '\0')
        why = g_strdup("the journal does not say whom to ask");
    else if (!ask(this, ask_for_ms, &fate, &done, &why))
        fate = RM_FATE_UNKNOWN;
    if (fate == RM_FATE_ABORTED)
        return roll_back(this, FALSE, error);
    if (fate == RM_FATE_COMMITTED)
        return done ? finish_done(this, error) : leave_committed(this, error);
    return force_resume ? roll_back(this, TRUE, error) : leave_doubtful(this, why, error);
}

static gboolean settle(Case *this, gboolean force_resume, unsigned ask_for_ms, GError **error)
{
    switch (this->record.state) {
    case RM_STATE_SWITCHOVER:
    case RM_STATE_PREPARED:
        return roll_back(this, FALSE, error);
    case RM_STATE_COMMITTED:
    case RM_STATE_DOUBTFUL:
        return settle_committed(this, force_resume, ask_for_ms, error);
    case RM_STATE_DONE:
        return end_old(this, error);
    case RM_STATE_FAILED:
    case RM_STATE_CANCELLED:
    case RM_STATE_REFUSED:
        say_source_has_it(this);
        return TRUE;
    default: /* before the switchover */
        say_source_has_it(this);
        return record(this, RM_STATE_FAILED, NULL, error);
    }
}

gboolean rm_settle_source(RmJournal *journal, RmGuest *guest, gboolean force_resume, unsigned ask_for_ms,
                          RmSettled *ret_settled, GError **error)
{
    Case this = {
        .journal = journal, .facts = rm_journal_facts(journal), .guest = guest, .settled = ret_settled};
    *ret_settled = (RmSettled){.state = RM_STATE_COUNT, .owner = RM_OWNER_UNKNOWN};
    if (!rm_journal_read(journal, &this.record, error))
        return FALSE;
    if (this.facts->peer == NULL || !rm_parse_address(this.facts->peer, 0, &this.host, &this.port, NULL) ||
        this.host == NULL)
        this.host = g_strdup("");
    ret_settled->state = this.record.state;
    gboolean ok = settle(&this, force_resume, ask_for_ms, error);
    ret_settled->owner = rm_state_owner(ret_settled->state);
    g_free(this.host);
    rm_journal_record_clear(&this.record);
    return ok;
}
