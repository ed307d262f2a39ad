/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds, or starts, the QEMU that waits for a guest. */
#pragma once

#include "control/message.h"
#include "destination/daemon.h"
#include "guest/guest.h"

typedef struct {
    RmGuest *guest;
    RmGuestInfo *info;
    char *path;       /* claimed in the daemon */
    gboolean started; /* by --exec: ours to end if nothing comes of it */
} RmFound;

/* Looks among --qmp and --qmp-dir for a waiting QEMU whose name and UUID don't contradict the guest's; the
 * best match wins, two equal ones are refused. Without one, runs --exec. Reasons guest-not-found (with what
 * each candidate said), guest-busy. */
gboolean rm_find_guest(RmDaemon *daemon, const RmHello *hello, GCancellable *cancel, RmFound *ret_found,
                       GError **error);

/* Closes our side; the QEMU goes on. */
void rm_found_clear(RmDaemon *daemon, RmFound *found);
