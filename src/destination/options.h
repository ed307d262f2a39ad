/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What rdmamigd was asked to do. */
#pragma once

#include "control/command-line.h"

typedef struct {
    char *host; /* NULL: loopback, or all addresses with TLS: rm_listen_everywhere() */
    uint16_t port;
    char **qmp; /* NULL-terminated; NULL if none */
    char *qmp_dir;
    char *exec;
    char **data_addresses;
    char *metrics_host;    /* NULL: loopback */
    uint16_t metrics_port; /* 0: no --metrics */
    gboolean insecure;
    char **tls_allow; /* names of sources; NULL: every certificate of the CA */
    uint64_t min_chunk_size, max_chunk_size;
    uint64_t max_sessions; /* at a time */
    uint64_t max_pinned;   /* bytes registered at a time, of one guest; 0: no bound */
    RmCommonOptions common;
    RmSettings settings; /* all of it, as it was given */
    char *checked; /* --check-config: what is to be shown if rm_listen_options_check() agrees; or NULL */
} RmListenOptions;

/* Whether it listens on all addresses for want of one that was named: where TLS says who may call. */
gboolean rm_listen_everywhere(const RmListenOptions *options);

/* Parses rdmamigd's command line. Reason usage. *ret_text is set instead of an error for --help and
 * --version. */
RmListenOptions *rm_listen_options_parse(int argc, char **argv, char **ret_text, GError **error);
/* Of --check-config: what may still be missing when it is given, but not when the daemon starts. */
gboolean rm_listen_options_check(const RmListenOptions *options, GError **error);
void rm_listen_options_free(RmListenOptions *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmListenOptions, rm_listen_options_free)
