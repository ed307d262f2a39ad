/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* NUMA bindings and nodes. */
#include "destination/numa.h"

#include "common/reason.h"
#include "common/size.h"

#include <string.h>

/* The policy of the mapping that holds `hva`: lines are "ADDRESS POLICY ...", by address, a mapping each. */
static char *policy_at(const char *text, uint64_t hva)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    const char *found = NULL;
    for (unsigned i = 0; lines[i] != NULL; i++) {
        char *end;
        uint64_t start = g_ascii_strtoull(lines[i], &end, 16);
        if (end == lines[i] || *end != ' ' || start > hva)
            continue;
        found = end + 1;
    }
    return found != NULL ? g_strndup(found, strcspn(found, " ")) : NULL;
}

char *rm_numa_bound_to(const char *text, uint64_t hva)
{
    g_autofree char *policy = policy_at(text, hva);
    /* "bind:0-1", or with mode flags "bind=static:0-1". */
    if (policy == NULL || !g_str_has_prefix(policy, "bind") || strchr(policy, ':') == NULL)
        return NULL;
    return g_strdup(strchr(policy, ':') + 1);
}

static uint64_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at != NULL ? g_ascii_strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

static uint64_t node_free(const char *root, unsigned node, const RmBlock *block)
{
    g_autofree char *path = NULL, *text = NULL;
    if (block->hugetlb)
        path = g_strdup_printf("%s/sys/devices/system/node/node%u/hugepages/hugepages-%" G_GUINT64_FORMAT
                               "kB/free_hugepages",
                               root, node, block->page_size / 1024);
    else
        path = g_strdup_printf("%s/sys/devices/system/node/node%u/meminfo", root, node);
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return UINT64_MAX;
    if (block->hugetlb)
        return g_ascii_strtoull(text, NULL, 10) * block->page_size;
    return number_after(text, "MemFree:") + number_after(text, "Active(file):") +
           number_after(text, "Inactive(file):") + number_after(text, "SReclaimable:");
}

uint64_t rm_numa_free(const char *root, const char *nodes, const RmBlock *block)
{
    g_auto(GStrv) ranges = g_strsplit(nodes, ",", -1);
    uint64_t total = 0;
    for (unsigned i = 0; ranges[i] != NULL; i++) {
        char *end;
        uint64_t first = g_ascii_strtoull(ranges[i], &end, 10), last = first;
        if (*end == '-')
            last = g_ascii_strtoull(end + 1, &end, 10);
        if (end == ranges[i] || *end != '\0' || last < first || last >= RM_NUMA_NODES_MAX)
            return UINT64_MAX;
        for (uint64_t node = first; node <= last; node++) {
            uint64_t bytes = node_free(root, (unsigned)node, block);
            if (bytes == UINT64_MAX)
                return bytes;
            total += bytes;
        }
    }
    return total;
}

static gboolean check_nodes(const char *root, const char *nodes, const RmBlock *block, uint64_t need,
                            GError **error)
{
    uint64_t available = rm_numa_free(root, nodes, block);
    if (need <= available)
        return TRUE;
    g_autofree char *want = rm_format_size(need), *have = rm_format_size(available);
    return rm_fail(error, RM_REASON_MEMORY_SHORT,
                   "RAM block %s is bound to NUMA node %s here, where at least %s more are needed and %s can "
                   "be had; %s, "
                   "or start the waiting VMM with another binding",
                   block->name, nodes, want, have,
                   block->hugetlb ? "reserve more huge pages on that node" : "free memory there");
}

gboolean rm_numa_check(const char *root, int pid, const GPtrArray *blocks, uint64_t need, GError **error)
{
    g_autofree char *path = g_strdup_printf("%s/proc/%d/numa_maps", root, pid), *text = NULL;
    g_autoptr(GPtrArray) bound = g_ptr_array_new_with_free_func(g_free);
    gboolean ok = TRUE;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return TRUE; /* a kernel without NUMA */
    for (guint i = 0; i < blocks->len; i++)
        g_ptr_array_add(bound, rm_numa_bound_to(text, ((const RmBlock *)blocks->pdata[i])->hva));
    for (guint i = 0; i < blocks->len && ok; i++) {
        uint64_t elsewhere = 0;
        for (guint k = 0; k < blocks->len; k++)
            if (g_strcmp0(bound->pdata[i], bound->pdata[k]) != 0)
                elsewhere += ((const RmBlock *)blocks->pdata[k])->size;
        if (bound->pdata[i] != NULL && need > elsewhere)
            ok = check_nodes(root, bound->pdata[i], blocks->pdata[i], need - elsewhere, error);
    }
    return ok;
}
