/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The verb `resolve`: settles sessions of this host, of either side, that nobody looks after any more. */
#pragma once

#include <glib.h>

typedef struct {
    const char *session;   /* id, or the beginning of one; NULL: list what is to be settled */
    const char *tls_creds; /* the folder to ask the destination with; NULL: the session's own */
    gboolean force_resume, json;
} RmResolveOptions;

/* Returns the exit status. */
int rm_resolve(const RmResolveOptions *options);
