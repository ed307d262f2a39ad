/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guardian, both halves: what the daemon calls, and the process's main().
 *
 * The two are joined by a socket pair. The daemon sends single letters, the guardian one: that it is ready.
 * The daemon's death is told by a pidfd, which is readable once no thread of the process is left.
 * posix_spawn() neither copies the daemon's memory nor touches its pages, so it is of no matter what other
 * sessions of the daemon have registered.
 *
 * It inherits three descriptors by fixed numbers, and stderr. All others of the daemon are close-on-exec, and
 * it closes what there may be nevertheless: a control or data connection that it held would keep the peer
 * from noticing the daemon's death. stdout is /dev/null, so that a reader of a pipe sees the daemon's end.
 *
 * What it withstands: signals to the daemon's process group or terminal (a session of its own); SIGTERM,
 * SIGINT and SIGHUP, which are ignored, since whoever means the daemon sends them to everybody, and the
 * guardian ends with the daemon anyway; the OOM killer, where it may say so; and the end of the daemon's
 * cgroup, where systemd gives it a scope. What it doesn't: SIGKILL to both. Then `resolve`, and rdmamigd's
 * look at its journals when it starts, remain.
 */
#include "handover/guardian.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/log-context.h"
#include "common/log-event.h"
#include "common/log.h"
#include "common/reason.h"
#include "common/size.h"
#include "handover/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_WAIT_MS 20000 /* to be started, on a busy host */
#define END_WAIT_MS 5000    /* for its end, when told */
/* A daemon that lives ends a pause that lasts too long by itself; only one that doesn't is killed. */
#define GRACE_MS 1000

enum { QMP_FD = 3, JOURNAL_FD, DAEMON_FD, FIRST_OTHER_FD };
enum { READY = 'y', PAUSED = 'p', NOT_PAUSED = 'n', END = 'e' };

struct RmGuardian {
    pid_t pid;
    int pidfd;
    int socket;
    gboolean ready; /* has said so */
    gboolean lost;  /* has been warned of */
};

/* ---- the daemon's half ---- */

static void destroy_actions(posix_spawn_file_actions_t *actions)
{
    posix_spawn_file_actions_destroy(actions);
}

static void destroy_attributes(posix_spawnattr_t *attributes)
{
    posix_spawnattr_destroy(attributes);
}

/* Returns an errno value. */
static int spawn_with(const int fds[], size_t n, char **argv, pid_t *ret_pid)
{
    __attribute__((cleanup(destroy_actions))) posix_spawn_file_actions_t actions;
    __attribute__((cleanup(destroy_attributes))) posix_spawnattr_t attributes;
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    int failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK) ?:
                 posix_spawnattr_setsigmask(&attributes, &all) ?:
                 posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0) ?:
                 posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    for (size_t i = 0; i < n && failed == 0; i++)
        failed = posix_spawn_file_actions_adddup2(&actions, fds[i], QMP_FD + (int)i);
    return failed ?: posix_spawn(ret_pid, "/proc/self/exe", &actions, &attributes, argv, environ);
}

/* The descriptors go by way of numbers above those they are to have, so that none overwrites another. */
static int spawn(const RmGuardianParams *params, int socket, char **argv, pid_t *ret_pid)
{
    int fds[] = {params->qmp_fd, rm_journal_fd(params->journal), socket};
    int failed = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(fds); i++) {
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FIRST_OTHER_FD);
        failed = failed != 0 || fds[i] >= 0 ? failed : errno;
    }
    if (failed == 0)
        failed = spawn_with(fds, G_N_ELEMENTS(fds), argv, ret_pid);
    for (size_t i = 0; i < G_N_ELEMENTS(fds); i++)
        rm_fd_clear(&fds[i]);
    return failed;
}

