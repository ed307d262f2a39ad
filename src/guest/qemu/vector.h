/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's migration capabilities and parameters. They outlive each migration, so whoever used this QEMU before
 * may have left anything there; we set what we rely on and put back what we found.
 */
#pragma once

#include "guest/qemu/qmp.h"

/* What was found, as the arguments that restore it; NULL members: nothing to restore. */
typedef struct {
    json_object *capabilities;
    json_object *parameters;
} RmVector;

void rm_vector_clear(RmVector *vector);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmVector, rm_vector_clear)

/* Compares the vector with the known one, and changes nothing: what differs goes to `wanted` as it should be,
 * and to `found` as it is, unless that is filled already: then it is older. Reasons as rm_qmp_run(). */
gboolean rm_vector_compare(RmQmp *qmp, gboolean incoming, RmVector *wanted, RmVector *found, GError **error);

/* Sets the known vector. Reasons as rm_qmp_run(). */
gboolean rm_vector_set(RmQmp *qmp, const RmVector *wanted, GError **error);

/* Restores and clears `found`. QEMU refuses that while a migration is active. */
gboolean rm_vector_restore(RmQmp *qmp, RmVector *found, GError **error);

/* What was found, as JSON for another process (caller puts), and back; what is no such JSON gives an empty
 * vector. */
json_object *rm_vector_to_json(const RmVector *found);
void rm_vector_from_json(json_object *json, RmVector *ret_found);
