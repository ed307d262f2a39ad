/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Lines to and from a peer that must show signs of life.
 *
 * Threads: the reader blocks on the stream, and hands on what it reads; the keeper sends keep-alives, and is
 * the watchdog. Callers write themselves, one at a time. A caller's write may block on a peer that does not
 * read, so the keeper must never do: it writes without blocking, leaves what did not fit in `unsent` for the
 * next writer, and breaks the link once no write made progress for timeout_ms. That cancels `closing`, which
 * ends every read and write in progress.
 *
 * A link that failed keeps its first error. One that ended as expected has no error, yet its calls fail.
 * Locks: write_lock before lock. Nothing of others' (callbacks, cancellables) runs under either.
 */
#include "control/link.h"

#include "common/log-context.h"
#include "control/line.h"
#include "control/tls.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#define LINGER_MS 500   /* for the last words to arrive before the connection is closed */
#define VERDICT_MS 1000 /* for the reader to find out why a write failed */
#define PAUSE_MS 20     /* between two looks of the keeper, at least */
#define WRITE_PIECE 16384
#define READ_PIECE 65536

struct RmLink {
    /* immutable */
    GIOStream *stream;
    GSocket *socket; /* under the stream, maybe under TLS */
    GPollableInputStream *in;
    GPollableOutputStream *out;
    RmLinkOps ops;
    void *opaque;
    gint64 keepalive_us, timeout_us;
    GCancellable *closing; /* ends our I/O */
    GCancellable *lost;    /* told to others */
    GThread *reader, *keeper;

    RmLineBuffer lines; /* the reader's */
    gboolean heard;     /* the reader's: the peer has said something */

    GMutex write_lock;
    GByteArray *unsent; /* under write_lock: a keep-alive's bytes that must go before anything else */

    GMutex lock; /* guards what follows */
    GCond changed;
    GCond tick; /* wakes the keeper */
    GError *failure;
    gboolean ended;       /* as expected */
    gboolean peer_closed; /* which ended it */
    gboolean expect_end;
    gint64 last_heard; /* monotonic µs, as the others */
    gint64 last_sent;
    gint64 stalled_since; /* of the write in progress: its last progress; 0 if there is none */
    gint64 silent_until;  /* the keeper's: when silence is to be believed; 0 if there is none */
    gint64 linger_until;  /* 0 unless being closed */
    char *peer_name;
};

static gboolean is_over(const RmLink *link)
{
    return link->failure != NULL || link->ended;
}

static void end(RmLink *link, RmReason reason, const char *text, gboolean peer_closed)
{
    g_mutex_lock(&link->lock);
    if (is_over(link)) {
        g_mutex_unlock(&link->lock);
        return;
    }
    gboolean quiet = link->expect_end &&
                     (peer_closed || reason == RM_REASON_PEER_LOST || reason == RM_REASON_PEER_TIMEOUT);
    if (quiet)
        link->ended = TRUE;
    else
        rm_fail(&link->failure, reason, "%s: %s", link->peer_name, text);
    link->peer_closed = peer_closed;
    g_debug("control connection %s: %s", quiet ? "ended" : "failed", text);
    g_cond_broadcast(&link->changed);
    g_cond_broadcast(&link->tick);
    g_mutex_unlock(&link->lock);

    g_cancellable_cancel(link->closing);
    g_socket_shutdown(link->socket, FALSE, TRUE,
                      NULL); /* a peer that lingers for us need not wait for our owner */
    if (!quiet)
        g_cancellable_cancel(link->lost);
    link->ops.over(link->opaque);
}

void rm_link_break(RmLink *link, RmReason reason, const char *text)
{
    end(link, reason, text, FALSE);
}

/* --- writing --- */

static void note_progress(RmLink *link, gboolean done)
{
    g_mutex_lock(&link->lock);
    link->last_sent = g_get_monotonic_time();
    link->stalled_since = done ? 0 : link->last_sent;
    g_mutex_unlock(&link->lock);
}

