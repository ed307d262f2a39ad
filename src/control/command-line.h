/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the command lines of `rdmamig send` and of rdmamigd have in common: how they are taken apart, and the
 * options that mean the same at both ends.
 */
#pragma once

#include "control/config-file.h"
#include "transport/transport.h"

/* As given at either end. */
typedef struct {
    char *rdma_device;   /* DEV[:PORT], or NULL */
    int gid_index;       /* or -1 */
    char *tls_creds;     /* absolute; NULL: no TLS */
    gboolean plain_data; /* --plain-data: tcp data channels in clear, if the other end has it, too */
    int verbosity;       /* -1 quiet … 2 debug */
    RmPacketOptions packets;
} RmCommonOptions;

/* One run over a command line. A caller with callbacks of its own embeds it as the first member: it is what
 * they are given. */
typedef struct {
    char *gid_index, *ack_timeout, *tos;
    gboolean plain_data, verbose, debug, quiet, help;
    char *rdma_device, *tls_creds;
    RmSettings settings; /* what holds, of file and command line */
    char *config;
    gboolean no_config, check_config;
    char *checked; /* with --check-config: what holds, as a configuration file */
} RmCommandLine;

/* Takes the words (the program's name first, NULL-terminated) apart by `entries` and the common options,
 * after those of the configuration file at `place` (NULL: the program has none) that they don't replace;
 * texts that entries point to are the caller's. What follows the options is refused. With --help *ret_text is
 * set (caller prints and frees), and nothing else is to be looked at. Reason usage. */
gboolean rm_command_line_parse(RmCommandLine *line, const RmConfigPlace *place, const GOptionEntry *entries,
                               const char *summary, char **words, char **ret_text, GError **error);
/* Checks the common options and hands them over. */
gboolean rm_command_line_common(RmCommandLine *line, RmCommonOptions *ret_options, GError **error);
void rm_command_line_clear(RmCommandLine *line);
void rm_common_options_clear(RmCommonOptions *options);

/* What was found wrong with what the option names, as an error of the option: its name comes first, unless
 * one does already. Reason usage; always returns FALSE. */
gboolean rm_option_blame(const char *option, const GError *problem, GError **error);

/* Parsers of one option's text, which leave *value alone if it is NULL; errors begin with the option's name,
 * and have reason usage. */
gboolean rm_option_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value,
                        GError **error);
gboolean rm_option_choice(const char *option, const char *text, uint8_t min, uint8_t max, RmChoice *choice,
                          GError **error);
/* A power of two from RM_CHUNK_MIN to RM_CHUNK_MAX. */
gboolean rm_option_chunk_size(const char *option, const char *text, uint64_t *value, GError **error);
