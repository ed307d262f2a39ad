/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fates out of journals. */
#include "destination/fates.h"

#include "common/reason.h"
#include "handover/journal.h"
#include "transport/token.h"

static gboolean tokens_equal(const char *a, const char *b)
{
    uint8_t x[RM_TOKEN_BYTES], y[RM_TOKEN_BYTES];
    return rm_token_parse(a, x) && rm_token_parse(b, y) && rm_token_equal(x, y);
}

static RmFate fate_of(RmState state)
{
    switch (state) {
    case RM_STATE_COMMITTED:
    case RM_STATE_DONE:
        return RM_FATE_COMMITTED;
    case RM_STATE_FAILED:
    case RM_STATE_CANCELLED:
    case RM_STATE_REFUSED:
        return RM_FATE_ABORTED;
    default:
        return RM_FATE_UNKNOWN;
    }
}

gboolean rm_fates_query(const char *session, const char *token, RmFate *ret_fate, gboolean *ret_done,
                        GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(RmJournal) journal = rm_journal_open(RM_SIDE_DESTINATION, session, &problem);
    RmState state;
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
    /* Synced again, for the record that stands may be that of a process which died before it could. */
    if (!rm_journal_move(journal, RM_JOURNAL_OPEN, RM_STATE_FAILED, FALSE, NULL, TRUE, &state, error) ||
        !rm_journal_sync(journal, error))
        return FALSE;
    *ret_fate = fate_of(state);
    *ret_done = state == RM_STATE_DONE;
    return TRUE;
}
