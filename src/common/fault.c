/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fault points read from RDMAMIG_FAULT. */
#include "common/fault.h"

#if RM_FAULTS
#define HELD_MOST_MS 60000
#define LOOK_MS 10

static GHashTable *load(void)
{
    static gsize once;
    static GHashTable *points;
    if (g_once_init_enter(&once)) {
        points = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
        g_auto(GStrv) items = g_strsplit(g_getenv("RDMAMIG_FAULT") ?: "", ",", -1);
        for (char **item = items; *item != NULL; item++) {
            char **pair = g_strsplit(*item, "=", 2);
            if (pair[0] != NULL)
                g_hash_table_insert(points, g_strdup(pair[0]), g_strdup(pair[1] ?: ""));
            g_strfreev(pair);
        }
        g_once_init_leave(&once, 1);
    }
    return points;
}

gboolean rm_fault(const char *name)
{
    return g_hash_table_contains(load(), name);
}

const char *rm_fault_value(const char *name)
{
    return g_hash_table_lookup(load(), name);
}

unsigned rm_fault_number(const char *name, unsigned usual)
{
    const char *value = rm_fault_value(name);
    return value != NULL ? (unsigned)g_ascii_strtoull(value, NULL, 10) : usual;
}

void rm_fault_pause(const char *name)
{
    const char *value = rm_fault_value(name);
    if (value != NULL && value[0] != '/')
        g_usleep(g_ascii_strtoull(value, NULL, 10) * 1000);
    else if (value != NULL)
        for (unsigned i = 0; i < HELD_MOST_MS / LOOK_MS && g_file_test(value, G_FILE_TEST_EXISTS); i++)
            g_usleep(LOOK_MS * 1000);
}
#endif
