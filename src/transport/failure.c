/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keeping the first failure. */
#include "transport/failure.h"

void rm_failure_init(RmFailure *failure)
{
    g_mutex_init(&failure->lock);
}

void rm_failure_clear(RmFailure *failure)
{
    g_clear_error(&failure->first);
    g_mutex_clear(&failure->lock);
}

int rm_failure_set(RmFailure *failure, int code, RmReason reason, const char *format, ...)
{
    g_assert(code < 0);
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);

    g_mutex_lock(&failure->lock);
    if (failure->first == NULL) {
        failure->first = g_error_new_literal(RM_ERROR, reason, text);
        g_atomic_int_set(&failure->code, code);
    }
    int first = failure->code;
    g_mutex_unlock(&failure->lock);
    return first;
}

gboolean rm_failure_get(RmFailure *failure, GError **error)
{
    g_mutex_lock(&failure->lock);
    GError *copy = failure->first != NULL ? g_error_copy(failure->first) : NULL;
    g_mutex_unlock(&failure->lock);
    if (copy == NULL)
        return TRUE;
    g_propagate_error(error, copy);
    return FALSE;
}
