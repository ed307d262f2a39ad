/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The state pipe's thread. It owns `data` and `problem` until it has set `done`; everybody else waits for
 * that. It ends when the stream does, or when `stop` is written to, whichever comes first, and closes our end
 * of the pipe then.
 */
#include "guest/qemu/pump.h"

#include "common/autoptr.h"
#include "common/log-context.h"
#include "common/reason.h"
#include "control/message.h" /* RM_STATE_MAX */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PIPE_BYTES (1 << 20) /* what an unprivileged process may ask for; the default also works */
#define STEP_BYTES (256u << 10)

struct RmPump {
    /* immutable once the thread runs */
    gboolean writes;
    const uint8_t *source;
    gsize length;
    int stop; /* eventfd */
    GThread *thread;

    /* the thread's until `done` */
    int fd;
    GByteArray *data;
    gsize sent;
    GError *problem;

    GMutex lock;
    GCond changed;
    gboolean done; /* lock */
};

/* One step of reading. Returns FALSE at the end of the stream, or with `problem` set. */
static gboolean read_step(RmPump *pump)
{
    guint old = pump->data->len;
    if (old >= RM_STATE_MAX)
        return rm_fail(
            &pump->problem, RM_REASON_STATE_SAVE,
            "the device state is larger than 1 GiB: QEMU is sending RAM that it should have left out");
    g_byte_array_set_size(pump->data, old + STEP_BYTES);
    ssize_t n = read(pump->fd, pump->data->data + old, STEP_BYTES);
    int saved = errno;
    g_byte_array_set_size(pump->data, old + (guint)MAX(n, 0));
    if (n > 0 || (n < 0 && (saved == EAGAIN || saved == EINTR)))
        return TRUE;
    return n < 0 ? rm_set_errno(&pump->problem, RM_REASON_STATE_SAVE, saved, "cannot read the device state")
                 : FALSE;
}

/* One step of writing. Returns FALSE when everything is written, or with `problem` set. */
static gboolean write_step(RmPump *pump)
{
    ssize_t n = write(pump->fd, pump->source + pump->sent, MIN(pump->length - pump->sent, STEP_BYTES));
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return rm_set_errno(&pump->problem, RM_REASON_STATE_LOAD, errno,
                            "QEMU stopped taking the device state");
    pump->sent += (gsize)MAX(n, 0);
    return pump->sent < pump->length;
}

static gpointer thread_main(gpointer argument)
{
    RmPump *pump = argument;
    /* A QEMU that ends in the middle is EPIPE, not the end of this process: in this thread the signal stays
     * pending. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    gboolean more = !pump->writes || pump->length > 0;
    while (more) {
        struct pollfd fds[2] = {{.fd = pump->fd, .events = pump->writes ? POLLOUT : POLLIN},
                                {.fd = pump->stop, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents != 0) {
            rm_fail(&pump->problem, RM_REASON_CANCELLED, "given up");
            break;
        }
        if (fds[0].revents != 0)
            more = pump->writes ? write_step(pump) : read_step(pump);
    }
    rm_fd_clear(&pump->fd); /* the end of the stream for QEMU */
    g_mutex_lock(&pump->lock);
    pump->done = TRUE;
    g_cond_broadcast(&pump->changed);
    g_mutex_unlock(&pump->lock);
    return NULL;
}

static gboolean start(RmPump *pump, GError **error)
{
    pump->thread = rm_log_thread_try_new("state", thread_main, pump, error);
    if (pump->thread == NULL)
        g_prefix_error(error, "cannot start the device state's thread: ");
    return pump->thread != NULL;
}

static RmPump *new_pump(gboolean writes, int *ret_fd, GError **error)
{
    g_autoptr(RmPump) pump = g_new0(RmPump, 1);
    pump->writes = writes;
    pump->fd = -1;
    pump->data = g_byte_array_new();
    g_mutex_init(&pump->lock);
    g_cond_init(&pump->changed);
    pump->stop = eventfd(0, EFD_CLOEXEC);
    int ends[2];
    if (pump->stop < 0 || pipe2(ends, O_CLOEXEC) < 0) {
        rm_set_errno(error, RM_REASON_INTERNAL, errno, "cannot make a pipe for the device state");
        return NULL;
    }
    rm_autofd theirs = ends[writes ? 0 : 1];
    pump->fd = ends[writes ? 1 : 0];
    fcntl(pump->fd, F_SETPIPE_SZ, PIPE_BYTES); /* fewer wake-ups; a refusal does no harm */
    fcntl(pump->fd, F_SETFL, O_NONBLOCK);
    if (!writes && !start(pump, error))
        return NULL;
    *ret_fd = rm_fd_steal(&theirs);
    return g_steal_pointer(&pump);
}

RmPump *rm_pump_reader(int *ret_fd, GError **error)
{
    return new_pump(FALSE, ret_fd, error);
}

RmPump *rm_pump_writer(int *ret_fd, GError **error)
{
    return new_pump(TRUE, ret_fd, error);
}

gboolean rm_pump_write(RmPump *pump, const uint8_t *data, gsize length, GError **error)
{
    g_assert(pump->writes && pump->thread == NULL);
    pump->source = data;
    pump->length = length;
    return start(pump, error);
}

gboolean rm_pump_wait(RmPump *pump, unsigned ms)
{
    gint64 deadline = g_get_monotonic_time() + (gint64)ms * 1000;
    g_mutex_lock(&pump->lock);
    while (!pump->done && g_cond_wait_until(&pump->changed, &pump->lock, deadline))
        continue;
    gboolean done = pump->done;
    g_mutex_unlock(&pump->lock);
    return done;
}

gboolean rm_pump_finish(RmPump *pump, unsigned timeout_ms, GError **error)
{
    if (!rm_pump_wait(pump, timeout_ms))
        return rm_fail(error, pump->writes ? RM_REASON_STATE_LOAD : RM_REASON_STATE_SAVE,
                       "the device state's pipe did not end within %u ms", timeout_ms);
    if (pump->problem != NULL) {
        g_propagate_error(error, g_steal_pointer(&pump->problem));
        return FALSE;
    }
    return TRUE;
}

GByteArray *rm_pump_steal(RmPump *pump)
{
    g_assert(pump->done);
    return g_steal_pointer(&pump->data);
}

void rm_pump_free(RmPump *pump)
{
    if (pump == NULL)
        return;
    if (pump->thread != NULL) {
        eventfd_write(pump->stop, 1);
        g_thread_join(pump->thread);
    }
    rm_fd_clear(&pump->fd);
    rm_fd_clear(&pump->stop);
    g_clear_pointer(&pump->data, g_byte_array_unref);
    g_clear_error(&pump->problem);
    g_mutex_clear(&pump->lock);
    g_cond_clear(&pump->changed);
    g_free(pump);
}