/* The peer may have said why before it closed, and that is the better reason: let the reader find it. */
static void break_after_write(RmLink *link, const GError *cause)
{
    gint64 until = g_get_monotonic_time() + VERDICT_MS * 1000;
    g_mutex_lock(&link->lock);
    while (!is_over(link) && g_cond_wait_until(&link->changed, &link->lock, until))
        ;
    g_mutex_unlock(&link->lock);
    g_autofree char *text = g_strdup_printf("the control connection failed in writing: %s", cause->message);
    rm_link_break(link, RM_REASON_PEER_LOST, text);
}

/* Under write_lock. */
static gboolean write_all(RmLink *link, const void *data, gsize size, GError **error)
{
    const char *at = data;
    while (size > 0) {
        g_autoptr(GError) local_error = NULL;
        gssize written = g_output_stream_write(G_OUTPUT_STREAM(link->out), at, MIN(size, WRITE_PIECE),
                                               link->closing, &local_error);
        /* a time-out of the socket's own: how long is too long is the keeper's to judge */
        if (written < 0 && g_error_matches(local_error, G_IO_ERROR, G_IO_ERROR_TIMED_OUT))
            continue;
        if (written < 0) {
            g_propagate_error(error, g_steal_pointer(&local_error));
            return FALSE;
        }
        at += written;
        size -= written;
        note_progress(link, FALSE);
    }
    return TRUE;
}

gboolean rm_link_write(RmLink *link, const char *text, gsize length, GError **error)
{
    g_autoptr(GError) cause = NULL;
    gboolean done = FALSE;
    g_mutex_lock(&link->write_lock);
    g_mutex_lock(&link->lock);
    gboolean over = is_over(link);
    if (!over && link->stalled_since == 0)
        link->stalled_since = g_get_monotonic_time();
    g_mutex_unlock(&link->lock);
    if (!over) {
        done = write_all(link, link->unsent->data, link->unsent->len, &cause);
        if (done) {
            g_byte_array_set_size(link->unsent, 0);
            done = write_all(link, text, length, &cause) && write_all(link, "\n", 1, &cause);
        }
        if (done)
            note_progress(link, TRUE);
    }
    g_mutex_unlock(&link->write_lock);
    if (done)
        return TRUE;

    if (cause != NULL)
        break_after_write(link, cause);
    return rm_link_fail_over(link, error);
}

#if RM_FAULTS
gboolean rm_link_cut(RmLink *link, const char *text, gsize length, GError **error)
{
    if (length > 0) {
        g_mutex_lock(&link->write_lock);
        write_all(link, text, length, NULL);
        g_mutex_unlock(&link->write_lock);
    }
    g_socket_shutdown(link->socket, TRUE, TRUE, NULL);
    rm_link_break(link, RM_REASON_PEER_LOST, "cut by a fault point");
    return rm_link_fail_over(link, error);
}
#endif

/* Writes what fits now of `line`, if nobody else is writing. Never blocks. */
static void write_nonblocking(RmLink *link, const char *line, GError **ret_cause)
{
    if (!g_mutex_trylock(&link->write_lock))
        return; /* so the line isn't idle */
    g_autoptr(GError) error = NULL;
    GByteArray *unsent = link->unsent;
    if (unsent->len == 0) {
        g_byte_array_append(unsent, (const guint8 *)line, strlen(line));
        g_byte_array_append(unsent, (const guint8 *)"\n", 1);
    }
    gssize written =
        g_pollable_output_stream_write_nonblocking(link->out, unsent->data, unsent->len, NULL, &error);
    if (written > 0) {
        g_byte_array_remove_range(unsent, 0, written);
        note_progress(link, unsent->len == 0);
    } else if (g_error_matches(error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK)) {
        g_mutex_lock(&link->lock);
        if (link->stalled_since == 0)
            link->stalled_since = g_get_monotonic_time();
        g_mutex_unlock(&link->lock);
    } else if (error != NULL) {
        g_propagate_error(ret_cause, g_steal_pointer(&error));
    }
    g_mutex_unlock(&link->write_lock);
}

