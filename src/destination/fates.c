/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fates out of journals. */
#include "destination/fates.h"

#include "common/reason.h"
#include "handover/actor.h"
#include "transport/token.h"

static gboolean tokens_equal(const char *a, const char *b)
{
    uint8_t x[RM_TOKEN_BYTES], y[RM_TOKEN_BYTES];
    return rm_token_parse(a, x) && rm_token_parse(b, y) && rm_token_equal(x, y);
}

typedef struct {
    RmActor actor;
    RmState answer; /* RM_STATE_COUNT: none yet */
} Query;

static gboolean duty_answer(RmActor *actor, G_GNUC_UNUSED GError **error)
{
    ((Query *)((char *)actor - G_STRUCT_OFFSET(Query, actor)))->answer = actor->row->to;
    return TRUE;
}

static const RmDutyFunc duties[RM_DUTY_COUNT] = {[RM_DUTY_INDEX_ANSWER] = duty_answer};

static RmFate fate_of(RmState state)
{
    switch (state) {
    case RM_STATE_COMMITTED:
    case RM_STATE_DONE:
        return RM_FATE_COMMITTED;
    case RM_STATE_FAILED:
    case RM_STATE_CANCELLED:
        return RM_FATE_ABORTED;
    default: /* doubtful; and nothing else can be concluded from any other state either */
        return RM_FATE_UNKNOWN;
    }
}

/* Carries out the table's row for `query`, whatever becomes of it. */
static gboolean decide(RmJournal *journal, RmState *ret_answer, GError **error)
{
    Query this = {.actor = {.journal = journal, .duties = duties}, .answer = RM_STATE_COUNT};
    gboolean ok =
        rm_actor_look(&this.actor, error) && rm_actor_take(&this.actor, RM_EVENT_QUERY, error) &&
        (this.answer < RM_STATE_COUNT || rm_fail(error, RM_REASON_INTERNAL, "the query has no answer"));
    *ret_answer = this.answer;
    rm_actor_clear(&this.actor);
    return ok;
}

gboolean rm_fates_query(const char *session, const char *token, RmFate *ret_fate, gboolean *ret_done,
                        GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_DESTINATION, session, &problem);
    RmState answer;
    if (problem != NULL) {
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    if (journal == NULL) {
        *ret_fate = RM_FATE_UNKNOWN;
        *ret_done = FALSE;
        return TRUE;
    }
    const char *own = rm_journal_facts(journal)->token;
    if (own == NULL || !tokens_equal(own, token))
        return rm_fail(error, RM_REASON_TOKEN, "the token is not that of session %.40s", session);
    if (!decide(journal, &answer, error))
        return FALSE;
    *ret_fate = fate_of(answer);
    *ret_done = answer == RM_STATE_DONE;
    return TRUE;
}
