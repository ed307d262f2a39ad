/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who may call. */
#include "destination/access.h"

#include "common/reason.h"

#include <string.h>

gboolean rm_access_check_name(const char *name, GError **error)
{
    const char *rest = g_str_has_prefix(name, "*.") ? name + 2 : name;
    if (*rest != '\0' && strpbrk(rest, "* \t,;/") == NULL)
        return TRUE;
    return rm_fail(error, RM_REASON_USAGE,
                   "--tls-allow: `%s` is no name; give one as a certificate has it, or *.example.com for all "
                   "directly under that, once for each",
                   name);
}

RmAccess *rm_access_load(const char *creds, char *const *allowed, GError **error)
{
    gboolean some = allowed != NULL && *allowed != NULL;
    for (char *const *name = allowed; some && *name != NULL; name++) {
        if (!rm_access_check_name(*name, error))
            return NULL;
    }
    RmTls *tls = rm_tls_load(creds, RM_TLS_DESTINATION, error);
    if (tls == NULL)
        return NULL;
    RmAccess *access = g_new0(RmAccess, 1);
    g_atomic_ref_count_init(&access->references);
    access->tls = tls;
    access->allowed = some ? g_strdupv((char **)allowed) : NULL;
    return access;
}

RmAccess *rm_access_ref(RmAccess *access)
{
    g_atomic_ref_count_inc(&access->references);
    return access;
}

void rm_access_unref(RmAccess *access)
{
    if (access == NULL || !g_atomic_ref_count_dec(&access->references))
        return;
    rm_tls_unref(access->tls);
    g_strfreev(access->allowed);
    g_free(access);
}
