/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the source. */
#include "source/settle.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "common/size.h"
#include "handover/actor.h"
#include "source/connect.h"

#define ASK_EVERY_MS 500

typedef struct {
    RmActor actor;
    const RmJournalFacts *facts;
    RmGuest *guest;
    char *host; /* the peer's */
    uint16_t port;
    unsigned ask_for_ms;
    const char *tls_creds; /* NULL: in clear */
    RmEvent fate;          /* the answer; RM_EVENT_COUNT: not asked */
    char *why;             /* it is unknown */
    RmSettled *settled;
} Case;

static Case *case_of(RmActor *actor)
{
    return (Case *)((char *)actor - G_STRUCT_OFFSET(Case, actor));
}

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

/* ---- the duties ---- */

static gboolean duty_resume(RmActor *actor, GError **error)
{
    Case *this = case_of(actor);
    g_autoptr(GError) problem = NULL;
    if (this->guest == NULL)
        return TRUE;
    this->guest->ops->recall(this->guest, actor->record.note);
    if (!this->guest->ops->resume(this->guest, this->facts->was_running, &problem) &&
        rm_error_reason(problem) != RM_REASON_CLEANUP) { /* that one says: it is as it was, otherwise */
        this->settled->next = g_strdup_printf("rdmamig resolve %s", this->facts->session);
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    if (problem != NULL)
        this->settled->detail = g_strdup(problem->message);
    return TRUE;
}

/* Nobody needs our VMM any more; but what is ended must be the guest's old self, and nothing else. */
static gboolean duty_end(RmActor *actor, GError **error)
{
    Case *this = case_of(actor);
    RmGuestRun run;
    g_autoptr(GError) problem = NULL;
    int pid = (int)this->facts->pid;
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

static RmEvent event_of(const Case *this, RmFate fate, gboolean done)
{
    switch (fate) {
    case RM_FATE_ABORTED:
        return RM_EVENT_FATE_ABORTED;
    case RM_FATE_COMMITTED: /* without a VMM here there is nothing left to do, whatever comes of it there */
        return done || this->guest == NULL ? RM_EVENT_FATE_DONE : RM_EVENT_FATE_COMMITTED;
    default:
        return RM_EVENT_FATE_UNKNOWN;
    }
}

/* With the credentials as they are now: they may have been renewed since the session began. */
static gboolean ask(Case *this, RmFate *ret_fate, gboolean *ret_done, GError **error)
{
    g_autoptr(RmTls) tls = NULL;
    if (this->tls_creds != NULL && (tls = rm_tls_load(this->tls_creds, RM_TLS_SOURCE, error)) == NULL)
        return FALSE;
    RmTarget target = {this->host, this->port, tls, this->facts->tls_host};
    return rm_connect_query(&target, this->facts->session, this->facts->token, ret_fate, ret_done, error);
}

/* Until the time is up; at least one attempt is made. */
static gboolean duty_ask(RmActor *actor, G_GNUC_UNUSED GError **error)
{
    Case *this = case_of(actor);
    gint64 deadline = g_get_monotonic_time() + (gint64)this->ask_for_ms * 1000;
    this->fate = RM_EVENT_FATE_UNKNOWN;
    if (this->facts->token == NULL || *this->host == '\0') {
        this->why = g_strdup("the journal does not say whom to ask");
        return TRUE;
    }
    for (;;) {
        g_autoptr(GError) problem = NULL;
        RmFate fate;
        gboolean done;
        if (ask(this, &fate, &done, &problem)) {
            this->fate = event_of(this, fate, done);
            this->why = g_strdup_printf("%s does not know the session", this->host);
            return TRUE;
        }
        if (g_get_monotonic_time() + ASK_EVERY_MS * 1000 > deadline) {
            this->why = g_strdup_printf("there is no answer: %s%s", problem->message,
                                        rm_error_reason(problem) == RM_REASON_TLS
                                            ? " (other credentials: resolve --tls-creds DIR)"
                                            : "");
            return TRUE;
        }
        g_usleep(ASK_EVERY_MS * 1000);
    }
}

static const RmDutyFunc duties[RM_DUTY_COUNT] = {
    [RM_DUTY_INDEX_RESUME] = duty_resume,
    [RM_DUTY_INDEX_ASK] = duty_ask,
    [RM_DUTY_INDEX_END] = duty_end,
};

/* ---- what has come of it ---- */

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

static void say_destination_has_it(Case *this)
{
    this->settled->where = g_strdup_printf("guest %s %s on %s", this->facts->guest,
                                           this->actor.record.run ? "runs" : "is paused", this->host);
}

static void say_committed(Case *this)
{
    this->settled->where = g_strdup_printf("guest %s is on %s", this->facts->guest, this->host);
    this->settled->detail = g_strdup_printf("%s has taken the guest over, and does not say that it runs yet; "
                                            "it stays paused here",
                                            this->host);
    this->settled->next =
        g_strdup_printf("on %s: rdmamig resolve %s; then the same here", this->host, this->facts->session);
}

static void say_doubtful(Case *this)
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
    settled->detail = g_strdup_printf("commit was sent, and %s", this->why ?: "nobody was asked");
}

/* There was no row. */
static void say_nothing_done(Case *this)
{
    this->settled->where = this->guest != NULL ? rm_settle_whereabouts(this->guest, this->facts->guest)
                                               : g_strdup_printf("guest %s has no QEMU on %s any more",
                                                                 this->facts->guest, g_get_host_name());
}

/* In the operator's words, by the last row; also by one that could not be carried out to its end. */
static void say(Case *this)
{
    const RmTransition *row = this->actor.row;
    RmState state = row != NULL ? row->to : this->actor.record.state;
    RmOwner owner = rm_state_owner(state);
    if (row == NULL && !rm_actor_is_idle(RM_SIDE_SOURCE, state))
        say_nothing_done(this);
    else if (row != NULL && row->event == RM_EVENT_FATE_COMMITTED)
        say_committed(this);
    else if (owner == RM_OWNER_DESTINATION)
        say_destination_has_it(this);
    else if (owner == RM_OWNER_UNKNOWN)
        say_doubtful(this);
    else
        say_source_has_it(this);
}

/* ---- settling ---- */

/* The operator's word counts only where nobody else's does: the destination has just been asked. */
static gboolean force(Case *this, GError **error)
{
    rm_autojson note = json_object_new_object();
    json_object_object_add(note, "forced", json_object_new_boolean(TRUE));
    this->actor.note = note;
    gboolean ok = rm_actor_take(&this->actor, RM_EVENT_FORCE_RESUME, error);
    this->actor.note = NULL;
    return ok;
}

static gboolean settle(Case *this, gboolean force_resume, GError **error)
{
    if (rm_actor_is_idle(RM_SIDE_SOURCE, this->actor.record.state))
        return TRUE;
    if (!rm_actor_take(&this->actor, RM_EVENT_SETTLE, error))
        return FALSE;
    if (this->fate == RM_EVENT_COUNT)
        return TRUE;
    return rm_actor_take(&this->actor, this->fate, error) &&
           (!force_resume || this->fate != RM_EVENT_FATE_UNKNOWN || force(this, error));
}

gboolean rm_settle_source(RmJournal *journal, RmGuest *guest, gboolean force_resume, unsigned ask_for_ms,
                          const char *tls_creds, RmSettled *ret_settled, GError **error)
{
    Case this = {
        .actor = {.journal = journal, .duties = duties},
        .facts = rm_journal_facts(journal),
        .guest = guest,
        .ask_for_ms = ask_for_ms,
        .tls_creds = tls_creds ?: rm_journal_facts(journal)->tls_creds,
        .fate = RM_EVENT_COUNT,
        .settled = ret_settled,
    };
    *ret_settled = (RmSettled){.state = RM_STATE_COUNT, .owner = RM_OWNER_UNKNOWN};
    if (!rm_journal_take(journal))
        return rm_fail(error, RM_REASON_JOURNAL, "somebody else looks after session %s", this.facts->session);
    if (!rm_actor_look(&this.actor, error))
        return FALSE;
    if (this.facts->peer == NULL || !rm_parse_address(this.facts->peer, 0, &this.host, &this.port, NULL) ||
        this.host == NULL)
        this.host = g_strdup("");
    gboolean ok = settle(&this, force_resume, error);
    say(&this);
    ret_settled->state = this.actor.record.state;
    ret_settled->owner = rm_state_owner(ret_settled->state);
    rm_actor_clear(&this.actor);
    g_free(this.host);
    g_free(this.why);
    return ok;
}
