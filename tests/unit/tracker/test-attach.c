/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Attaching to tests/tools/attach-victim, which knows by itself whether anything about it has changed.
 *
 * The attaching process is killed before and after each of its requests, on each of the victim's threads. By
 * default each thread gets every fourth of these points, another fourth each; with RDMAMIG_TEST_FULL=1 each
 * gets all of them.
 */
#include "attach-util.h"
#include "common/fault.h"
#include "common/reason.h"
#include "tracker/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FLAGS (O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)
#define ANSWER_MS 10000
#define POINTS_MAX 200

typedef struct {
    pid_t pid;
    int in, out;
    GPtrArray *names;
    GArray *tids;   /* of pid_t */
    GArray *rounds; /* of guint64 */
    guint bad, interrupted;
    char *first_bad;
} Victim;

/* ---- the victim ---- */

static char *read_line(int fd)
{
    g_autoptr(GString) line = g_string_new(NULL);
    for (;;) {
        struct pollfd poll_fd = {fd, POLLIN, 0};
        char byte;
        g_assert_cmpint(poll(&poll_fd, 1, ANSWER_MS), ==, 1); /* else the victim hangs */
        g_assert_cmpint(read(fd, &byte, 1), ==, 1);           /* else it died */
        if (byte == '\n')
            return g_strdup(line->str);
        g_string_append_c(line, byte);
    }
}

static void take_report(Victim *victim)
{
    g_autofree char *line = read_line(victim->out);
    char *bar = strchr(line, '|');
    g_assert_nonnull(bar);
    *bar = '\0';
    g_assert_cmpint(sscanf(line, "bad=%u eintr=%u", &victim->bad, &victim->interrupted), ==, 2);
    g_free(victim->first_bad);
    victim->first_bad = g_strdup(strchr(strchr(line, ' ') + 1, ' ') + 1);
    g_auto(GStrv) items = g_strsplit(bar + 1, " ", -1);
    g_ptr_array_set_size(victim->names, 0);
    g_array_set_size(victim->tids, 0);
    g_array_set_size(victim->rounds, 0);
    for (char **item = items; *item != NULL; item++) {
        g_auto(GStrv) parts = g_strsplit(*item, ":", -1);
        pid_t tid = atoi(parts[1]);
        guint64 rounds = g_ascii_strtoull(parts[2], NULL, 10);
        g_ptr_array_add(victim->names, g_strdup(parts[0]));
        g_array_append_val(victim->tids, tid);
        g_array_append_val(victim->rounds, rounds);
    }
}

static void ask(Victim *victim, const char *command)
{
    g_assert_cmpint(write(victim->in, command, strlen(command)), ==, (ssize_t)strlen(command));
    take_report(victim);
}

