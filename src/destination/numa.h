/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Free memory of the NUMA nodes that the waiting VMM has bound its RAM to.
 *
 * A binding belongs to the RAM file (tmpfs and hugetlbfs keep it), so it holds for the pages that we
 * populate, too. Only `bind` is looked at: with any other policy the kernel takes another node before it
 * fails. What is known of the need is the guest's total, so a set of nodes is said to be too small only if
 * the guest's memory would not fit even with all blocks that are not bound to it full.
 */
#pragma once

#include "memory/block.h"

#define RM_NUMA_NODES_MAX 1024 /* CONFIG_NODES_SHIFT is at most 10 */

/* The node list that VMM memory at `hva` is bound to, as /proc/PID/numa_maps (`text`) has it: "0-1,4"; NULL
 * if it is not bound. Caller frees. */
char *rm_numa_bound_to(const char *text, uint64_t hva);

/* Bytes that can be had on the nodes of a list: free, or page cache that can be given up; for hugetlbfs, free
 * huge pages. UINT64_MAX if it can't be found out. `root` is "" but in tests. */
uint64_t rm_numa_free(const char *root, const char *nodes, const RmBlock *block);

/* FALSE with reason memory-short, naming the nodes, if `need` more bytes for all blocks together don't fit.
 */
gboolean rm_numa_check(const char *root, int pid, const GPtrArray *blocks, uint64_t need, GError **error);
