/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control channel: newline-delimited JSON objects over one stream, requests with an id and exactly one
 * reply.
 *
 * Either end may make requests (the source makes nearly all of them). A reader thread takes lines off the
 * stream: a reply goes to the request that waits for its id, keep-alives end there, everything else is queued
 * for rm_control_receive(). A second thread sends a keep-alive whenever the line was idle for keepalive_ms; a
 * peer that was silent for timeout_ms is lost. Both threads do nothing else, so a busy data path can't trip
 * them. Once the channel is broken, all calls fail with the first reason, and rm_control_lost() is cancelled;
 * only replies that had come before it are still returned, and, if it was the peer that closed, requests that
 * had.
 *
 * Integers are exact over the whole uint64 range; exponents, fractions and signs where an unsigned is due are
 * refused.
 */
#pragma once

#include <gio/gio.h>
#include <json-c/json.h>

#define RM_MESSAGE_MAX (1u << 20) /* bytes in one line, the newline not counted */
#define RM_MESSAGE_DEPTH 8        /* nesting */
#define RM_REPLY "reply"          /* a reply has {"type": …, "reply": ID} */

typedef struct RmControl RmControl;

typedef struct {
    unsigned keepalive_ms; /* 0: 2000 */
    unsigned timeout_ms;   /* 0: 10000 */
    gboolean stranger;     /* anybody may be the peer: it may say little before rm_control_trust() */
} RmControlParams;

/* Takes a reference on `stream`, a connected GSocketConnection or a GTlsConnection over one, and `first` (may
 * be NULL): bytes already read from it. */
RmControl *rm_control_new(GIOStream *stream, const char *first, const RmControlParams *params);
/* Closes and joins, within about a second: it gives the peer a moment to take in what was said last. Calls in
 * progress fail, and are waited for. */
void rm_control_free(RmControl *control);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmControl, rm_control_free)

/* Sends `message` (ownership taken) with a fresh id and waits for the reply; `timeout_ms` 0 means as long as
 * the peer is alive. A reply of type "error", "refuse" or "failed" becomes `error`: the peer's reason code,
 * and its detail prefixed with "destination: " or "source: " as `rm_control_set_peer_name` set it. */
gboolean rm_control_request(RmControl *control, json_object *message, unsigned timeout_ms,
                            GCancellable *cancellable, json_object **ret_reply, GError **error);

/* The two halves of it, to have many requests in flight: returns the id, 0 on failure. */
uint64_t rm_control_begin(RmControl *control, json_object *message, GError **error);
gboolean rm_control_finish(RmControl *control, uint64_t id, unsigned timeout_ms, GCancellable *cancellable,
                           json_object **ret_reply, GError **error);

/* Waits until finish() with that id would not have to wait: the reply has come, or the channel has broken.
 * FALSE if that was not so within the time; the reply may still come. */
gboolean rm_control_wait(RmControl *control, uint64_t id, unsigned timeout_ms);

/* Sends a message without id (ownership taken): bye, or cancel, whose reason and detail the peer's channel
 * breaks with. */
gboolean rm_control_send(RmControl *control, json_object *message, GError **error);

/* The next request of the peer; waits. timeout_ms 0: as long as the peer is alive. */
gboolean rm_control_receive(RmControl *control, unsigned timeout_ms, GCancellable *cancellable,
                            json_object **ret_message, GError **error);

/* Answers `request` with `reply` (ownership taken), whose reply field is set here. A request without id gets
 * none: TRUE. */
gboolean rm_control_reply(RmControl *control, json_object *request, json_object *reply, GError **error);
/* Answers `request` with type "failed" (or "refuse"), reason and detail from `problem`. */
gboolean rm_control_reply_failure(RmControl *control, json_object *request, const char *type,
                                  const GError *problem, GError **error);

/* The stranger has shown what it is, and may now say as much as any peer. */
void rm_control_trust(RmControl *control);

void rm_control_set_peer_name(RmControl *control, const char *name);

/* Cancelled when the channel breaks or the peer sends `cancel`; owned by the channel. Why:
 * rm_control_error(). */
GCancellable *rm_control_lost(RmControl *control);
/* Sets `error` to why the channel broke (peer-lost, peer-timeout, protocol, what its cancel says) and returns
 * FALSE; TRUE if it is well. */
gboolean rm_control_error(RmControl *control, GError **error);

/* Marks the end as ours: the peer's closing or silence from now on is no failure, and its `cancel` comes too
 * late. */
void rm_control_expect_end(RmControl *control);
