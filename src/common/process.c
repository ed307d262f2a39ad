/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* This process, by /proc/self and getrusage(2). */
#include "common/process.h"

#include "common/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

static double seconds(const struct timeval *time)
{
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

static uint64_t count_fds(void)
{
    g_autoptr(GDir) dir = g_dir_open("/proc/self/fd", 0, NULL);
    uint64_t n = 0;
    while (dir != NULL && g_dir_read_name(dir) != NULL)
        n++;
    return n > 0 ? n - 1 : 0; /* the folder's own */
}

/* When this host was booted, since 1970. */
static double boot_time(void)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/stat", &text, NULL, NULL))
        return 0;
    const char *line = strstr(text, "\nbtime ");
    return line != NULL ? g_ascii_strtod(line + strlen("\nbtime "), NULL) : 0;
}

void rm_process_usage(RmProcessUsage *ret_usage)
{
    RmProcessUsage usage = {0};
    struct rusage rusage;
    struct rlimit limit;
    g_autofree char *statm = NULL;
    unsigned long long pages, resident;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (getrusage(RUSAGE_SELF, &rusage) == 0)
        usage.cpu_s = seconds(&rusage.ru_utime) + seconds(&rusage.ru_stime);
    usage.start_s = boot_time() + (double)rm_process_start(getpid()) / (double)sysconf(_SC_CLK_TCK);
    if (g_file_get_contents("/proc/self/statm", &statm, NULL, NULL) &&
        sscanf(statm, "%llu %llu", &pages, &resident) == 2) {
        usage.virtual_bytes = pages * page;
        usage.resident_bytes = resident * page;
    }
    usage.open_fds = count_fds();
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        usage.max_fds = limit.rlim_cur;
    *ret_usage = usage;
}
