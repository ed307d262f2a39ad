/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A peer that lines of text are exchanged with, and that is known to be alive: what the control channel
 * stands on.
 *
 * Keep-alives flow in both directions whatever the two programs do; a peer that is silent, or takes nothing
 * off the line, for timeout_ms is given up. So every call ends within bounds, whatever the peer does.
 */
#pragma once

#include "common/reason.h"
#include "config.h"

#include <gio/gio.h>

typedef struct RmLink RmLink;

typedef struct {
    const char *keepalive; /* a line that the peer's end ignores */
    unsigned keepalive_ms; /* sent when nothing else was for so long */
    unsigned timeout_ms;   /* without a sign of life */
    gsize line_max;        /* bytes that the peer may send in a line, its newline not counted */
    /* The callbacks run without any lock of the link's, which may be called from them. */
    /* One line, not terminated. In the reader thread, which must not be held up: nothing else is read
     * meanwhile. */
    gboolean (*take_line)(void *opaque, const char *line, gsize length,
                          GError **error); /* FALSE breaks the link */
    /* The peer is about to be left for breaking the rules: a line that tells it so, or NULL; caller frees.
     */
    char *(*farewell)(const GError *error);
    /* The link broke or ended, in whatever thread found out; once. */
    void (*over)(void *opaque);
} RmLinkOps;

/* `stream` is a GSocketConnection or a GTlsConnection over one; `first` (may be NULL) was read from it
 * already. Nothing happens before rm_link_start(). */
RmLink *rm_link_new(GIOStream *stream, const char *first, const RmLinkOps *ops, void *opaque);
void rm_link_start(RmLink *link);

/* Shuts our direction, waits a moment for the peer to do so, ends both threads; nothing is called back
 * afterwards. */
void rm_link_close(RmLink *link);
void rm_link_free(RmLink *link); /* after rm_link_close() and after the last call returned */

/* Writes `text` and a newline; from any thread. A failure is the link's end, and the error says of what it
 * ended. */
gboolean rm_link_write(RmLink *link, const char *text, gsize length, GError **error);

#if RM_FAULTS
/* A fault point's: writes `text` (length 0: nothing) without a newline, and breaks the link; FALSE. */
gboolean rm_link_cut(RmLink *link, const char *text, gsize length, GError **error);
#else
#define rm_link_cut(link, text, length, error) FALSE
#endif

/* The first call decides what the link ended of. */
void rm_link_break(RmLink *link, RmReason reason, const char *text);
/* From now on the peer's closing, or its silence, is no failure. */
void rm_link_expect_end(RmLink *link);
gboolean rm_link_expects_end(RmLink *link);

typedef enum {
    RM_LINK_ALIVE,
    RM_LINK_CLOSED, /* by the peer, and all that it sent before was taken in */
    RM_LINK_BROKEN, /* in any other way */
} RmLinkState;
RmLinkState rm_link_state(RmLink *link);

/* FALSE with the reason if the link failed; one that is alive, or ended as expected, is well. */
gboolean rm_link_check(RmLink *link, GError **error);
/* Sets `error` to why nothing goes now that the link is over; returns FALSE. */
gboolean rm_link_fail_over(RmLink *link, GError **error);

void rm_link_set_peer_name(RmLink *link, const char *name);
char *rm_link_dup_peer_name(RmLink *link);
GCancellable *rm_link_lost(RmLink *link); /* cancelled on failure; owned by the link */
