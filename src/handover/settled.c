/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What has become of a session that was settled. */
#include "handover/settled.h"

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

void rm_settled_at_destination(RmSettled *settled, const RmJournalFacts *facts, char *whereabouts)
{
    settled->owner = rm_state_owner(settled->state);
    if (settled->owner == RM_OWNER_SOURCE) {
        settled->where = g_strdup_printf("guest %s is not on %s, and will not be: it is its source's",
                                         facts->guest, g_get_host_name());
        g_free(whereabouts);
        return;
    }
    if (settled->state == RM_STATE_DOUBTFUL)
        settled->next =
            g_strdup_printf("at its source, where it is paused: rdmamig resolve %s", facts->session);
    else if (whereabouts == NULL)
        settled->next = g_strdup("it is safe to start it here again");
    else if (settled->state == RM_STATE_COMMITTED)
        settled->next = g_strdup_printf("rdmamig resolve %s", facts->session);
    settled->where =
        whereabouts != NULL
            ? whereabouts
            : g_strdup_printf("guest %s is nowhere: it was %s's, and its QEMU (pid %d) has ended",
                              facts->guest, g_get_host_name(), (int)facts->pid);
}
