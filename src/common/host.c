/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The boot id and processes' start times. */
#include "common/host.h"

#include <string.h>

#define START_FIELD 22 /* proc(5) */

const char *rm_boot_id(void)
{
    static gsize once;
    static char *boot;
    if (g_once_init_enter(&once)) {
        g_autofree char *text = NULL;
        if (g_file_get_contents("/proc/sys/kernel/random/boot_id", &text, NULL, NULL))
            boot = g_strdup(g_strstrip(text));
        else
            boot = g_strdup("?");
        g_once_init_leave(&once, 1);
    }
    return boot;
}

uint64_t rm_process_start(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/stat", (int)pid);
    g_autofree char *text = NULL;
    if (pid <= 0 || !g_file_get_contents(path, &text, NULL, NULL))
        return 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything, this too */
    if (at == NULL || strlen(at) < 3 || strchr("ZX", at[2]) != NULL) /* dead, and only not yet reaped */
        return 0;
    for (int field = 2; at != NULL && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? g_ascii_strtoull(at, NULL, 10) : 0;
}
