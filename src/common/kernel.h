/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Kernel interfaces that are newer than the headers of the oldest distribution we build on (Debian 12:
 * Linux 6.1), and one probe of what this kernel has. Values from the kernel's UAPI headers.
 */
#pragma once

#include <glib.h>
#include <linux/types.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

/* include/uapi/linux/userfaultfd.h, Linux 6.4 and 6.7 */
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_ASYNC (1 << 15)
#endif

/* include/uapi/linux/fs.h, Linux 6.7 */
#ifndef PAGEMAP_SCAN
#define PAGE_IS_WPALLOWED (1 << 0)
#define PAGE_IS_WRITTEN (1 << 1)
#define PAGE_IS_PRESENT (1 << 3)
#define PM_SCAN_WP_MATCHING (1 << 0)
#define PM_SCAN_CHECK_WPASYNC (1 << 1)

struct page_region {
    __u64 start;
    __u64 end;
    __u64 categories;
};

struct pm_scan_arg {
    __u64 size;
    __u64 flags;
    __u64 start;
    __u64 end;
    __u64 walk_end;
    __u64 vec;
    __u64 vec_len;
    __u64 max_pages;
    __u64 category_inverted;
    __u64 category_mask;
    __u64 category_anyof_mask;
    __u64 return_mask;
};

#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif

/* include/uapi/linux/fs.h, Linux 6.11: of one mapping what /proc/PID/maps says */
#ifndef PROCMAP_QUERY
#define PROCMAP_QUERY_VMA_SHARED 0x08

struct procmap_query {
    __u64 size;
    __u64 query_flags;
    __u64 query_addr;
    __u64 vma_start;
    __u64 vma_end;
    __u64 vma_flags;
    __u64 vma_page_size;
    __u64 vma_offset;
    __u64 inode;
    __u32 dev_major;
    __u32 dev_minor;
    __u32 vma_name_size;
    __u32 build_id_size;
    __u64 vma_name_addr;
    __u64 build_id_addr;
};

#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)
#endif

/* A userfaultfd of this process, not blocking, with the features that the tracker uses; or a negative errno:
 * -ENOSYS, -EINVAL if the kernel has no such thing. */
int rm_kernel_own_uffd(void);

/* What this kernel has; "absent" (FALSE) differs from "could not find out" (an error). */
typedef struct {
    gboolean uffd_wp_async;
    gboolean pagemap_scan;
    gboolean pidfd_getfd;
    char release[65]; /* uname -r */
} RmKernel;

/* Probes by behaviour, on a page of our own. Reason kernel-unsupported only if the probe itself cannot run.
 */
gboolean rm_kernel_probe(RmKernel *ret_kernel, GError **error);

/* Fails with reason kernel-unsupported, naming release, the missing feature and Linux 6.7, if uffd-async
 * cannot run. */
gboolean rm_kernel_require_uffd_async(const RmKernel *kernel, GError **error);
