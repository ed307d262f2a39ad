/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A datagram to /dev/log in the form that syslog(3) sends.
 *
 * Not by syslog(3) itself, nor by GLib's journal writer: both wait for a log daemon that doesn't keep up, and
 * the thread that logs may be the one that holds a stopped guest. A socket for each line, so that a log
 * daemon that was restarted is found again.
 */
#include "common/system-log.h"

#include "common/autoptr.h"
#include "common/printable.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024 /* what every syslog daemon takes in one piece (RFC 3164) */

static int priority(GLogLevelFlags level)
{
    if (level & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL))
        return LOG_ERR;
    if (level & G_LOG_LEVEL_WARNING)
        return LOG_WARNING;
    if (level & G_LOG_LEVEL_MESSAGE)
        return LOG_NOTICE;
    return level & G_LOG_LEVEL_INFO ? LOG_INFO : LOG_DEBUG;
}

gboolean rm_system_log(GLogLevelFlags level, const char *program, const char *text)
{
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"}; /* in any locale */
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    rm_autofd fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    g_autoptr(GDateTime) now = g_date_time_new_now_local();
    if (fd < 0 || now == NULL)
        return FALSE;
    g_autofree char *time = g_date_time_format(now, "%e %H:%M:%S");
    g_autofree char *head =
        g_strdup_printf("<%d>%s %s %s[%d]: ", LOG_DAEMON | priority(level),
                        months[g_date_time_get_month(now) - 1], time, program, (int)getpid());
    g_autofree char *body = rm_printable(text, LINE_MAX_BYTES - MIN(strlen(head), LINE_MAX_BYTES / 2));
    g_autofree char *line = g_strconcat(head, body, NULL);
    return sendto(fd, line, strlen(line), MSG_NOSIGNAL, (struct sockaddr *)&address, sizeof address) >= 0;
}
