/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the service manager hears of rdmamigd, by sd_notify(3): that it serves, how many sessions there are,
 * that it reloads or stops, and that it is alive.
 *
 * It is the main loop that tells, once a second if there is something new: a daemon whose main loop hangs
 * takes no connection any more, and the watchdog may end it; the guardians see to its sessions then. To start
 * and to stop may take longer than a unit's time-outs, while an earlier daemon's sessions are settled, or
 * those past `commit` are finished: for so long the manager is asked for more time, but not for ever.
 *
 * All calls from the main loop's thread. Without a manager, or built without libsystemd, nothing is told.
 */
#pragma once

#include "destination/daemon.h"

typedef struct RmService RmService;

/* It is starting. */
RmService *rm_service_new(RmDaemon *daemon);
void rm_service_free(RmService *service);

/* It listens, and what an earlier daemon left is settled. */
void rm_service_ready(RmService *service);
/* Around a reload. */
void rm_service_reloading(RmService *service);
void rm_service_reloaded(RmService *service);
/* It takes no more sessions. */
void rm_service_stopping(RmService *service);
