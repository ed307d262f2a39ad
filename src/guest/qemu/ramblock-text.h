/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU prints about its RAM for people, read by a program: there is no structured form of it. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* One line of x-query-ramblock. */
typedef struct {
    char *name;    /* "" for a block that QEMU does not migrate */
    uint64_t used; /* bytes */
    uint64_t hva;  /* 0 if this QEMU (before 8.0) does not print it */
} RmRamLine;

/* All lines of `text`; an array of RmRamLine that frees its names. Reason qemu-version if it is not the known
 * table. */
gboolean rm_ram_parse_blocks(const char *text, GArray **ret_lines, GError **error);

/* Searches `text`, the output of `info mtree -f`, for a piece of RAM of the memory region `name` in the
 * system's address space. FALSE if the guest has it mapped nowhere now. */
gboolean rm_ram_find_address(const char *text, const char *name, uint64_t *ret_gpa, uint64_t *ret_offset);

/* The address in `text`, the output of `gpa2hva`, if it is about the region `name`. Reason qemu-version if
 * not. */
gboolean rm_ram_parse_hva(const char *text, const char *name, uint64_t *ret_hva, GError **error);
