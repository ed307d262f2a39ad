/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state, through QEMU's own migration over a pipe. Capabilities and parameters are set already
 * (vector.h). */
#pragma once

#include "guest/qemu/qmp.h"

/* QEMU's run state ("running", "postmigrate", …), caller frees. */
gboolean rm_state_query_run(RmQmp *qmp, char **ret_status, GError **error);

/* Whether a migration is under way, incoming ones included. *ret_status (caller frees) is QEMU's word, "none"
 * for none. */
gboolean rm_state_query_migration(RmQmp *qmp, gboolean *ret_active, char **ret_status, GError **error);

/* Saves the state of a stopped guest, which is in postmigrate then. Reason state-save. */
gboolean rm_state_save(RmQmp *qmp, GByteArray **ret_state, GError **error);

/* Ends a migration under way, whatever its outcome. Reason resume. */
gboolean rm_state_cancel(RmQmp *qmp, GError **error);

/* Loads the state into a QEMU in inmigrate, which is paused then. Reasons state-load, guest-state. */
gboolean rm_state_load(RmQmp *qmp, const uint8_t *state, gsize length, GError **error);
