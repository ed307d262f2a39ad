/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Probes the kernel by doing, on two pages of our own, what the tracker does to a VMM: protect, write, scan.
 * A version number would not do: distributions backport, and a kernel may be built without userfaultfd.
 */
#include "common/kernel.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#define UFFD_FEATURES                                                                                        \
    (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED |        \
     UFFD_FEATURE_WP_ASYNC)

/* Whether PAGEMAP_SCAN reports exactly the page at `page` as written in the two pages from `map`. */
static int scan_reports(int pagemap, uint8_t *map, size_t page_size, uint8_t *page)
{
    struct page_region region = {0};
    struct pm_scan_arg arg = {
        .size = sizeof arg,
        .flags = PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
        .start = (uintptr_t)map,
        .end = (uintptr_t)map + 2 * page_size,
        .vec = (uintptr_t)&region,
        .vec_len = 1,
        .category_mask = PAGE_IS_WRITTEN,
        .return_mask = PAGE_IS_WRITTEN,
    };
    int n = ioctl(pagemap, PAGEMAP_SCAN, &arg);
    if (n < 0)
        return -errno;
    return n == 1 && region.start == (uintptr_t)page && region.end == (uintptr_t)page + page_size;
}

/* With the pages registered: protect both, write one, scan. */
static gboolean probe_scan(RmKernel *kernel, int uffd, uint8_t *map, size_t page_size, GError **error)
{
    struct uffdio_writeprotect protect = {
        .range = {.start = (uintptr_t)map, .len = 2 * page_size},
        .mode = UFFDIO_WRITEPROTECT_MODE_WP,
    };
    rm_autofd pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return rm_set_errno(error, RM_REASON_KERNEL, errno, "cannot probe the kernel: /proc/self/pagemap");
    if (ioctl(uffd, UFFDIO_WRITEPROTECT, &protect) < 0)
        return TRUE; /* has the feature bit, lacks the behaviour: counts as absent */
    ((volatile uint8_t *)map)[page_size] = 1;
    int reported = scan_reports(pagemap, map, page_size, map + page_size);
    kernel->uffd_wp_async = TRUE; /* the write came back, with nobody there to resolve a fault */
    kernel->pagemap_scan = reported == 1;
    return TRUE;
}

int rm_kernel_own_uffd(void)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURES};
    rm_autofd uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0)
        return -errno;
    return rm_fd_steal(&uffd);
}

static gboolean probe_uffd(RmKernel *kernel, GError **error)
{
    rm_autofd uffd = rm_kernel_own_uffd();
    if (uffd == -ENOSYS || uffd == -EINVAL)
        return TRUE; /* not built in, or older than UFFD_USER_MODE_ONLY or one of the features */
    if (uffd < 0)
        return rm_set_errno(
            error, RM_REASON_KERNEL, -uffd,
            "cannot probe the kernel: userfaultfd is denied to this process (a seccomp filter of the "
            "container or a security module; allow it)");
    size_t page_size = sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, 2 * page_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return rm_set_errno(error, RM_REASON_KERNEL, errno,
                            "cannot probe the kernel: no memory for two pages");
    struct uffdio_register reg = {
        .range = {.start = (uintptr_t)map, .len = 2 * page_size},
        .mode = UFFDIO_REGISTER_MODE_WP,
    };
    gboolean ok = TRUE;
    if (ioctl(uffd, UFFDIO_REGISTER, &reg) == 0)
        ok = probe_scan(kernel, uffd, map, page_size, error);
    munmap(map, 2 * page_size);
    return ok;
}

static gboolean probe_getfd(RmKernel *kernel, GError **error)
{
    rm_autofd pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd < 0)
        return errno == ENOSYS ||
               rm_set_errno(error, RM_REASON_KERNEL, errno, "cannot probe the kernel: pidfd_open");
    rm_autofd copy = (int)syscall(SYS_pidfd_getfd, pidfd, pidfd, 0);
    if (copy < 0 && errno != ENOSYS)
        return rm_set_errno(
            error, RM_REASON_KERNEL, errno,
            "cannot probe the kernel: pidfd_getfd is denied to this process (a seccomp filter of the "
            "container or a security module; allow it)");
    kernel->pidfd_getfd = copy >= 0;
    return TRUE;
}

gboolean rm_kernel_probe(RmKernel *ret_kernel, GError **error)
{
    RmKernel kernel = {0};
    struct utsname name;
    if (uname(&name) < 0)
        return rm_set_errno(error, RM_REASON_KERNEL, errno, "cannot probe the kernel: uname");
    g_strlcpy(kernel.release, name.release, sizeof kernel.release);
    if (!probe_uffd(&kernel, error) || !probe_getfd(&kernel, error))
        return FALSE;
    *ret_kernel = kernel;
    return TRUE;
}

gboolean rm_kernel_require_uffd_async(const RmKernel *kernel, GError **error)
{
    const char *missing = !kernel->uffd_wp_async  ? "userfaultfd asynchronous write-protection (WP_ASYNC)"
                          : !kernel->pagemap_scan ? "the PAGEMAP_SCAN ioctl"
                          : !kernel->pidfd_getfd  ? "pidfd_getfd"
                                                  : NULL;
    if (missing == NULL)
        return TRUE;
    return rm_fail(error, RM_REASON_KERNEL,
                   "Linux %s on this host lacks %s; the uffd-async tracker needs Linux 6.7 or newer",
                   kernel->release, missing);
}
