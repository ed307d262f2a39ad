/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* PAGEMAP_SCAN: which pages of a range were written since they were last protected, or are not mapped. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Takes a run of written pages, addresses [start, end). Returns 0 or a negative errno, which ends the scan.
 */
typedef int (*RmPagemapRun)(uint64_t start, uint64_t end, void *data);

/* Calls `run` for each run of written pages in [start, end) of the process whose /proc/PID/pagemap is `fd`,
 * in order. With `protect` they are protected again in the same step. Returns 0 or a negative errno: -EPERM
 * if some of the range is no longer tracked, -EIO if the kernel makes no progress. A range that is not mapped
 * at all counts as clean: the caller has to know that it is. */
int rm_pagemap_scan(int fd, uint64_t start, uint64_t end, gboolean protect, RmPagemapRun run, void *data);

/* The same of runs of pages that are not mapped in the page tables; in any range. */
int rm_pagemap_absent(int fd, uint64_t start, uint64_t end, RmPagemapRun run, void *data);

/* Finds written pages without protecting first, and then protects only those, run by run: a protecting scan
 * drops the secondary mappings (KVM's) of all it walks over. `run` gets what the protecting scans reported,
 * and nothing else: a page that is written between the two passes, outside of what the first one saw, stays
 * written and is found next time. `page_size` is
 * the mapping's: a huge page is protected as a whole or not at all. */
int rm_pagemap_collect(int fd, uint64_t start, uint64_t end, uint64_t page_size, RmPagemapRun run,
                       void *data);
