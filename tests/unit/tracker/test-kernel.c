/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The kernel probe, and what is said of a kernel that lacks something. */
#include "common/kernel.h"
#include "common/reason.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

static void test_probe(void)
{
    RmKernel kernel, again;
    struct utsname name;
    unsigned major_version = 0, minor_version = 0;
    g_autoptr(GError) error = NULL;
    uname(&name);
    g_assert_true(rm_kernel_probe(&kernel, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(kernel.release, ==, name.release);
    g_assert_true(rm_kernel_probe(&again, &error)); /* leaves nothing behind that would disturb it */
    g_assert_cmpint(again.uffd_wp_async, ==, kernel.uffd_wp_async);
    g_assert_cmpint(again.pagemap_scan, ==, kernel.pagemap_scan);
    g_assert_cmpint(again.pidfd_getfd, ==, kernel.pidfd_getfd);
    sscanf(name.release, "%u.%u", &major_version, &minor_version);
    if (major_version > 6 || (major_version == 6 && minor_version >= 7)) {
        g_assert_true(kernel.uffd_wp_async);
        g_assert_true(kernel.pagemap_scan);
        g_assert_true(kernel.pidfd_getfd);
        g_assert_true(rm_kernel_require_uffd_async(&kernel, &error));
    } else {
        g_test_message("Linux %s: only the probe's consistency was tested", name.release);
    }
}

static void expect_missing(RmKernel kernel, const char *word)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_kernel_require_uffd_async(&kernel, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_KERNEL);
    g_assert_nonnull(strstr(error->message, word));
    g_assert_nonnull(strstr(error->message, "5.10.0-test"));
    g_assert_nonnull(strstr(error->message, "6.7"));
}

static void test_require(void)
{
    expect_missing((RmKernel){.pagemap_scan = TRUE, .pidfd_getfd = TRUE, .release = "5.10.0-test"},
                   "WP_ASYNC");
    expect_missing((RmKernel){.uffd_wp_async = TRUE, .pidfd_getfd = TRUE, .release = "5.10.0-test"},
                   "PAGEMAP_SCAN");
    expect_missing((RmKernel){.uffd_wp_async = TRUE, .pagemap_scan = TRUE, .release = "5.10.0-test"},
                   "pidfd_getfd");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/kernel/probe", test_probe);
    g_test_add_func("/kernel/require", test_require);
    return g_test_run();
}
