/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The mappings of another process, as /proc/PID/maps lists them. What they map is told by dev and ino, never
 * by path. */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    uint64_t start, end; /* addresses in that process; end exclusive */
    uint64_t offset;     /* of `start` in the file */
    dev_t dev;
    ino_t ino; /* 0: anonymous */
    gboolean read, write, exec, shared;
    char *path; /* as the kernel prints it, only good for a preference or a message; "" if none */
} RmMapping;

/* Array of RmMapping, by address, never empty; caller unrefs. Reasons guest-gone (no such process, or one
 * that has given its memory back already), privilege, internal. */
GArray *rm_mappings_read(pid_t pid, GError **error);

/* The same of such a file's text, which is taken apart in place: whole lines of the known form, in order of
 * their addresses; others are passed over. May be empty. */
GArray *rm_mappings_parse(char *text);

/* The same of the one mapping that holds `address`, by a descriptor of /proc/PID/maps: far cheaper than
 * reading it. Its access rights and its path are not told. FALSE if there is none, if that process has given
 * its memory back, or if this kernel cannot tell (before Linux 6.11). */
gboolean rm_mappings_ask(int maps_fd, uint64_t address, RmMapping *ret_mapping);

/* The mapping that holds `address`, NULL if none does. */
const RmMapping *rm_mappings_find(const GArray *mappings, uint64_t address);