static void victim_start(Victim *victim, const char *mode)
{
    int in[2], out[2];
    g_autofree char *path = tool_path("attach-victim");
    g_assert_cmpint(pipe2(in, O_CLOEXEC), ==, 0);
    g_assert_cmpint(pipe2(out, O_CLOEXEC), ==, 0);
    victim->pid = fork();
    if (victim->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl(path, "attach-victim", mode, NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    victim->in = in[1];
    victim->out = out[0];
    victim->names = g_ptr_array_new_with_free_func(g_free);
    victim->tids = g_array_new(FALSE, FALSE, sizeof(pid_t));
    victim->rounds = g_array_new(FALSE, FALSE, sizeof(guint64));
    take_report(victim);
}

static void victim_stop(Victim *victim)
{
    int status;
    close(victim->in); /* ends its main loop */
    g_assert_cmpint(waitpid(victim->pid, &status, 0), ==, victim->pid);
    g_assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(victim->out);
    g_ptr_array_unref(victim->names);
    g_array_unref(victim->tids);
    g_array_unref(victim->rounds);
    g_free(victim->first_bad);
}

/* `allowed`: how many system calls, of those that the kernel never restarts, may have failed with EINTR
 * without a signal. */
static void assert_well(Victim *victim, guint allowed)
{
    if (victim->interrupted > allowed)
        g_error("%u calls were interrupted, not %u", victim->interrupted, allowed);
    if (victim->bad != 0)
        g_error("the victim noticed %u times, first: %s", victim->bad, victim->first_bad);
}

static guint64 rounds_of(const Victim *victim, guint i)
{
    return g_array_index(victim->rounds, guint64, i);
}

/* Thread `i` goes on: two more rounds. The main thread does so by answering. */
static void assert_goes_on(Victim *victim, guint i)
{
    guint64 before = rounds_of(victim, i);
    int64_t limit = g_get_monotonic_time() + ANSWER_MS * 1000;
    while (i > 0) {
        ask(victim, "report\n");
        if (rounds_of(victim, i) >= before + 2)
            return;
        if (g_get_monotonic_time() > limit)
            g_error("thread %s hangs", (char *)g_ptr_array_index(victim->names, i));
        g_usleep(2000);
    }
}

static void assert_released(Victim *victim)
{
    for (guint i = 0; i < victim->tids->len; i++)
        assert_task_released(victim->pid, g_array_index(victim->tids, pid_t, i));
}

/* ---- attaching ---- */

static int attach(pid_t pid, pid_t tid, RmAttachStats *ret_stats)
{
    g_autoptr(GError) error = NULL;
    int fd = rm_attach_userfaultfd(pid, tid, FLAGS, ret_stats, &error);
    g_assert_no_error(error);
    g_assert_cmpint(fd, >=, 0);
    return fd;
}

/* How many fault points an attach to this thread passes. */
static guint count_points(pid_t pid, pid_t tid)
{
    RmAttachStats stats = {0};
    rm_autofd fd = attach(pid, tid, &stats);
    g_assert_cmpuint(stats.steps, <, POINTS_MAX);
    return stats.steps;
}

static void kill_on_thread(Victim *victim, guint i, guint stride, gboolean signals, guint *allowed)
{
    pid_t tid = g_array_index(victim->tids, pid_t, i);
    guint points = count_points(victim->pid, tid), died = 0, uffds, uffds_before;
    guint fds_before = count_fds(victim->pid, &uffds_before);
    for (guint n = 1 + i % stride; n <= points; n += stride) {
        g_autofree char *fault = g_strdup_printf("attach-die=%u", n);
        /* Twice in a row: a sleep that the first attach has interrupted is then in restart_syscall. */
        close(attach(victim->pid, tid, NULL));
        int status = attach_once(victim->pid, tid, fault, 0);
        g_assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                      (WIFEXITED(status) && WEXITSTATUS(status) == 0)); /* met fewer points this time */
        died += WIFSIGNALED(status);
        assert_released(victim);
        assert_goes_on(victim, i);
        *allowed += n <= ATTACH_POINTS_BEFORE_FRAME || signals;
        assert_well(victim, *allowed);
    }
    /* Nothing but a userfaultfd in the VMM may outlive us, and only if we died between its making and its
     * closing. */
    guint fds = count_fds(victim->pid, &uffds);
    g_assert_cmpuint(fds - fds_before, ==, uffds - uffds_before);
    g_assert_cmpuint(uffds - uffds_before, <, died);
    g_assert_cmpuint(died, >=, points / stride / 2);
    g_test_message("%s: %u points, killed at %u, %u descriptors left",
                   (char *)g_ptr_array_index(victim->names, i), points, died, uffds - uffds_before);
    count_points(victim->pid, tid); /* and again without a fault */
    assert_released(victim);
    ask(victim, "report\n");
    assert_well(victim, *allowed);
}

static void test_killed(gconstpointer mode)
{
#if !RM_FAULTS
    g_test_skip("needs a build with fault points (meson setup -Dfault_points=true)");
    return;
#endif
    Victim victim = {0};
    gboolean full = g_getenv("RDMAMIG_TEST_FULL") != NULL, signals = g_str_equal(mode, "signals");
    guint allowed = 0;
    victim_start(&victim, mode);
    for (guint i = 0; i < victim.tids->len; i++)
        kill_on_thread(&victim, i, full ? 1 : signals ? 4 * ATTACH_SAMPLE : ATTACH_SAMPLE, signals, &allowed);
    ask(&victim, "quiet\n");
    assert_well(&victim, allowed);
    victim_stop(&victim);
}

static void test_thousand(gconstpointer mode)
{
    Victim victim = {0};
    guint uffds, fds;
    int64_t stopped_max = 0, stopped = 0;
    victim_start(&victim, mode);
    fds = count_fds(victim.pid, &uffds);
    for (guint i = 0; i < 1000; i++) {
        RmAttachStats stats = {0};
        pid_t tid = g_array_index(victim.tids, pid_t, i % victim.tids->len);
        rm_autofd fd = attach(victim.pid, tid, &stats);
        stopped += stats.stopped_us;
        stopped_max = MAX(stopped_max, stats.stopped_us);
    }
    g_test_message("stood still for %" G_GINT64_FORMAT " us on average, %" G_GINT64_FORMAT " us at most",
                   stopped / 1000, stopped_max);
    g_assert_cmpuint(count_fds(victim.pid, &uffds), ==, fds);
    g_assert_cmpuint(uffds, ==, 0);
    ask(&victim, "quiet\n");
    assert_well(&victim, 0);
    for (guint i = 0; i < victim.tids->len; i++)
        assert_goes_on(&victim, i);
    assert_well(&victim, 0);
    victim_stop(&victim);
}

/* Signals that come while the thread is held come afterwards, all of them. */
static void test_held(void)
{
#if !RM_FAULTS
    g_test_skip("needs a build with fault points (meson setup -Dfault_points=true)");
    return;
#endif
    Victim victim = {0};
    victim_start(&victim, "signals");
    for (guint i = 0; i < victim.tids->len; i++) {
        pid_t tid = g_array_index(victim.tids, pid_t, i);
        g_assert_cmpint(attach_once(victim.pid, tid, "attach-hold=150", 0), ==, 0);
    }
    ask(&victim, "quiet\n");
    assert_well(&victim, 0);
    victim_stop(&victim);
}

/* We die when the thread has its new registers but not yet its signals blocked, and a signal has come that
 * only the mask of its sigsuspend() admits. Were it handled before that call is made again, the call would
 * wait for ever. */
static void test_killed_in_sigsuspend(void)
{
#if !RM_FAULTS
    g_test_skip("needs a build with fault points (meson setup -Dfault_points=true)");
    return;
#endif
    Victim victim = {0};
    guint i = 0;
    g_autofree char *fault =
        g_strdup_printf("attach-hold-aimed=60,attach-die=%d", ATTACH_POINTS_BEFORE_FRAME + 2);
    victim_start(&victim, "");
    while (!g_str_equal(g_ptr_array_index(victim.names, i), "sigsuspend"))
        i++;
    for (guint n = 0; n < 10; n++) {
        int status = attach_once(victim.pid, g_array_index(victim.tids, pid_t, i), fault, 0);
        g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_released(&victim);
        assert_goes_on(&victim, i);
    }
    assert_well(&victim, 0);
    victim_stop(&victim);
}

/* A stopped process stays stopped, and goes on when told to. */
static void test_job_control(void)
{
    Victim victim = {0};
    victim_start(&victim, "");
    kill(victim.pid, SIGSTOP);
    g_assert_cmpint(waitpid(victim.pid, NULL, WUNTRACED), ==, victim.pid);
    for (guint i = 0; i < victim.tids->len; i++) {
        count_points(victim.pid, g_array_index(victim.tids, pid_t, i));
        g_usleep(5000);
        g_assert_cmpint(task_state(victim.pid, g_array_index(victim.tids, pid_t, i)), ==, 'T');
    }
    kill(victim.pid, SIGCONT);
    ask(&victim, "report\n");
    for (guint i = 0; i < victim.tids->len; i++)
        assert_goes_on(&victim, i);
    assert_well(&victim, 0);
    victim_stop(&victim);
}

/* ---- refusals: simple children that sleep ---- */

static void expect_refusal(pid_t pid, int reason, const char *word)
{
    g_autoptr(GError) error = NULL;
    int fd = rm_attach_userfaultfd(pid, pid, FLAGS, NULL, &error);
    g_assert_cmpint(fd, <, 0);
    g_test_message("%s", error->message);
    g_assert_error(error, RM_ERROR, reason);
    g_assert_nonnull(strstr(error->message, word));
}

static void sleep_for_ever(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        pause();
}

static void end_child(pid_t pid)
{
    g_assert_cmpint(waitpid(pid, NULL, WNOHANG), ==, 0); /* it has survived */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* A child that has got as far as pause(). */
static void await_sleep(pid_t pid)
{
    for (int i = 0; i < 2000 && task_state(pid, pid) != 'S'; i++)
        g_usleep(1000);
}

static void test_no_descriptors(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {3, 3};
        syscall(SYS_close_range, 3, ~0u, 0);
        setrlimit(RLIMIT_NOFILE, &limit);
        sleep_for_ever();
    }
    await_sleep(pid);
    expect_refusal(pid, RM_REASON_ATTACH, "RLIMIT_NOFILE");
    expect_refusal(pid, RM_REASON_ATTACH, "RLIMIT_NOFILE");
    end_child(pid);
}

static void test_seccomp(gconstpointer data)
{
    uint32_t action = GPOINTER_TO_UINT(data);
    pid_t pid = fork();
    if (pid == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, action),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {G_N_ELEMENTS(filter), filter};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
        sleep_for_ever();
    }
    await_sleep(pid);
    if (action == SECCOMP_RET_ALLOW)
        count_points(pid, pid);
    else
        expect_refusal(pid, RM_REASON_ATTACH, "seccomp");
    end_child(pid);
}

