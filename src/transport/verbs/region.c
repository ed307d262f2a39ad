/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Registration, and its failures told apart.
 *
 * The kernel answers ENOMEM to three different things: the limit of locked memory, the card's table of
 * regions, and no memory. The first is found out by doing the kernel's sum again: what is pinned already
 * (VmPin), what is asked for, and the limit, which does not bind a process with CAP_IPC_LOCK.
 */
#include "transport/verbs/region.h"

#include "common/reason.h"
#include "common/size.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>

/* The number behind `key` in /proc/self/status, 0 if there is none. */
static uint64_t own_status(const char *key, unsigned base)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/status", &text, NULL, NULL))
        return 0;
    const char *line = strstr(text, key);
    return line != NULL ? g_ascii_strtoull(line + strlen(key), NULL, base) : 0;
}

gboolean rm_verbs_memlock_binds(uint64_t need, uint64_t *ret_pinned, uint64_t *ret_limit)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return FALSE;
    if ((own_status("\nCapEff:\t", 16) >> CAP_IPC_LOCK) & 1)
        return FALSE;
    *ret_pinned = own_status("\nVmPin:\t", 10) * 1024;
    *ret_limit = limit.rlim_cur;
    return *ret_pinned + need > *ret_limit;
}

static void explain(int code, RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                    uint64_t length, GError **error)
{
    const char *device = ibv_get_device_name(pd->context->device);
    unsigned n = g_atomic_int_get(&regions->n);
    uint64_t pinned, limit;
    g_autofree char *need = rm_format_size(length);
    if ((code == ENOMEM || code == EPERM) && rm_verbs_memlock_binds(length, &pinned, &limit)) {
        g_autofree char *have = rm_format_size(pinned), *most = rm_format_size(limit);
        rm_fail(error, RM_REASON_PRIVILEGE,
                "%s: cannot register %s: %s are locked already, and the limit of locked memory "
                "(RLIMIT_MEMLOCK) is %s; it has to "
                "hold the guest's RAM: raise it with `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the "
                "unit of this daemon",
                device, need, have, most);
    } else if (code == ENOMEM && n >= limits->max_mr) {
        rm_fail(error, RM_REASON_TRANSPORT,
                "%s: cannot register %s: %u regions are registered, and the card has %u (max_mr); "
                "--max-pinned makes do with fewer at a time",
                device, need, n, limits->max_mr);
    } else if (code == ENOMEM || code == EFAULT) {
        rm_fail(error, RM_REASON_MEMORY_SHORT,
                "%s: cannot register %s: no memory; free memory or huge pages on this host, raise the tmpfs "
                "size or the cgroup's "
                "limit, or, if the card's table of regions is full (%u are ours, max_mr is %u), use "
                "--max-pinned, which makes do with fewer at a time",
                device, need, n, limits->max_mr);
    } else {
        rm_set_errno(error, RM_REASON_TRANSPORT, code, "%s: cannot register %s", device, need);
    }
}

/* Before the region is made, so that no two threads can exceed the bound together. */
static gboolean reserve(RmVerbsRegions *regions, uint64_t length, GError **error)
{
    uint64_t bytes = __atomic_add_fetch(&regions->bytes, length, __ATOMIC_RELAXED);
    g_atomic_int_inc(&regions->n);
    if (regions->most == 0 || bytes <= regions->most)
        return TRUE;
    g_autofree char *need = rm_format_size(length), *most = rm_format_size(regions->most);
    return rm_fail(
        error, RM_REASON_PRIVILEGE,
        "cannot register %s more: %s are allowed at a time (--max-pinned, or the limit of locked memory)",
        need, most);
}

static void give_back(RmVerbsRegions *regions, uint64_t length)
{
    __atomic_fetch_sub(&regions->bytes, length, __ATOMIC_RELAXED);
    g_atomic_int_add(&regions->n, -1);
}

struct ibv_mr *rm_verbs_region_new(RmVerbsRegions *regions, struct ibv_pd *pd, const RmVerbsLimits *limits,
                                   uint8_t *address, uint64_t length, uint64_t iova, int access,
                                   GError **error)
{
    g_assert(length > 0 && length <= limits->max_mr_size);
    struct ibv_mr *mr = NULL;
    if (reserve(regions, length, error)) {
        int code = ENOMEM;
        if ((unsigned)g_atomic_int_get(&regions->n) <= limits->max_mr) {
            mr = ibv_reg_mr_iova(pd, address, length, iova, access);
            code = errno;
        }
        if (mr != NULL)
            return mr;
        explain(code, regions, pd, limits, length, error);
    }
    give_back(regions, length);
    return NULL;
}

gboolean rm_verbs_region_free(RmVerbsRegions *regions, struct ibv_mr *mr)
{
    uint64_t length = mr->length;
    if (ibv_dereg_mr(mr) != 0)
        return FALSE;
    give_back(regions, length);
    return TRUE;
}
