/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guardian at the source. */
#include "source/guard.h"

#include "common/reason.h"
#include "source/settle.h"

#define QMP_TIMEOUT_MS 30000
#define ASK_FOR_MS 30000 /* after that it is left to `rdmamig resolve` */
#define ASK_EVERY_MS 500

gboolean rm_guard_source_start(RmSession *session, GError **error)
{
    RmGuardianParams params = {
        .verb = RM_GUARDIAN_VERB,
        .qmp_fd = session->guest->ops->connection(session->guest),
        .journal = session->journal,
        .max_pause_ms = session->was_running ? session->options->max_pause_ms : 0,
    };
    session->guardian = rm_guardian_start(&params, error);
    return session->guardian != NULL;
}

/* A destination that has committed may need a moment until it can say that the guest runs. */
static gboolean settle_in_time(RmJournal *journal, RmGuest *guest, RmSettled *ret_settled, GError **error)
{
    gint64 deadline = g_get_monotonic_time() + ASK_FOR_MS * 1000;
    for (;;) {
        gint64 left_ms = MAX(0, (deadline - g_get_monotonic_time()) / 1000);
        if (!rm_settle_source(journal, guest, FALSE, (unsigned)left_ms, NULL, ret_settled, error))
            return FALSE;
        if (ret_settled->state != RM_STATE_COMMITTED || left_ms <= ASK_EVERY_MS)
            return TRUE;
        rm_settled_clear(ret_settled);
        g_usleep(ASK_EVERY_MS * 1000);
    }
}

static void report(const RmJournalFacts *facts, const RmSettled *settled, gboolean ok)
{
    GLogLevelFlags level =
        ok && settled->next == NULL && settled->detail == NULL ? G_LOG_LEVEL_MESSAGE : G_LOG_LEVEL_WARNING;
    if (settled->where == NULL)
        return;
    RmReason reason = settled->owner == RM_OWNER_SOURCE    ? RM_REASON_INTERNAL /* its daemon has died */
                      : settled->owner == RM_OWNER_UNKNOWN ? RM_REASON_DOUBTFUL
                                                           : RM_REASON_NONE;
    rm_log_event(ok ? rm_state_log_event(settled->state) : RM_LOG_STUCK, level, reason,
                 "session %s: %s: %s%s%s%s%s", facts->session, rm_state_name(settled->state), settled->where,
                 settled->detail != NULL ? "; " : "", settled->detail != NULL ? settled->detail : "",
                 settled->next != NULL ? "; next: " : "", settled->next != NULL ? settled->next : "");
}

static gboolean settle(RmJournal *journal, int qmp_fd, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_autoptr(GError) unreachable = NULL;
    g_auto(RmSettled) settled = {0};
    g_autoptr(RmGuest) guest =
        rm_guest_qemu_adopt(qmp_fd, facts->qmp, facts->pid, QMP_TIMEOUT_MS, &unreachable);
    if (guest == NULL && rm_journal_vmm_lives(facts))
        return rm_fail(error, rm_error_reason(unreachable),
                       "QEMU (pid %d) can't be reached: %s; next: rdmamig resolve %s", (int)facts->pid,
                       unreachable->message, facts->session);
    gboolean ok = settle_in_time(journal, guest, &settled, error);
    report(facts, &settled, ok);
    return ok;
}

int rm_guard_source_main(int argc, char **argv)
{
    return rm_guardian_main(argc, argv, settle);
}
