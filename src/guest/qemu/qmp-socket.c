/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Unix stream sockets by path.
 *
 * sockaddr_un holds 107 bytes of path. libvirt's and test directories are easily longer, so a longer path is
 * reached through an O_PATH descriptor of its directory, as /proc/self/fd/N/NAME; only NAME itself has to
 * fit.
 */
#include "guest/qemu/qmp-socket.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define RETRY_US 20000 /* a listener's backlog has no wake-up for us: look again this often */

/* Fills `address` with `path`, or with a short alias of it; *ret_directory then has to stay open until
 * connect(). */
static gboolean fill_address(const char *path, struct sockaddr_un *address, int *ret_directory,
                             GError **error)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) < sizeof address->sun_path) {
        strcpy(address->sun_path, path);
        return TRUE;
    }
    g_autofree char *directory = g_path_get_dirname(path);
    g_autofree char *name = g_path_get_basename(path);
    rm_autofd fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return rm_set_errno(error, RM_REASON_QMP_UNREACHABLE, errno,
                            "cannot open the directory of QMP socket %s", path);
    g_autofree char *alias = g_strdup_printf("/proc/self/fd/%d/%s", fd, name);
    if (strlen(alias) >= sizeof address->sun_path)
        return rm_fail(
            error, RM_REASON_QMP_UNREACHABLE,
            "the name of QMP socket %s is too long for a unix socket; give the socket a shorter name", path);
    strcpy(address->sun_path, alias);
    *ret_directory = rm_fd_steal(&fd);
    return TRUE;
}

int rm_qmp_socket_connect(const char *path, gint64 deadline_us, GCancellable *cancellable, GError **error)
{
    struct sockaddr_un address;
    rm_autofd directory = -1;
    if (!fill_address(path, &address, &directory, error))
        return -1;
    rm_autofd fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot create a unix socket");
        return -1;
    }
    while (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            rm_set_errno(error, RM_REASON_QMP_UNREACHABLE, errno, "cannot connect to QMP socket %s", path);
            return -1;
        }
        if (g_cancellable_set_error_if_cancelled(cancellable, error))
            return -1;
        if (g_get_monotonic_time() >= deadline_us) {
            rm_fail(error, RM_REASON_QMP_BUSY,
                    "QMP socket %s accepts no connection: other clients are queued there, or QEMU is stopped",
                    path);
            return -1;
        }
        g_usleep(RETRY_US);
    }
    return rm_fd_steal(&fd);
}

pid_t rm_qmp_socket_peer(int fd, GError **error)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno,
                     "cannot read the credentials of the QMP socket's listener");
        return -1;
    }
    return peer.pid;
}
