/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Log lines to the journal or to stderr, and to the system's log where the environment asks for it: to the
 * journal if there is one, for the sake of its fields, else to syslog.
 *
 * The thread that logs may be the one that holds a stopped guest, so a line must never wait for its reader:
 * stderr is polled first, and the line is dropped (and counted) if there is no room shortly after. A line is
 * cut to PIPE_BUF, for which poll() promises room in a pipe. SIGPIPE is ignored, for the same reason.
 */
#include "common/log.h"

#include "common/journald.h"
#include "common/printable.h"
#include "common/system-log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROOM_WAIT_MS 20

static GMutex lock; /* one line at a time; guards what follows */
static unsigned dropped;

static const char *program_name = "rdmamig"; /* set before threads are started, as the level is */
static int log_verbosity;
static gboolean to_system;
static const char *line_start = "";

static gboolean wanted(GLogLevelFlags level, const char *domain)
{
    if (level & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL | G_LOG_LEVEL_WARNING))
        return TRUE;
    if (level & G_LOG_LEVEL_MESSAGE)
        return log_verbosity >= 0;
    /* Libraries chat at these levels, too; G_MESSAGES_DEBUG brings them in. */
    int least = level & G_LOG_LEVEL_INFO ? 1 : 2;
    if (log_verbosity >= least && g_strcmp0(domain, G_LOG_DOMAIN) == 0)
        return TRUE;
    return !g_log_writer_default_would_drop(level, domain);
}

static const char *level_prefix(GLogLevelFlags level)
{
    if (level & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL))
        return "error: ";
    if (level & G_LOG_LEVEL_WARNING)
        return "warning: ";
    return level & G_LOG_LEVEL_DEBUG ? "debug: " : "";
}

static const char *field(const GLogField *fields, gsize count, const char *key)
{
    for (gsize i = 0; i < count; i++) {
        if (strcmp(fields[i].key, key) == 0 && fields[i].length < 0)
            return fields[i].value;
    }
    return NULL;
}

static gboolean write_line(const char *line)
{
    struct pollfd poller = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&poller, 1, ROOM_WAIT_MS) != 1 || !(poller.revents & POLLOUT))
        return FALSE;
    gsize length = strlen(line);
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, length);
    } while (written < 0 && errno == EINTR);
    return written == (ssize_t)length;
}

static void log_to_stderr(GLogLevelFlags level, const char *text)
{
    g_autofree char *head = g_strdup_printf("%s%s: %s", line_start, program_name, level_prefix(level));
    g_autofree char *body = rm_printable(text, PIPE_BUF - 1 - MIN(strlen(head), PIPE_BUF / 2));
    g_autofree char *line = g_strdup_printf("%.*s%s\n", PIPE_BUF / 2, head, body);

    g_mutex_lock(&lock);
    if (dropped > 0) {
        g_autofree char *notice =
            g_strdup_printf("%s: warning: %u log lines were lost\n", program_name, dropped);
        if (write_line(notice))
            dropped = 0;
    }
    if (!write_line(line))
        dropped++;
    g_mutex_unlock(&lock);
}

static GLogWriterOutput write_log(GLogLevelFlags level, const GLogField *fields, gsize count, gpointer data)
{
    if (!wanted(level, field(fields, count, "GLIB_DOMAIN")))
        return G_LOG_WRITER_HANDLED;
    gboolean to_journal = to_system || rm_journald_is_stderr();
    gboolean taken = to_journal && rm_journald_send(program_name, fields, count);
    if (taken && !to_system)
        return G_LOG_WRITER_HANDLED;
    if (to_system && !taken)
        rm_system_log(level, program_name, field(fields, count, "MESSAGE") ?: "");
    log_to_stderr(level, field(fields, count, "MESSAGE") ?: "");
    return G_LOG_WRITER_HANDLED;
}

void rm_log_init(const char *program, int verbosity)
{
    program_name = program;
    log_verbosity = verbosity;
    to_system = g_strcmp0(g_getenv(RM_LOG_VARIABLE), RM_LOG_SYSTEM) == 0;
    signal(SIGPIPE, SIG_IGN);
    g_log_set_writer_func(write_log, NULL, NULL);
}

void rm_log_set_line_start(const char *text)
{
    line_start = text;
}
