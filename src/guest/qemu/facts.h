/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who a guest is, and what has to be equal at both ends. */
#pragma once

#include "guest/guest.h"
#include "guest/qemu/qmp.h"

gboolean rm_facts_describe(RmQmp *qmp, pid_t pid, RmGuestInfo **ret_info, GError **error);

/* QEMU's run state in the session's terms. */
RmGuestRun rm_facts_run(const char *status);

/* The first vCPU's thread id (0 if QEMU tells none) and its object; caller frees. */
gboolean rm_facts_vcpu_thread(RmQmp *qmp, pid_t *ret_thread, GError **error);
gboolean rm_facts_vcpu_path(RmQmp *qmp, char **ret_path, GError **error);

gboolean rm_facts_kvm(RmQmp *qmp, gboolean *ret_kvm, GError **error);
