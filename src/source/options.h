/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What `rdmamig send` was asked to do. */
#pragma once

#include "control/command-line.h"
#include "guest/guest.h"

typedef struct {
    char *qmp;
    char *host;
    uint16_t port;
    char *tls_host;         /* the name that the destination's certificate must have; NULL: host */
    uint64_t chunk_size;    /* bytes, a power of two */
    char *transport;        /* "auto", or a backend's name */
    unsigned channels;      /* 0: the transport's default */
    uint64_t max_bandwidth; /* bytes/s; 0: none */
    uint64_t downtime_limit_ms;
    uint64_t max_rounds; /* 0: none */
    uint64_t timeout_ms; /* 0: none */
    gboolean on_timeout_suspend;
    uint64_t max_stall_ms;
    uint64_t max_pause_ms; /* from stop to commit; 0: any */
    gboolean max_pause_given;
    char *data_source;
    uint64_t max_pinned; /* bytes registered here at a time; 0: no bound */
    gboolean pin_all;    /* make everything writable before the first round */
    gboolean serialise_chunks;
    char *report; /* file for the result's JSON, or NULL */
    gboolean suspend, keep_source, verify, json, dry_run, background;
    RmPreflightOptions preflight;
    RmCommonOptions common;
    RmSettings settings; /* all of it, as it was given */
    char *checked;       /* --check-config: what is to be shown if rm_send_options_check() agrees; or NULL */
} RmSendOptions;

#define RM_DEFAULT_DOWNTIME_MS 300
#define RM_DEFAULT_STALL_MS 1000
#define RM_DEFAULT_PAUSE_MS 30000
#define RM_PAUSE_MAX_MS (24 * 3600 * 1000)

/* Parses the words from `send` on, NULL-terminated. Reason usage. *ret_help is set instead of an error for
 * --help (caller prints and frees). */
RmSendOptions *rm_send_options_parse(char **argv, char **ret_help, GError **error);
/* Of --check-config: what may still be missing when it is given, but not when a guest is sent. */
gboolean rm_send_options_check(const RmSendOptions *options, GError **error);
void rm_send_options_free(RmSendOptions *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmSendOptions, rm_send_options_free)
