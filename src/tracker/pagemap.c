/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* PAGEMAP_SCAN, in bounded windows. */
#include "tracker/pagemap.h"

#include "common/kernel.h"

#include <errno.h>

#define REGIONS 512 /* per call */
/* Bytes that one protecting scan may cover: it holds the VMM's page table lock. */
#define WINDOW (UINT64_C(8) << 20)
/* Runs closer than that share a window: a call costs more than it re-maps. */
#define GAP (UINT64_C(64) << 10)

/* Pages for which `category` is set, or clear with `inverted` = `category`. */
static int scan(int fd, uint64_t start, uint64_t end, uint64_t flags, uint64_t category, uint64_t inverted,
                RmPagemapRun run, void *data)
{
    while (start < end) {
        struct page_region regions[REGIONS];
        struct pm_scan_arg arg = {
            .size = sizeof arg,
            .flags = flags,
            .start = start,
            .end = end,
            .vec = (uintptr_t)regions,
            .vec_len = REGIONS,
            .category_inverted = inverted,
            .category_mask = category,
            .return_mask = category,
        };
        int n = ioctl(fd, PAGEMAP_SCAN, &arg);
        if (n < 0)
            return -errno;
        for (int i = 0; i < n; i++) {
            int result = run(regions[i].start, regions[i].end, data);
            if (result < 0)
                return result;
        }
        if (arg.walk_end <= start)
            return -EIO;
        start = arg.walk_end;
    }
    return 0;
}

/* Both masks exactly PAGE_IS_WRITTEN: only then does the kernel count a page with no page table entry as
 * written, and does not stop half-way in a huge page. */
int rm_pagemap_scan(int fd, uint64_t start, uint64_t end, gboolean protect, RmPagemapRun run, void *data)
{
    uint64_t flags = PM_SCAN_CHECK_WPASYNC | (protect ? PM_SCAN_WP_MATCHING : 0);
    return scan(fd, start, end, flags, PAGE_IS_WRITTEN, 0, run, data);
}

int rm_pagemap_absent(int fd, uint64_t start, uint64_t end, RmPagemapRun run, void *data)
{
    return scan(fd, start, end, 0, PAGE_IS_PRESENT, PAGE_IS_PRESENT, run, data);
}

struct windows {
    int fd;
    uint64_t start, end; /* of what is pending; empty if equal */
    uint64_t size;       /* of a window: these lie on its multiples, so as not to split huge pages of tmpfs */
    RmPagemapRun run;
    void *data;
};

static int flush(struct windows *windows)
{
    int result = 0;
    for (uint64_t at = windows->start, next; result == 0 && at < windows->end; at = next) {
        next = MIN(at - at % windows->size + windows->size, windows->end);
        result = rm_pagemap_scan(windows->fd, at, next, TRUE, windows->run, windows->data);
    }
    windows->start = windows->end;
    return result;
}

static int add(uint64_t start, uint64_t end, void *data)
{
    struct windows *windows = data;
    int result = 0;
    if (windows->start == windows->end || start - windows->end > GAP) {
        result = flush(windows);
        windows->start = start;
    }
    windows->end = end;
    return result;
}

int rm_pagemap_collect(int fd, uint64_t start, uint64_t end, uint64_t page_size, RmPagemapRun run, void *data)
{
    struct windows windows = {
        .fd = fd,
        .start = start,
        .end = start,
        .size = MAX(WINDOW, page_size),
        .run = run,
        .data = data,
    };
    int result = rm_pagemap_scan(fd, start, end, FALSE, add, &windows);
    return result < 0 ? result : flush(&windows);
}