/* --- reading --- */

/* The peer broke the rules: it is told, if the line takes it right now, and left. */
static void leave_peer(RmLink *link, const GError *error)
{
    g_autofree char *line = link->ops.farewell(error);
    g_autoptr(GError) ignored = NULL;
    if (line != NULL)
        write_nonblocking(link, line, &ignored);
    rm_link_break(link, rm_error_reason(error), error->message);
}

/* Returns FALSE once there is nothing more to read for. */
static gboolean take_in_bytes(RmLink *link, const char *data, gsize size)
{
    rm_line_buffer_append(&link->lines, data, size);
    while (!g_cancellable_is_cancelled(link->closing)) {
        const char *line = NULL;
        gsize length = 0;
        g_autoptr(GError) error = NULL;
        switch (rm_line_buffer_next(&link->lines, &line, &length)) {
        case RM_LINE_NONE:
            return TRUE;
        case RM_LINE_TOO_LONG:
            rm_fail(&error, RM_REASON_PROTOCOL, "message over the limit of %zu bytes", link->ops.line_max);
            break;
        case RM_LINE_OK:
            link->ops.take_line(link->opaque, line, length, &error);
            break;
        }
        if (error != NULL)
            leave_peer(link, error);
    }
    return FALSE;
}

static void end_of_stream(RmLink *link, const GError *cause)
{
    g_autofree char *text = NULL;
    g_autofree char *verdict = link->heard ? NULL : rm_tls_explain(link->stream);
    RmReason reason = verdict != NULL ? RM_REASON_TLS : RM_REASON_PEER_LOST;
    if (verdict != NULL)
        text = g_steal_pointer(&verdict);
    else if (cause != NULL)
        text = g_strdup_printf("the control connection failed: %s", cause->message);
    else if (rm_line_buffer_pending(&link->lines) > 0)
        text = g_strdup("the control connection was closed in the middle of a message");
    else
        text = g_strdup("the control connection was closed at the other end");
    end(link, reason, text, TRUE);
}

static gpointer run_reader(gpointer data)
{
    RmLink *link = data;
    g_autofree char *buffer = g_malloc(READ_PIECE);
    gboolean more = take_in_bytes(link, "", 0); /* what rm_link_new() was given */
    while (more) {
        g_autoptr(GError) error = NULL;
        gssize got = g_input_stream_read(G_INPUT_STREAM(link->in), buffer, READ_PIECE, link->closing, &error);
        if (got < 0 && g_error_matches(error, G_IO_ERROR, G_IO_ERROR_TIMED_OUT))
            continue;
        if (got <= 0) {
            if (!g_cancellable_is_cancelled(link->closing))
                end_of_stream(link, error);
            break;
        }
        link->heard = TRUE;
        g_mutex_lock(&link->lock);
        link->last_heard = g_get_monotonic_time();
        g_mutex_unlock(&link->lock);
        more = take_in_bytes(link, buffer, got);
    }
    return NULL;
}

/* --- keeping --- */

/* Silence counts once it was found twice: after a pause of this whole process (a stop signal, a starved host)
 * the peer's keep-alives wait in the socket, or have left it and the reader is about to say so, or the peer
 * paused with us. */
static gboolean silent(RmLink *link, gint64 now)
{
    if (now < link->last_heard + link->timeout_us || g_pollable_input_stream_is_readable(link->in)) {
        link->silent_until = 0;
        return FALSE;
    }
    if (link->silent_until == 0)
        link->silent_until = now + MIN(link->keepalive_us, link->timeout_us) / 2;
    return now >= link->silent_until;
}

