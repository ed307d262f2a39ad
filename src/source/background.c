/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Two processes, for a fork in the midst of things would take neither threads nor registrations along: the
 * caller starts this program anew, before it has done anything, and only waits.
 *
 * The session's process has a pipe each for stdout and stderr. All that ever comes on stdout is the session's
 * id, once pre-copy begins: nothing can refuse it any more. What came on stderr until then the caller passes
 * on. The pipes are between these two: whoever reads the caller's output sees its end when the caller ends,
 * though the session's guardian may still hold a pipe.
 *
 * A caller that is killed before it could say that the session goes on leaves none behind: the id can't be
 * written, and the session is cancelled. Its SIGINT and SIGTERM are the session's, as in the foreground.
 */
#include "source/background.h"

#include "common/autoptr.h"
#include "common/log.h"
#include "common/system-log.h"
#include "handover/scope.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_PIECE 4096

typedef struct {
    GPid pid;
    int out, err, signals;
    GString *id; /* what has come on `out` */
} Child;

static void child_clear(Child *child)
{
    rm_fd_clear(&child->out);
    rm_fd_clear(&child->err);
    rm_fd_clear(&child->signals);
    if (child->id != NULL)
        g_string_free(child->id, TRUE);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Child, child_clear)

static gboolean start(char **argv, Child *child, GError **error)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new();
    g_auto(GStrv) environment = g_environ_setenv(g_get_environ(), RM_LOG_VARIABLE, RM_LOG_SYSTEM, TRUE);
    g_ptr_array_add(words, "/proc/self/exe");
    g_ptr_array_add(words, program_invocation_short_name);
    g_ptr_array_add(words, RM_BACKGROUND_VERB);
    for (; *argv != NULL; argv++)
        g_ptr_array_add(words, *argv);
    g_ptr_array_add(words, NULL);
    return g_spawn_async_with_pipes(NULL, (char **)words->pdata, environment,
                                    G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_FILE_AND_ARGV_ZERO, NULL, NULL,
                                    &child->pid, NULL, &child->out, &child->err, error);
}

/* From here on SIGINT and SIGTERM come by child->signals. */
static void catch_signals(Child *child)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    child->signals = signalfd(-1, &set, SFD_CLOEXEC);
}

/* Returns FALSE at the end. */
static gboolean pass_on(int fd)
{
    char piece[READ_PIECE];
    ssize_t got = read(fd, piece, sizeof piece);
    if (got > 0)
        fwrite(piece, 1, (size_t)got, stderr);
    return got > 0 || (got < 0 && errno == EINTR);
}

/* Returns FALSE at the end: of the id, or of a process that won't say one. */
static gboolean read_id(Child *child)
{
    char piece[READ_PIECE];
    ssize_t got = read(child->out, piece, sizeof piece);
    if (got > 0)
        g_string_append_len(child->id, piece, got);
    return got > 0 ? strchr(child->id->str, '\n') == NULL : got < 0 && errno == EINTR;
}

static void wait_for_word(Child *child)
{
    struct pollfd fds[] = {{.fd = child->out, .events = POLLIN},
                           {.fd = child->err, .events = POLLIN},
                           {.fd = child->signals, .events = POLLIN}};
    gboolean more = TRUE;
    while (more) {
        if (poll(fds, G_N_ELEMENTS(fds), -1) < 0)
            continue; /* EINTR */
        struct signalfd_siginfo info;
        if ((fds[2].revents & POLLIN) && read(child->signals, &info, sizeof info) == sizeof info)
            kill(child->pid, (int)info.ssi_signo); /* not waited for yet: no other process has its id */
        if (fds[1].revents != 0 && !pass_on(child->err))
            fds[1].fd = -1;
        if (fds[0].revents != 0)
            more = read_id(child);
    }
    fcntl(child->err, F_SETFL, O_NONBLOCK); /* what is left there: its guardian may keep it open */
    while (fds[1].fd >= 0 && pass_on(child->err))
        ;
}

static int outcome(Child *child)
{
    int status;
    if (strchr(child->id->str, '\n') != NULL) {
        fputs(child->id->str, stdout);
        return fflush(stdout) == 0 ? 0 : 6;
    }
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        return WEXITSTATUS(status);
    fprintf(stderr, "rdmamig: the session's process ended before it had begun (%s)\n",
            WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "without a word");
    return 1;
}

int rm_background_run(char **argv)
{
    g_auto(Child) child = {.out = -1, .err = -1, .signals = -1, .id = g_string_new(NULL)};
    g_autoptr(GError) error = NULL;
    signal(SIGHUP, SIG_IGN); /* a lost terminal is no wish to cancel; it is inherited */
    if (!start(argv, &child, &error)) {
        fprintf(stderr, "rdmamig: cannot start the session's process: %s\n", error->message);
        return 1;
    }
    catch_signals(&child);
    wait_for_word(&child);
    return outcome(&child);
}

/* ---- the session's half ---- */

void rm_background_begin(void)
{
    setsid();
}

void rm_background_enter_scope(const char *id)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *name = g_strdup_printf("rdmamig-%s.scope", id);
    g_autofree char *description = g_strdup_printf("rdmamig session %s", id);
    if (!rm_scope_enter(name, description, getpid(), &error))
        g_debug("no scope of its own: %s", error->message);
}

gboolean rm_background_detach(const char *id)
{
    g_autofree char *line = g_strdup_printf("%s\n", id);
    ssize_t length = (ssize_t)strlen(line);
    gboolean told = write(STDOUT_FILENO, line, (size_t)length) == length;
    rm_autofd null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    return told;
}
