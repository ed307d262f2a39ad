/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state, through QEMU's own migration over a pipe. Capabilities and parameters are set already
 * (vector.h). */
#pragma once

#include "guest/qemu/pump.h"
#include "guest/qemu/qmp.h"

/* QEMU's run state ("running", "postmigrate", …), caller frees. */
gboolean rm_state_query_run(RmQmp *qmp, char **ret_status, GError **error);

/* Whether a migration is under way, incoming ones included. *ret_status (caller frees) is QEMU's word, "none"
 * for none; *ret_reply (caller puts; may be NULL) is its answer to query-migrate. */
gboolean rm_state_query_migration(RmQmp *qmp, gboolean *ret_active, char **ret_status,
                                  json_object **ret_reply, GError **error);

/* Makes the pipe and gives QEMU its end, which rm_state_take_back() or a migration takes off it again. QEMU's
 * other work goes on. Reasons internal, qmp-error. NULL on failure. */
RmPump *rm_state_pipe(RmQmp *qmp, gboolean incoming, GError **error);
void rm_state_take_back(RmQmp *qmp);

/* Saves the state of a stopped guest, which is in postmigrate then, unless leftover settings let it run: the
 * caller looks. Reason state-save. */
gboolean rm_state_save(RmQmp *qmp, RmPump *pump, GByteArray **ret_state, GError **error);

/* Ends a migration under way, whatever its outcome. Reason resume. */
gboolean rm_state_cancel(RmQmp *qmp, GError **error);

/* Loads the state into a QEMU in inmigrate, which is paused then. Reasons state-load, guest-state. */
gboolean rm_state_load(RmQmp *qmp, RmPump *pump, const uint8_t *state, gsize length, GError **error);