/* Whether the peer is to be given up now; why goes to *ret_text. Under lock. */
static gboolean given_up(RmLink *link, gint64 now, char **ret_text)
{
    unsigned ms = link->timeout_us / 1000;
    if (link->linger_until != 0 && now >= link->linger_until)
        *ret_text = g_strdup("it did not close its end");
    else if (link->stalled_since != 0 && now >= link->stalled_since + link->timeout_us)
        *ret_text = g_strdup_printf("it took nothing off the control connection for %u ms", ms);
    else if (silent(link, now))
        *ret_text = g_strdup_printf("nothing heard for %u ms: check that host and the network between", ms);
    return *ret_text != NULL;
}

static gint64 next_wake(const RmLink *link, gint64 now)
{
    gint64 next = link->silent_until != 0 ? link->silent_until : link->last_heard + link->timeout_us;
    next = MIN(next, link->last_sent + link->keepalive_us);
    if (link->stalled_since != 0)
        next = MIN(next, link->stalled_since + link->timeout_us);
    if (link->linger_until != 0)
        next = MIN(next, link->linger_until);
    /* A line that is busy or blocked leaves a time in the past: look again soon, but don't spin. */
    return MAX(next, now + PAUSE_MS * 1000);
}

static gpointer run_keeper(gpointer data)
{
    RmLink *link = data;
    g_mutex_lock(&link->lock);
    while (!is_over(link)) {
        g_autofree char *text = NULL;
        g_autoptr(GError) cause = NULL;
        gint64 now = g_get_monotonic_time();
        gboolean give_up = given_up(link, now, &text);
        if (give_up || (now >= link->last_sent + link->keepalive_us && link->linger_until == 0)) {
            g_mutex_unlock(&link->lock);
            if (give_up)
                rm_link_break(link, RM_REASON_PEER_TIMEOUT, text);
            else
                write_nonblocking(link, link->ops.keepalive, &cause);
            if (cause != NULL)
                break_after_write(link, cause);
            g_mutex_lock(&link->lock);
        }
        if (!is_over(link))
            g_cond_wait_until(&link->tick, &link->lock, next_wake(link, g_get_monotonic_time()));
    }
    g_mutex_unlock(&link->lock);
    return NULL;
}

/* --- the interface --- */

RmLink *rm_link_new(GIOStream *stream, const char *first, const RmLinkOps *ops, void *opaque)
{
    RmLink *link = g_new0(RmLink, 1);
    link->stream = g_object_ref(stream);
    link->socket = g_object_ref(rm_tls_socket(stream));
    link->in = G_POLLABLE_INPUT_STREAM(g_io_stream_get_input_stream(stream));
    link->out = G_POLLABLE_OUTPUT_STREAM(g_io_stream_get_output_stream(stream));
    link->ops = *ops;
    link->opaque = opaque;
    link->keepalive_us = (gint64)ops->keepalive_ms * 1000;
    link->timeout_us = (gint64)ops->timeout_ms * 1000;
    link->closing = g_cancellable_new();
    link->lost = g_cancellable_new();
    rm_line_buffer_init(&link->lines, ops->line_max);
    if (first != NULL)
        rm_line_buffer_append(&link->lines, first, strlen(first));
    g_mutex_init(&link->write_lock);
    link->unsent = g_byte_array_new();
    g_mutex_init(&link->lock);
    g_cond_init(&link->changed);
    g_cond_init(&link->tick);
    link->last_heard = link->last_sent = g_get_monotonic_time();
    link->peer_name = g_strdup("peer");
    g_socket_set_blocking(link->socket, TRUE);
    /* A switchover is a dozen small messages: none may wait for the answer to the last. Fails on UNIX
     * sockets. */
    g_socket_set_option(link->socket, IPPROTO_TCP, TCP_NODELAY, 1, NULL);
    return link;
}

void rm_link_start(RmLink *link)
{
    link->reader = rm_log_thread_new("control-reader", run_reader, link);
    link->keeper = rm_log_thread_new("control-keeper", run_keeper, link);
}

