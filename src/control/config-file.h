/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The configuration file of a program: a GKeyFile with one group, whose keys are the long options of its
 * command line (rdmamigd.conf(5)). Lists are separated by `;`, switches are true or false.
 */
#pragma once

#include "control/settings.h"

/* The file that a program reads, and what it may not have. */
typedef struct {
    const char *file; /* its name in rm_config_dir() */
    const char *group;
    const char *const *not_keys; /* options that are none of the file's, NULL-terminated; or NULL */
} RmConfigPlace;

/* /etc/rdmamig, or RDMAMIG_CONFIG_DIR. Caller frees. */
char *rm_config_dir(void);

/* Adds what the file at `path` gives to `settings`, and remembers the path there. Refuses what `entries`
 * don't have or `not_keys` has, keys that are given twice, and, for root, a file that others may write.
 * Reason usage; the message begins with file and line. */
gboolean rm_config_read(RmSettings *settings, const char *path, const RmConfigPlace *place,
                        const GOptionEntry *entries, const char *const *not_keys, GError **error);

/* The same of a text that stands in that file. */
gboolean rm_config_parse(RmSettings *settings, const char *path, const char *text, const RmConfigPlace *place,
                         const GOptionEntry *entries, const char *const *not_keys, GError **error);
