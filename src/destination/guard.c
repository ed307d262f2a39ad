/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The journal's facts, and the guardian at the destination. */
#include "destination/guard.h"

#include "common/reason.h"
#include "destination/settle.h"

#define QMP_TIMEOUT_MS 30000

static RmJournal *start_journal(const RmHello *hello, const RmAccept *accept, const RmFound *found,
                                const char *peer, RmState first, GError **error)
{
    g_autofree char *qmp = g_canonicalize_filename(found->path, NULL);
    RmJournalFacts facts = {
        .session = hello->session,
        .side = RM_SIDE_DESTINATION,
        .guest = *hello->guest_name != '\0' ? hello->guest_name : qmp,
        .qmp = qmp,
        .pid = found->info->pid,
        .peer = (char *)peer,
        .token = accept->token,
        .started = found->started,
    };
    rm_journal_facts_stamp(&facts);
    RmJournal *journal = rm_journal_create(&facts, first, error);
    g_free(facts.host_boot);
    return journal;
}

gboolean rm_guard_destination_start(const RmHello *hello, const RmAccept *accept, const RmFound *found,
                                    const char *peer, RmState first, RmJournal **ret_journal,
                                    RmGuardian **ret_guardian, GError **error)
{
    *ret_journal = start_journal(hello, accept, found, peer, first, error);
    if (*ret_journal == NULL)
        return FALSE;
    RmGuardianParams params = {
        .verb = RM_GUARDIAN_VERB,
        .qmp_fd = found->guest->ops->connection(found->guest),
        .journal = *ret_journal,
    };
    *ret_guardian = rm_guardian_start(&params, error);
    return *ret_guardian != NULL;
}

static gboolean settle(RmJournal *journal, int qmp_fd, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_autoptr(GError) unreachable = NULL;
    g_autoptr(RmGuest) guest =
        rm_guest_qemu_adopt(qmp_fd, facts->qmp, facts->pid, QMP_TIMEOUT_MS, &unreachable);
    RmState state = RM_STATE_COUNT;
    gboolean ok = rm_settle_destination(journal, guest, &state, error);
    if (guest == NULL && rm_journal_vmm_lives(facts))
        g_warning("QEMU (pid %d) can't be reached: %s", (int)facts->pid, unreachable->message);
    if (ok && state == RM_STATE_DONE)
        rm_log_event(RM_LOG_MOVED, G_LOG_LEVEL_MESSAGE, RM_REASON_NONE, "session %s: guest %s is here",
                     facts->session, facts->guest);
    else if (ok) /* its daemon has died */
        rm_log_event(rm_state_log_event(state), G_LOG_LEVEL_MESSAGE, RM_REASON_INTERNAL,
                     "session %s ended without the guest", facts->session);
    else
        g_prefix_error(error, "next: rdmamig resolve %s; ", facts->session);
    return ok;
}

int rm_guard_destination_main(int argc, char **argv)
{
    return rm_guardian_main(argc, argv, settle);
}