/* Says that nothing more will come, and lets the peer close first: closing with unread bytes of the peer in
 * the socket would reset the connection, and what we said last could be lost on the way. */
static void linger(RmLink *link)
{
    g_mutex_lock(&link->lock);
    gboolean over = is_over(link);
    link->expect_end = TRUE;
    link->linger_until = g_get_monotonic_time() + LINGER_MS * 1000;
    g_cond_broadcast(&link->tick);
    g_mutex_unlock(&link->lock);
    if (over)
        return;

    g_mutex_lock(&link->write_lock); /* a write in progress ends at linger_until at the latest */
    if (G_IS_TLS_CONNECTION(link->stream))
        g_output_stream_close(G_OUTPUT_STREAM(link->out), link->closing, NULL);
    else
        g_socket_shutdown(link->socket, FALSE, TRUE, NULL);
    g_mutex_unlock(&link->write_lock);

    g_mutex_lock(&link->lock);
    while (!is_over(link))
        g_cond_wait(&link->changed, &link->lock);
    g_mutex_unlock(&link->lock);
}

void rm_link_close(RmLink *link)
{
    linger(link);
    g_thread_join(link->reader);
    g_thread_join(link->keeper);
}

void rm_link_free(RmLink *link)
{
    /* `closing` is cancelled by now, so that TLS doesn't wait for anybody in its farewell */
    g_io_stream_close(link->stream, link->closing, NULL);
    g_socket_close(link->socket, NULL);
    g_object_unref(link->socket);
    g_object_unref(link->stream);
    g_object_unref(link->closing);
    g_object_unref(link->lost);
    rm_line_buffer_clear(&link->lines);
    g_byte_array_unref(link->unsent);
    g_clear_error(&link->failure);
    g_free(link->peer_name);
    g_cond_clear(&link->tick);
    g_cond_clear(&link->changed);
    g_mutex_clear(&link->lock);
    g_mutex_clear(&link->write_lock);
    g_free(link);
}

void rm_link_expect_end(RmLink *link)
{
    g_mutex_lock(&link->lock);
    link->expect_end = TRUE;
    g_mutex_unlock(&link->lock);
}

gboolean rm_link_expects_end(RmLink *link)
{
    g_mutex_lock(&link->lock);
    gboolean expected = link->expect_end;
    g_mutex_unlock(&link->lock);
    return expected;
}

RmLinkState rm_link_state(RmLink *link)
{
    g_mutex_lock(&link->lock);
    RmLinkState state = RM_LINK_ALIVE;
    if (is_over(link))
        state = link->peer_closed ? RM_LINK_CLOSED : RM_LINK_BROKEN;
    g_mutex_unlock(&link->lock);
    return state;
}

gboolean rm_link_check(RmLink *link, GError **error)
{
    g_mutex_lock(&link->lock);
    gboolean well = link->failure == NULL;
    if (!well)
        g_propagate_error(error, g_error_copy(link->failure));
    g_mutex_unlock(&link->lock);
    return well;
}

gboolean rm_link_fail_over(RmLink *link, GError **error)
{
    g_mutex_lock(&link->lock);
    if (link->failure != NULL)
        g_propagate_error(error, g_error_copy(link->failure));
    else
        rm_fail(error, RM_REASON_PEER_LOST, "%s: the control connection has ended", link->peer_name);
    g_mutex_unlock(&link->lock);
    return FALSE;
}

void rm_link_set_peer_name(RmLink *link, const char *name)
{
    g_mutex_lock(&link->lock);
    g_free(link->peer_name);
    link->peer_name = g_strdup(name);
    g_mutex_unlock(&link->lock);
}

char *rm_link_dup_peer_name(RmLink *link)
{
    g_mutex_lock(&link->lock);
    char *name = g_strdup(link->peer_name);
    g_mutex_unlock(&link->lock);
    return name;
}

GCancellable *rm_link_lost(RmLink *link)
{
    return link->lost;
}
