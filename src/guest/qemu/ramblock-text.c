/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Parsers of three texts, as QEMU 7.2 and 10.0 print them.
 *
 * What does not match exactly is refused rather than guessed at, as is a number of more than 64 bits: a wrong
 * address would be a wrong guest's memory. Callers check what they got against QEMU's mappings.
 */
#include "guest/qemu/ramblock-text.h"

#include "common/reason.h"

#include <string.h>

static void clear_line(gpointer data)
{
    g_clear_pointer(&((RmRamLine *)data)->name, g_free);
}

static uint64_t hex(const GMatchInfo *match, const char *name)
{
    g_autofree char *digits = g_match_info_fetch_named(match, name);
    return digits != NULL ? g_ascii_strtoull(digits, NULL, 16) : 0;
}

gboolean rm_ram_parse_blocks(const char *text, GArray **ret_lines, GError **error)
{
    /* Block Name, PSize, Offset, Used, Total and, from 8.0 on, HVA and RO; read from the right, for names may
     * hold blanks */
    g_autoptr(GRegex) regex =
        g_regex_new("^ *(?<name>.*?) +[0-9.]+ [KMGTP]?i?B +0x[0-9a-f]+ +0x(?<used>[0-9a-f]{1,16})"
                    " +0x[0-9a-f]+(?: +0x(?<hva>[0-9a-f]{1,16}) +r[ow])?$",
                    0, 0, NULL);
    g_autoptr(GArray) lines = g_array_new(FALSE, FALSE, sizeof(RmRamLine));
    g_array_set_clear_func(lines, clear_line);
    g_auto(GStrv) rows = g_strsplit(text, "\n", -1);
    for (char **row = rows; *row != NULL; row++) {
        g_autoptr(GMatchInfo) match = NULL;
        g_strchomp(*row);
        if (**row == '\0' || strstr(*row, "Block Name") != NULL)
            continue;
        if (!g_regex_match(regex, *row, 0, &match))
            return rm_fail(error, RM_REASON_QEMU_VERSION,
                           "this QEMU lists its RAM blocks in an unknown form: \"%s\"", *row);
        RmRamLine line = {.name = g_match_info_fetch_named(match, "name"),
                          .used = hex(match, "used"),
                          .hva = hex(match, "hva")};
        g_array_append_val(lines, line);
    }
    *ret_lines = g_steal_pointer(&lines);
    return TRUE;
}

gboolean rm_ram_find_address(const char *text, const char *name, uint64_t *ret_gpa, uint64_t *ret_offset)
{
    /* With KVM, each range that has a memory slot there ends in " KVM". */
    g_autoptr(GRegex) regex =
        g_regex_new("^ +(?<gpa>[0-9a-f]{16})-[0-9a-f]{16} \\(prio -?[0-9]+, (?:nv-)?ram\\): "
                    "(?<name>.*?)(?: @(?<offset>[0-9a-f]{16}))?(?: KVM)*$",
                    0, 0, NULL);
    gboolean in_system = FALSE;
    g_auto(GStrv) rows = g_strsplit(text, "\n", -1);
    for (char **row = rows; *row != NULL; row++) {
        g_autoptr(GMatchInfo) match = NULL;
        g_strchomp(*row);
        if (g_str_has_prefix(*row, "FlatView"))
            in_system = FALSE;
        else if (g_str_has_prefix(*row, " AS \"memory\","))
            in_system = TRUE;
        if (!in_system || !g_regex_match(regex, *row, 0, &match))
            continue;
        g_autofree char *found = g_match_info_fetch_named(match, "name");
        if (strcmp(found, name) != 0)
            continue;
        *ret_gpa = hex(match, "gpa");
        *ret_offset = hex(match, "offset");
        return TRUE;
    }
    return FALSE;
}

gboolean rm_ram_parse_hva(const char *text, const char *name, uint64_t *ret_hva, GError **error)
{
    g_autoptr(GRegex) regex = g_regex_new(
        "^Host virtual address for 0x[0-9a-f]+ \\((?<name>.*)\\) is 0x(?<hva>[0-9a-f]{1,16})\\s*$", 0, 0,
        NULL);
    g_autoptr(GMatchInfo) match = NULL;
    if (g_regex_match(regex, text, 0, &match)) {
        g_autofree char *found = g_match_info_fetch_named(match, "name");
        if (strcmp(found, name) == 0) {
            *ret_hva = hex(match, "hva");
            return TRUE;
        }
    }
    return rm_fail(error, RM_REASON_QEMU_VERSION, "this QEMU does not tell where RAM block %s is: \"%s\"",
                   name, text);
}