static gboolean poll_in(int fd, int timeout_ms)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    gint64 deadline = g_get_monotonic_time() + (gint64)timeout_ms * 1000;
    int n;
    do {
        n = poll(&poller, 1, (int)MAX(0, (deadline - g_get_monotonic_time() + 999) / 1000));
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

static void reap(RmGuardian *guardian)
{
    if (guardian->pid > 0) {
        kill(guardian->pid, SIGKILL); /* ours, and not waited for: no other process has its id */
        while (waitpid(guardian->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    rm_fd_clear(&guardian->pidfd);
    rm_fd_clear(&guardian->socket);
    g_free(guardian);
}

RmGuardian *rm_guardian_start(const RmGuardianParams *params, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(params->journal);
    g_autofree char *parent = g_strdup_printf("%d", (int)getpid());
    g_autofree char *pause = g_strdup_printf("%" G_GUINT64_FORMAT, params->max_pause_ms);
    char *argv[] = {program_invocation_short_name, (char *)params->verb, parent, pause, facts->session, NULL};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make a socket pair");
        return NULL;
    }
    RmGuardian *guardian = g_new0(RmGuardian, 1);
    *guardian = (RmGuardian){.pidfd = -1, .socket = ends[0]};
    int failed = spawn(params, ends[1], argv, &guardian->pid);
    close(ends[1]);
    if (failed != 0) {
        guardian->pid = 0;
        rm_set_errno(error, RM_REASON_INTERNAL, failed, "cannot start the session's guardian");
        reap(guardian);
        return NULL;
    }
    guardian->pidfd = (int)syscall(SYS_pidfd_open, guardian->pid, 0);
    g_debug("guardian is process %d", (int)guardian->pid);
    return guardian;
}

gboolean rm_guardian_ready(RmGuardian *guardian, GError **error)
{
    char letter = 0;
    if (guardian != NULL && !guardian->ready)
        guardian->ready =
            poll_in(guardian->socket, READY_WAIT_MS) && recv(guardian->socket, &letter, 1, 0) == 1;
    return guardian == NULL || guardian->ready ||
           rm_fail(error, RM_REASON_INTERNAL, "the session's guardian did not start; its log says why");
}

/* Never waits: a guardian that is stopped has room for some thousand letters. */
static void tell(RmGuardian *guardian, char letter)
{
    if (send(guardian->socket, &letter, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 || guardian->lost)
        return;
    guardian->lost = TRUE;
    g_warning(
        "the session's guardian (process %d) has ended: nobody looks after the guest if this process is "
        "killed",
        (int)guardian->pid);
}

void rm_guardian_paused(RmGuardian *guardian, gboolean paused)
{
    if (guardian != NULL)
        tell(guardian, paused ? PAUSED : NOT_PAUSED);
}

void rm_guardian_end(RmGuardian *guardian)
{
    if (guardian == NULL)
        return;
    tell(guardian, END);
    /* One that is stopped, for example: what it waits for has been done, so it may go. */
    if (guardian->pidfd < 0 || !poll_in(guardian->pidfd, END_WAIT_MS))
        g_debug("guardian %d does not end", (int)guardian->pid);
    reap(guardian);
}

/* ---- the guardian's half ---- */

typedef struct {
    RmJournal *journal;
    int daemon; /* pidfd, -1: it has ended already */
    uint64_t max_pause_ms;
    gint64 deadline; /* 0: none */
} Watch;

/* Only the process that started us: its number may be another's by now if it has ended, but then it is not
 * our parent any more, which is looked at after the pidfd has been tied to it. FALSE if it lives and can't be
 * watched. */
static gboolean open_daemon(pid_t pid, int *ret_fd)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0), saved = errno;
    if (getppid() != pid)
        rm_fd_clear(&fd);
    else if (fd < 0)
        g_warning("cannot watch the daemon (process %d): %s", (int)pid, g_strerror(saved));
    *ret_fd = fd;
    return fd >= 0 || getppid() != pid;
}

/* Best effort, in a thread of its own, for it may take its time: the daemon may die meanwhile. */
static gpointer enter_scope(gpointer data)
{
    const RmJournalFacts *facts = data;
    const char *side = facts->side == RM_SIDE_SOURCE ? "source" : "destination";
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("rdmamig-guardian-%s-%s.scope", side, facts->session);
    g_autofree char *description = g_strdup_printf("Guardian of migration %s", facts->session);
    if (!rm_scope_enter(name, description, getpid(), &error))
        g_debug("no scope of its own for the guardian: %s", error->message);
    return NULL;
}

static void protect_from_oom(void)
{
    rm_autofd fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "-1000", 5) != 5)
        g_debug("the guardian is no exception to the OOM killer: %s", g_strerror(errno));
}

static void set_up_process(void)
{
    static const int ignored[] = {SIGINT, SIGHUP, SIGTERM, SIGQUIT, SIGPIPE};
    sigset_t none;
    syscall(SYS_close_range, FIRST_OTHER_FD, ~0U, 0);
    for (int fd = QMP_FD; fd < FIRST_OTHER_FD; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (size_t i = 0; i < G_N_ELEMENTS(ignored); i++)
        signal(ignored[i], SIG_IGN);
    sigemptyset(&none); /* all were blocked until here */
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_NAME, "rdmamig-guard");
    protect_from_oom();
}

