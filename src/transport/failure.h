/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The first failure of a transport. Many threads may fail at once, mostly as a consequence of the first; only
 * that one tells why. The others, and every later call, get its errno.
 */
#pragma once

#include "common/reason.h"

typedef struct {
    GMutex lock;
    GError *first; /* under lock */
    int code;      /* atomic: 0, or the first failure's negative errno */
} RmFailure;

void rm_failure_init(RmFailure *failure);
void rm_failure_clear(RmFailure *failure);

/* Keeps the message if it is the first. Returns the first one's code, so that `return rm_failure_set(…)`
 * reads well. */
int rm_failure_set(RmFailure *failure, int code, RmReason reason, const char *format, ...)
    G_GNUC_PRINTF(4, 5);

/* 0 or the negative errno; cheap. */
static inline int rm_failure_code(RmFailure *failure)
{
    return g_atomic_int_get(&failure->code);
}

/* TRUE if there is none, else FALSE with a copy of the first in `error`. */
gboolean rm_failure_get(RmFailure *failure, GError **error);
