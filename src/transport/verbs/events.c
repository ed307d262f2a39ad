/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The channel, and its thread. */
#include "transport/verbs/events.h"

#include "common/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

gboolean rm_verbs_events_open(RmVerbsEvents *events, GError **error)
{
    *events = (RmVerbsEvents){.channel = rdma_create_event_channel()};
    if (events->channel == NULL)
        return rm_set_errno(error, RM_REASON_TRANSPORT_UNAVAILABLE, errno, "rdma_cm cannot be used");
    events->quit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int fd = events->channel->fd;
    return (events->quit_fd >= 0 && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0) ||
           rm_set_errno(error, RM_REASON_TRANSPORT_UNAVAILABLE, errno, "rdma_cm cannot be waited for");
}

static void *thread_main(void *data)
{
    RmVerbsEvents *events = data;
    struct rdma_cm_event *event;
    struct pollfd fds[] = {{.fd = events->channel->fd, .events = POLLIN},
                           {.fd = events->quit_fd, .events = POLLIN}};
    while (fds[1].revents == 0) {
        if (poll(fds, G_N_ELEMENTS(fds), -1) < 0)
            fds[0].revents = fds[1].revents = 0; /* EINTR; nothing else can be wrong with these two */
        while (fds[0].revents != 0 && rdma_get_cm_event(events->channel, &event) == 0)
            events->handle(events->data, event);
    }
    return NULL;
}

gboolean rm_verbs_events_start(RmVerbsEvents *events, void (*handle)(void *data, struct rdma_cm_event *event),
                               void *data, GError **error)
{
    events->handle = handle;
    events->data = data;
    events->thread = g_thread_try_new("rm-rdma-cm", thread_main, events, error);
    return events->thread != NULL;
}

void rm_verbs_events_stop(RmVerbsEvents *events)
{
    uint64_t one = 1;
    if (events->thread == NULL)
        return;
    (void)!write(events->quit_fd, &one, sizeof one);
    g_thread_join(g_steal_pointer(&events->thread));
}

void rm_verbs_events_close(RmVerbsEvents *events)
{
    rm_verbs_events_stop(events);
    if (events->channel == NULL)
        return;
    rdma_destroy_event_channel(events->channel);
    if (events->quit_fd >= 0)
        close(events->quit_fd);
    *events = (RmVerbsEvents){0};
}
