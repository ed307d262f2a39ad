/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reason codes and the error helpers that carry them. */
#include "common/reason.h"

#include <gio/gio.h>

static const char *const names[] = {
#define X(id, name) [RM_REASON_##id] = name,
    RM_REASONS(X)
#undef X
};
G_STATIC_ASSERT(G_N_ELEMENTS(names) == RM_REASON_COUNT);

/* Not by G_DEFINE_QUARK(), whose variable is read and written by several threads without any order. */
GQuark rm_error_quark(void)
{
    static gsize quark;
    if (g_once_init_enter(&quark))
        g_once_init_leave(&quark, g_quark_from_static_string("rdmamig-error-quark"));
    return (GQuark)quark;
}

const char *rm_reason_name(RmReason reason)
{
    return (unsigned)reason < RM_REASON_COUNT ? names[reason] : names[RM_REASON_INTERNAL];
}

gboolean rm_reason_from_name(const char *name, RmReason *ret_reason)
{
    for (unsigned i = 0; i < RM_REASON_COUNT; i++) {
        if (g_strcmp0(name, names[i]) == 0) {
            *ret_reason = i;
            return TRUE;
        }
    }
    return FALSE;
}

RmReason rm_error_reason(const GError *error)
{
    if (error == NULL)
        return RM_REASON_NONE;
    if (error->domain == RM_ERROR)
        return error->code;
    if (g_error_matches(error, G_IO_ERROR, G_IO_ERROR_CANCELLED))
        return RM_REASON_CANCELLED;
    return RM_REASON_INTERNAL;
}

gboolean rm_set_errno(GError **error, RmReason reason, int errno_value, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, RM_ERROR, reason, "%s: %s", text, g_strerror(errno_value));
    return FALSE;
}

gboolean rm_fail(GError **error, RmReason reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error_literal(error, RM_ERROR, reason, text);
    return FALSE;
}
