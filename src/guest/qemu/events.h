/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's events: which of them end a migration. */
#pragma once

#include "guest/qemu/qmp.h"

typedef struct {
    unsigned own_stops;       /* STOP events that our own commands will cause */
    unsigned own_resumes;     /* RESUME events likewise */
    gboolean paused_by_other; /* somebody else's STOP was the last of its kind */
} RmEvents;

/* Takes in all events without blocking. Fails with the first that ends a migration: guest-reset,
 * guest-shutdown, guest-panicked, guest-changed, guest-state, guest-gone. */
gboolean rm_events_poll(RmEvents *events, RmQmp *qmp, GError **error);
