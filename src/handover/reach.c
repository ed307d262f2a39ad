/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reaching the VMM that a journal names, and no other. */
#include "handover/reach.h"

#include "common/reason.h"

gboolean rm_reach_guest(const RmJournalFacts *facts, unsigned timeout_ms, RmGuest **ret_guest, GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_autoptr(RmGuestInfo) info = NULL;
    *ret_guest = NULL;
    if (!rm_journal_vmm_lives(facts))
        return TRUE;
    if (facts->qmp == NULL)
        return rm_fail(error, RM_REASON_QMP_UNREACHABLE, "the QMP socket of QEMU (pid %d) is not known",
                       (int)facts->pid);
    g_autoptr(RmGuest) guest = rm_guest_qemu_new(facts->qmp, timeout_ms, NULL, &problem);
    if (guest == NULL || !guest->ops->describe(guest, &info, &problem)) {
        if (!rm_journal_vmm_lives(facts)) /* it ended this moment */
            return TRUE;
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    /* The same path may be another QEMU's by now, whose guest is none of this session's business. */
    if (info->pid != facts->pid)
        return rm_fail(error, RM_REASON_GUEST_CHANGED,
                       "%s is the socket of pid %d now; the session's QEMU is pid %d, which still runs",
                       facts->qmp, (int)info->pid, (int)facts->pid);
    *ret_guest = g_steal_pointer(&guest);
    return TRUE;
}
