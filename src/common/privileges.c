/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Dropping privileges, with libcap-ng. */
#include "common/privileges.h"

#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

static mode_t umask_found;

void rm_privileges_begin(void)
{
    umask_found = umask(0077);
}

void rm_privileges_restore_umask(void)
{
    umask(umask_found);
}

#if RM_CAPNG
#include <cap-ng.h>
#include <sys/prctl.h>

#define BIT(program) (1u << RM_PROGRAM_##program)
#define EVERYBODY (BIT(SEND) | BIT(DAEMON) | BIT(GUARDIAN) | BIT(RESOLVE) | BIT(ASK))
#define MIGRATES (BIT(SEND) | BIT(DAEMON))

/* Who needs what, effective; and who only permitted. */
static const struct {
    int capability;
    unsigned effective, permitted;
} needs[] = {
    /* QMP sockets and RAM files of a VMM that runs as another user; /proc/PID/fd */
    {CAP_DAC_OVERRIDE, EVERYBODY, 0},
    /* ptrace, pidfd_getfd and process_vm_readv of such a VMM; its /proc/PID/{maps,map_files,pagemap,exe}, and
     * those of all processes, to see who else has its RAM */
    {CAP_SYS_PTRACE, EVERYBODY & ~BIT(ASK), 0},
    /* to open what is behind /proc/PID/map_files (since Linux 5.9; before that it took CAP_SYS_ADMIN) */
    {CAP_CHECKPOINT_RESTORE, MIGRATES, 0},
    /* RDMA: to register more than RLIMIT_MEMLOCK */
    {CAP_IPC_LOCK, MIGRATES, 0},
    /* --listen on a port below 1024; that of RDMA is opened with the first session */
    {CAP_NET_BIND_SERVICE, BIT(DAEMON), 0},
    /* to read the seccomp filters of a VMM before a system call is made in it: the attaching thread's, for a
     * moment */
    {CAP_SYS_ADMIN, 0, BIT(SEND)},
    /* to be an exception to the OOM killer: a guardian's, when it starts, which must get it from its daemon
     * where no_new_privs is set */
    {CAP_SYS_RESOURCE, BIT(GUARDIAN), MIGRATES},
};

static void keep(RmProgram program, const gboolean had[])
{
    capng_clear(CAPNG_SELECT_ALL);
    for (gsize i = 0; i < G_N_ELEMENTS(needs); i++) {
        unsigned capability = (unsigned)needs[i].capability, bit = 1u << program;
        if (!had[i] || ((needs[i].effective | needs[i].permitted) & bit) == 0)
            continue;
        capng_update(CAPNG_ADD, CAPNG_PERMITTED | CAPNG_BOUNDING_SET, capability);
        if ((needs[i].effective & bit) != 0)
            capng_update(CAPNG_ADD, CAPNG_EFFECTIVE, capability);
    }
}

void rm_privileges_drop(RmProgram program, gboolean runs_commands)
{
    gboolean had[G_N_ELEMENTS(needs)];
    if (geteuid() != 0)
        return;
    if (capng_get_caps_process() < 0) {
        g_warning("privileges are not dropped: the kernel does not tell which there are");
        return;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(needs); i++)
        had[i] = capng_have_capability(CAPNG_PERMITTED, (unsigned)needs[i].capability) != 0;
    /* Without CAP_SETPCAP the bounding set can't be reduced; a service manager has done so already, then. */
    gboolean bounds = !runs_commands && capng_have_capability(CAPNG_EFFECTIVE, CAP_SETPCAP) != 0;
    keep(program, had);
    if (!runs_commands && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        g_warning("cannot set no_new_privs: %m");
    int failed = bounds ? capng_apply(CAPNG_SELECT_BOUNDS) : 0;
    if (failed == 0)
        failed = capng_apply(CAPNG_SELECT_CAPS);
    if (failed != 0)
        g_warning("privileges are not dropped: libcap-ng fails with %d", failed);
}

void rm_privileges_admin(gboolean on)
{
    if (capng_get_caps_process() < 0 || capng_have_capability(CAPNG_PERMITTED, CAP_SYS_ADMIN) == 0)
        return;
    capng_update(on ? CAPNG_ADD : CAPNG_DROP, CAPNG_EFFECTIVE, CAP_SYS_ADMIN);
    if (capng_apply(CAPNG_SELECT_CAPS) != 0)
        g_debug("CAP_SYS_ADMIN stays as it is");
}

#else

void rm_privileges_drop(RmProgram program, G_GNUC_UNUSED gboolean runs_commands)
{
    if (geteuid() == 0)
        g_log(G_LOG_DOMAIN, program == RM_PROGRAM_DAEMON ? G_LOG_LEVEL_MESSAGE : G_LOG_LEVEL_INFO,
              "built without libcap-ng: all of root's capabilities are kept");
}

void rm_privileges_admin(G_GNUC_UNUSED gboolean on)
{
}

#endif
