/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A datagram to journald in its native protocol: a line KEY=value for each field.
 *
 * Not by GLib's g_log_writer_journald(): its socket blocks, and so would the thread that holds a stopped
 * guest, for as long as journald does not keep up. A socket for each line, as in common/system-log.c. Values
 * are cut so that a datagram always takes them, and escaped as on stderr: hence none has a line feed, which
 * the protocol would have in another form.
 */
#include "common/journald.h"

#include "common/autoptr.h"
#include "common/log-context.h"
#include "common/log-event.h"
#include "common/printable.h"

#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SOCKET_PATH "/run/systemd/journal/socket"
#define VALUE_MAX PIPE_BUF /* bytes, as a line on stderr */

gboolean rm_journald_is_stderr(void)
{
    return g_log_writer_is_journald(STDERR_FILENO);
}

static void add(GString *entry, const char *key, const char *value)
{
    if (value == NULL)
        return;
    g_autofree char *printable = rm_printable(value, VALUE_MAX);
    g_string_append_printf(entry, "%s=%s\n", key, printable);
}

static void add_context(GString *entry)
{
    g_autofree char *session = NULL, *guest = NULL, *peer = NULL;
    const char *id, *reason;
    rm_log_context_get(&session, &guest, &peer);
    add(entry, "SESSION", session);
    add(entry, "GUEST", guest);
    add(entry, "PEER", peer);
    rm_log_event_get(&id, &reason);
    add(entry, "MESSAGE_ID", id);
    add(entry, "REASON", reason);
}

gboolean rm_journald_send(const char *program, const GLogField *fields, gsize count)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
    rm_autofd fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return FALSE;
    g_autoptr(GString) entry = g_string_new(NULL);
    for (gsize i = 0; i < count; i++) {
        if (fields[i].length < 0)
            add(entry, fields[i].key, fields[i].value);
    }
    add(entry, "SYSLOG_IDENTIFIER", program);
    add(entry, "SYSLOG_FACILITY", "3"); /* LOG_DAEMON, as in common/system-log.c */
    add_context(entry);
    return sendto(fd, entry->str, entry->len, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&address,
                  sizeof address) >= 0;
}
