/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who may call, where TLS is set up: this end's credentials, and the names of which a source must have one.
 *
 * The two belong together and never change: a reload makes another one, and a handshake that is under way
 * ends with the one that it began with.
 */
#pragma once

#include "control/tls.h"

typedef struct {
    gatomicrefcount references;
    RmTls *tls;
    char **allowed; /* NULL: every certificate of the CA */
} RmAccess;

/* `allowed` may be NULL or empty. Reasons tls, usage (a name that is none). */
RmAccess *rm_access_load(const char *creds, char *const *allowed, GError **error);
RmAccess *rm_access_ref(RmAccess *access);
void rm_access_unref(RmAccess *access); /* NULL is fine */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmAccess, rm_access_unref)

/* Whether it is a name, an IP address, or "*." and a name, as --tls-allow takes them. Reason usage. */
gboolean rm_access_check_name(const char *name, GError **error);