static void test_traced_already(void)
{
    int ready[2];
    g_assert_cmpint(pipe(ready), ==, 0);
    pid_t pid = fork();
    if (pid == 0)
        sleep_for_ever();
    await_sleep(pid);
    pid_t debugger = fork();
    if (debugger == 0) {
        long result = ptrace(PTRACE_SEIZE, pid, 0, 0);
        if (write(ready[1], &result, sizeof result) > 0)
            sleep_for_ever();
        _exit(1);
    }
    long result = -1;
    g_assert_cmpint(read(ready[0], &result, sizeof result), ==, sizeof result);
    g_assert_cmpint(result, ==, 0);
    g_autofree char *word = g_strdup_printf("process %d traces", (int)debugger);
    expect_refusal(pid, RM_REASON_ATTACH, word);
    end_child(debugger);
    end_child(pid);
    close(ready[0]);
    close(ready[1]);
}

/* vfork()'s parent cannot be stopped until its child has gone on. */
static void test_unstoppable(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (vfork() == 0) {
            struct timespec t = {4, 0};
            syscall(SYS_nanosleep, &t, NULL);
            _exit(0);
        }
        sleep_for_ever();
    }
    for (int i = 0; i < 2000 && task_state(pid, pid) != 'D'; i++)
        g_usleep(1000);
    expect_refusal(pid, RM_REASON_ATTACH, "did not stop");
    for (int i = 0; i < 10000 && task_state(pid, pid) != 'S'; i++)
        g_usleep(1000);
    g_assert_cmpint(task_state(pid, pid), ==, 'S');
    count_points(pid, pid); /* as soon as it can be stopped again */
    end_child(pid);
}

