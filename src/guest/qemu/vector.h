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

/* Sets the known vector; what differed goes to `found`, which is filled before anything is changed. One that
 * is filled already is kept: it is older. Reasons qmp-error and others of rm_qmp_run(). */
gboolean rm_vector_apply(RmQmp *qmp, gboolean incoming, RmVector *found, GError **error);

/* Restores and clears `found`. QEMU refuses that while a migration is active. */
gboolean rm_vector_restore(RmQmp *qmp, RmVector *found, GError **error);
