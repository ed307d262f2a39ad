/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is left after privileges were dropped; in a child each, since there is no way back. */
#include "common/privileges.h"

#include "config.h"

#include <linux/capability.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIT(capability) (G_GUINT64_CONSTANT(1) << (capability))

typedef struct {
    uint64_t effective, permitted, bounding;
    gboolean no_new;
} Rights;

static uint64_t number(const char *text, const char *key)
{
    const char *line = strstr(text, key);
    g_assert_nonnull(line);
    return g_ascii_strtoull(line + strlen(key), NULL, 16);
}

/* This thread's. */
static Rights look(void)
{
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents("/proc/thread-self/status", &text, NULL, NULL));
    return (Rights){number(text, "\nCapEff:\t"), number(text, "\nCapPrm:\t"), number(text, "\nCapBnd:\t"),
                    prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1};
}

static void run_in_child(void (*body)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_cmpint(status, ==, 0);
}

static gboolean skip(void)
{
    if (!RM_CAPNG)
        g_test_skip("built without libcap-ng");
    else if (geteuid() != 0)
        g_test_skip("needs root, whose rights are dropped");
    return !RM_CAPNG || geteuid() != 0;
}

static void as_send(void)
{
    Rights before = look();
    rm_privileges_drop(RM_PROGRAM_SEND, FALSE);
    Rights now = look();
    uint64_t used =
        BIT(CAP_DAC_OVERRIDE) | BIT(CAP_SYS_PTRACE) | BIT(CAP_CHECKPOINT_RESTORE) | BIT(CAP_IPC_LOCK);
    uint64_t kept = used | BIT(CAP_SYS_ADMIN) | BIT(CAP_SYS_RESOURCE);
    g_assert_cmphex(now.effective, ==, used & before.permitted);
    g_assert_cmphex(now.permitted, ==, kept & before.permitted);
    g_assert_cmphex(now.bounding, ==, kept & before.permitted);
    g_assert_true(now.no_new);
}

static void test_send(void)
{
    if (!skip())
        run_in_child(as_send);
}

static gpointer raise_and_lower(gpointer data)
{
    gboolean had = (look().permitted & BIT(CAP_SYS_ADMIN)) != 0;
    rm_privileges_admin(TRUE);
    g_assert_cmpint((look().effective & BIT(CAP_SYS_ADMIN)) != 0, ==, had);
    g_assert_cmphex(*(uint64_t *)data & ~look().effective, ==, 0);
    rm_privileges_admin(FALSE);
    g_assert_cmphex(look().effective, ==, *(uint64_t *)data);
    return NULL;
}

/* In a thread that is not the first one, and of no other. */
static void admin_for_a_moment(void)
{
    rm_privileges_drop(RM_PROGRAM_SEND, FALSE);
    uint64_t effective = look().effective;
    g_thread_join(g_thread_new("tracer", raise_and_lower, &effective));
    g_assert_cmphex(look().effective, ==, effective);
}

static void test_admin(void)
{
    if (!skip())
        run_in_child(admin_for_a_moment);
}

static void as_daemon_with_commands(void)
{
    Rights before = look();
    rm_privileges_drop(RM_PROGRAM_DAEMON, TRUE);
    Rights now = look();
    g_assert_cmphex(now.permitted & BIT(CAP_SYS_ADMIN), ==, 0);
    g_assert_cmphex(now.bounding, ==, before.bounding);
    g_assert_cmpint(now.no_new, ==, before.no_new);
}

static void test_commands(void)
{
    if (!skip())
        run_in_child(as_daemon_with_commands);
}

static void as_other_user(void)
{
    g_assert_cmpint(setresuid(65534, 65534, 65534), ==, 0);
    Rights before = look();
    rm_privileges_drop(RM_PROGRAM_SEND, FALSE);
    Rights now = look();
    g_assert_cmphex(now.permitted, ==, before.permitted);
    g_assert_cmphex(now.bounding, ==, before.bounding);
    g_assert_cmpint(now.no_new, ==, before.no_new);
}

static void test_other_user(void)
{
    if (!skip())
        run_in_child(as_other_user);
}

static void test_umask(void)
{
    mode_t before = umask(0027);
    rm_privileges_begin();
    g_assert_cmpint(umask(0077), ==, 0077);
    rm_privileges_restore_umask();
    g_assert_cmpint(umask(before), ==, 0027);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/privileges/send", test_send);
    g_test_add_func("/privileges/admin-for-a-moment", test_admin);
    g_test_add_func("/privileges/daemon-with-commands", test_commands);
    g_test_add_func("/privileges/other-user", test_other_user);
    g_test_add_func("/privileges/umask", test_umask);
    return g_test_run();
}