static void kill_daemon(Watch *watch)
{
    watch->deadline = 0;
    g_warning("session %s: the guest has been paused for more than %" G_GUINT64_FORMAT
              " ms and the daemon does nothing about it: killing it",
              rm_journal_facts(watch->journal)->session, watch->max_pause_ms);
    if (watch->daemon < 0 || syscall(SYS_pidfd_send_signal, watch->daemon, SIGKILL, NULL, 0) < 0)
        g_debug("it has ended already");
}

static void take_letter(Watch *watch, char letter)
{
    if (letter == PAUSED && watch->max_pause_ms != 0)
        watch->deadline = g_get_monotonic_time() + (gint64)(watch->max_pause_ms + GRACE_MS) * 1000;
    else if (letter == NOT_PAUSED)
        watch->deadline = 0;
}

/* Takes in what the daemon has said. FALSE once it has said that all is done. */
static gboolean listen_to(struct pollfd *daemon, Watch *watch)
{
    char letter;
    ssize_t n = recv(DAEMON_FD, &letter, 1, 0);
    if (n == 1 && letter == END)
        return FALSE;
    if (n == 1)
        take_letter(watch, letter);
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        daemon->fd = -1;
    return TRUE;
}

/* Returns TRUE if the daemon has died, FALSE if it lets us end.
 *
 * The end of its process is what counts, and nothing less: a guest is lost if it is let run here while a
 * daemon that lives hands it over. The end of the socket alone would be a fault of the daemon's. What it has
 * said comes first, for it may have ended right after its last word. */
static gboolean watch_daemon(Watch *watch)
{
    struct pollfd fds[2] = {{.fd = DAEMON_FD, .events = POLLIN}, {.fd = watch->daemon, .events = POLLIN}};
    for (;;) {
        gint64 left = watch->deadline - g_get_monotonic_time();
        if (watch->deadline != 0 && left <= 0) {
            kill_daemon(watch);
            continue;
        }
        int timeout = watch->deadline == 0 ? -1 : (int)MIN((left + 999) / 1000, G_MAXINT);
        if (poll(fds, G_N_ELEMENTS(fds), timeout) <= 0)
            continue;
        if (fds[0].fd >= 0 && fds[0].revents != 0) {
            if (!listen_to(&fds[0], watch))
                return FALSE;
        } else if (fds[1].revents != 0) {
            return TRUE;
        }
        if (fds[0].fd < 0 && fds[1].fd < 0) /* it had ended before we could watch it */
            return TRUE;
    }
}

/* By hand, or by a program that is not ours? Then there is nothing to guard. */
static gboolean parse(int argc, char **argv, uint64_t *ret_parent, uint64_t *ret_pause)
{
    struct stat info;
    return argc == 5 && rm_parse_uint(argv[2], 1, G_MAXINT32, ret_parent, NULL) &&
           rm_parse_uint(argv[3], 0, G_MAXINT32, ret_pause, NULL) && fstat(DAEMON_FD, &info) == 0 &&
           S_ISSOCK(info.st_mode);
}

int rm_guardian_main(int argc, char **argv,
                     gboolean (*settle)(RmJournal *journal, int qmp_fd, GError **error))
{
    g_autoptr(GError) error = NULL;
    uint64_t parent, pause;
    const char ready = READY;
    if (!parse(argc, argv, &parent, &pause)) {
        g_warning("this is for rdmamig itself to start");
        return 2;
    }
    set_up_process();
    rm_fault_off();
    g_autoptr(RmJournal) journal = rm_journal_adopt(JOURNAL_FD, &error);
    if (journal == NULL) {
        g_warning("%s", error->message);
        return 1;
    }
    const RmJournalFacts *facts = rm_journal_facts(journal);
    rm_log_context_set_process(facts->session, facts->guest, facts->peer);
    Watch watch = {.journal = journal, .max_pause_ms = pause};
    if (!open_daemon((pid_t)parent, &watch.daemon))
        return 1; /* without a word that we are ready */
    send(DAEMON_FD, &ready, 1, MSG_NOSIGNAL);
    g_thread_unref(g_thread_new("scope", enter_scope, (gpointer)facts));
    if (!watch_daemon(&watch))
        _exit(0); /* the scope's thread may still be busy with our journal's facts */
    g_message("session %s: its daemon has died", facts->session);
    gboolean ok = settle(journal, QMP_FD, &error);
    if (!ok)
        rm_log_event(RM_LOG_STUCK, G_LOG_LEVEL_CRITICAL, rm_error_reason(error), "session %s: %s",
                     facts->session, error->message);
    _exit(ok ? 0 : 1);
}
