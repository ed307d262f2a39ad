/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An rdma_cm event channel, read without blocking, and the thread that reads it. */
#pragma once

#include <glib.h>
#include <rdma/rdma_cma.h>

typedef struct {
    struct rdma_event_channel *channel; /* NULL: not open */
    int quit_fd;
    GThread *thread;
    void (*handle)(void *data, struct rdma_cm_event *event);
    void *data;
} RmVerbsEvents;

/* Opens the channel; nobody reads it yet but whoever calls rdma_get_cm_event(). */
gboolean rm_verbs_events_open(RmVerbsEvents *events, GError **error);
/* From here on a thread hands each event to `handle`, which acknowledges it. */
gboolean rm_verbs_events_start(RmVerbsEvents *events, void (*handle)(void *data, struct rdma_cm_event *event),
                               void *data, GError **error);
/* Ends the thread. Idempotent, as is the next; both accept what was never opened (all zero). */
void rm_verbs_events_stop(RmVerbsEvents *events);
/* Stops, and closes the channel: its connections must have been destroyed. */
void rm_verbs_events_close(RmVerbsEvents *events);