static void test_unprivileged(void)
{
    if (getuid() != 0) {
        g_test_skip("needs root, to be somebody else");
        return;
    }
    pid_t mine = fork();
    if (mine == 0)
        sleep_for_ever();
    pid_t theirs = fork();
    if (theirs == 0) {
        g_assert_cmpint(setuid(65534), ==, 0);
        prctl(PR_SET_DUMPABLE, 1);
        sleep_for_ever();
    }
    await_sleep(mine);
    await_sleep(theirs);
    int refused = attach_once(mine, mine, NULL, 65534);
    int allowed = attach_once(theirs, theirs, NULL, 65534);
    g_assert_true(WIFEXITED(refused) && WIFEXITED(allowed));
    if (WEXITSTATUS(refused) == 127) {
        g_test_skip("the build tree is not accessible to user 65534");
    } else {
        g_assert_cmpint(WEXITSTATUS(refused), ==, 1);
        g_assert_cmpint(WEXITSTATUS(allowed), ==, 0);
    }
    end_child(mine);
    end_child(theirs);
}

static void test_gone(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
    expect_refusal(pid, RM_REASON_GUEST_GONE, "process");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_data_func("/attach/thousand", "", test_thousand);
    g_test_add_data_func("/attach/thousand-signals", "signals", test_thousand);
    g_test_add_func("/attach/held", test_held);
    g_test_add_func("/attach/killed-in-sigsuspend", test_killed_in_sigsuspend);
    g_test_add_func("/attach/job-control", test_job_control);
    g_test_add_func("/attach/no-descriptors", test_no_descriptors);
    g_test_add_data_func("/attach/seccomp-kill", GUINT_TO_POINTER(SECCOMP_RET_KILL_PROCESS), test_seccomp);
    g_test_add_data_func("/attach/seccomp-trap", GUINT_TO_POINTER(SECCOMP_RET_TRAP), test_seccomp);
    g_test_add_data_func("/attach/seccomp-errno", GUINT_TO_POINTER(SECCOMP_RET_ERRNO | EPERM), test_seccomp);
    g_test_add_data_func("/attach/seccomp-allow", GUINT_TO_POINTER(SECCOMP_RET_ALLOW), test_seccomp);
    g_test_add_func("/attach/traced-already", test_traced_already);
    g_test_add_func("/attach/unstoppable", test_unstoppable);
    g_test_add_func("/attach/unprivileged", test_unprivileged);
    g_test_add_func("/attach/gone", test_gone);
    g_test_add_data_func("/attach/killed", "", test_killed);
    g_test_add_data_func("/attach/killed-signals", "signals", test_killed);
    return g_test_run();
}
