/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The QMP client.
 *
 * Every byte is read by whoever waits for something: receive_line() polls the socket until a line is whole,
 * and dispatches it: events to the queue, a reply with the wanted id to the caller, any other reply to nobody
 * (it belongs to a command given up earlier). So a client that was interrupted in the middle of a command
 * needs no resynchronisation.
 */
#include "guest/qemu/qmp.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/qemu/qmp-ahead.h"
#include "guest/qemu/qmp-socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

struct RmQmp {
    /* immutable */
    char *path;
    unsigned timeout_ms;
    GCancellable *cancellable;

    /* of the connection */
    int fd;
    pid_t peer;
    unsigned version;
    char *version_text;
    gboolean broken; /* nothing sensible can be read any more; `gone` if because QEMU closed it */
    gboolean gone;
    GByteArray *in; /* received, not dispatched */
    gsize scanned;  /* so many bytes of `in` hold no newline */
    uint64_t last_id;

    gboolean shielded;
    GQueue events; /* of json_object */
    RmQmpAhead ahead;
    GHashTable *commands; /* set of names; NULL until asked */
};

static gint64 deadline_of(const RmQmp *qmp)
{
    return g_get_monotonic_time() + (gint64)qmp->timeout_ms * 1000;
}

GCancellable *rm_qmp_cancellable(const RmQmp *qmp)
{
    return qmp->shielded ? NULL : qmp->cancellable;
}

static gboolean fail_gone(RmQmp *qmp, GError **error)
{
    qmp->broken = qmp->gone = TRUE;
    return rm_fail(error, RM_REASON_GUEST_GONE, "QEMU ended: it closed its QMP socket %s", qmp->path);
}

/* Fails if the connection broke before. */
static gboolean check_sound(RmQmp *qmp, GError **error)
{
    if (qmp->gone)
        return fail_gone(qmp, error);
    return !qmp->broken || rm_fail(error, RM_REASON_QMP_UNREACHABLE,
                                   "the connection to QMP socket %s broke earlier", qmp->path);
}

/* Waits for `events` on the socket. *ret_ready is FALSE when the deadline passed. */
static gboolean wait_for(RmQmp *qmp, gushort events, gint64 deadline, gboolean *ret_ready, GError **error)
{
    GCancellable *cancellable = rm_qmp_cancellable(qmp);
    GPollFD fds[2] = {{.fd = qmp->fd, .events = events}};
    unsigned n = 1;
    if (cancellable != NULL && g_cancellable_make_pollfd(cancellable, &fds[1]))
        n = 2;
    int ready;
    do {
        gint64 left = deadline - g_get_monotonic_time();
        ready = g_poll(fds, n, left <= 0 ? 0 : (int)MIN((left + 999) / 1000, G_MAXINT));
    } while (ready < 0 && errno == EINTR);
    int saved = errno;
    if (n == 2)
        g_cancellable_release_fd(cancellable);
    if (ready < 0)
        return rm_set_errno(error, RM_REASON_INTERNAL, saved, "poll failed");
    if (g_cancellable_set_error_if_cancelled(cancellable, error))
        return FALSE;
    *ret_ready = fds[0].revents != 0;
    return TRUE;
}

/* Reads once. *ret_more is FALSE if there was nothing to read. */
static gboolean read_some(RmQmp *qmp, gboolean *ret_more, GError **error)
{
    guint8 buffer[65536];
    ssize_t n = recv(qmp->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        *ret_more = FALSE;
        return TRUE;
    }
    if (n <= 0)
        return fail_gone(qmp, error);
    if (qmp->in->len + (gsize)n > RM_QMP_LINE_MAX) {
        qmp->broken = TRUE;
        return rm_fail(error, RM_REASON_PROTOCOL, "QEMU sent a line of more than %u bytes on %s",
                       RM_QMP_LINE_MAX, qmp->path);
    }
    g_byte_array_append(qmp->in, buffer, (guint)n);
    *ret_more = TRUE;
    return TRUE;
}

/* Whether the buffer holds a whole line; *ret_length is without its newline. */
static gboolean find_line(RmQmp *qmp, gsize *ret_length)
{
    guint8 *end = qmp->in->len == qmp->scanned
                      ? NULL
                      : memchr(qmp->in->data + qmp->scanned, '\n', qmp->in->len - qmp->scanned);
    if (end == NULL)
        qmp->scanned = qmp->in->len;
    else
        *ret_length = (gsize)(end - qmp->in->data);
    return end != NULL;
}

static void drop_line(RmQmp *qmp, gsize length)
{
    g_byte_array_remove_range(qmp->in, 0, (guint)length + 1);
    qmp->scanned = 0;
}

/* Takes the first whole line off the buffer; *ret_message is NULL if there is none. */
static gboolean take_line(RmQmp *qmp, json_object **ret_message, GError **error)
{
    gsize length;
    *ret_message = NULL;
    while (*ret_message == NULL && find_line(qmp, &length)) {
        gsize text = length;
        if (text > 0 && qmp->in->data[text - 1] == '\r')
            text--;
        if (text > 0) {
            *ret_message = rm_json_parse((const char *)qmp->in->data, text, RM_QMP_DEPTH, error);
            if (*ret_message == NULL) {
                qmp->broken = TRUE;
                g_prefix_error(error, "what %s sent is not QMP: ", qmp->path);
                return FALSE;
            }
        }
        drop_line(qmp, length);
    }
    return TRUE;
}

/* Queues an event and clears *message; leaves replies. */
static gboolean divert_event(RmQmp *qmp, json_object **message, GError **error)
{
    if (!json_object_object_get_ex(*message, "event", NULL))
        return TRUE;
    if (g_queue_get_length(&qmp->events) >= RM_QMP_EVENTS_MAX) {
        qmp->broken = TRUE;
        return rm_fail(error, RM_REASON_PROTOCOL, "QEMU sent more than %u events that nobody took",
                       RM_QMP_EVENTS_MAX);
    }
    g_queue_push_tail(&qmp->events, *message);
    *message = NULL;
    return TRUE;
}

/* The next message that is no event, waiting for it until `deadline`; *ret_message NULL: it did not come in
 * time. */
static gboolean next_message(RmQmp *qmp, gint64 deadline, json_object **ret_message, GError **error)
{
    for (;;) {
        rm_autojson message = NULL;
        if (!take_line(qmp, &message, error))
            return FALSE;
        if (message != NULL) {
            if (!divert_event(qmp, &message, error))
                return FALSE;
            if (message != NULL) {
                *ret_message = g_steal_pointer(&message);
                return TRUE;
            }
            continue;
        }
        gboolean ready = FALSE, more;
        if (!wait_for(qmp, G_IO_IN, deadline, &ready, error))
            return FALSE;
        if (!ready) {
            *ret_message = NULL;
            return TRUE;
        }
        if (!read_some(qmp, &more, error))
            return FALSE;
    }
}

static gboolean send_once(RmQmp *qmp, const char *data, gsize length, int fd, gsize *ret_sent, GError **error)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    ssize_t n = sendmsg(qmp->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        if (errno == EPIPE || errno == ECONNRESET)
            return fail_gone(qmp, error);
        qmp->broken = TRUE;
        return rm_set_errno(error, RM_REASON_QMP_UNREACHABLE, errno, "cannot send to QMP socket %s",
                            qmp->path);
    }
    *ret_sent = n < 0 ? 0 : (gsize)n;
    return TRUE;
}

/* Sends the whole line; `fd` (or -1) travels with its first byte. A line that was cut short spoils the
 * connection. */
static gboolean send_line(RmQmp *qmp, const char *line, int fd, gint64 deadline, GError **error)
{
    gsize length = strlen(line), sent = 0;
    while (sent < length) {
        gsize n = 0;
        gboolean ready = TRUE;
        if (!send_once(qmp, line + sent, length - sent, sent == 0 ? fd : -1, &n, error))
            return FALSE;
        sent += n;
        if (n > 0)
            continue;
        gboolean ok = wait_for(qmp, G_IO_OUT, deadline, &ready, error);
        if (!ok || !ready)
            qmp->broken = qmp->broken || sent > 0;
        if (!ok)
            return FALSE;
        if (!ready)
            return rm_fail(error, RM_REASON_QMP_UNREACHABLE,
                           "QEMU takes no commands on %s: is its process stopped?", qmp->path);
    }
    return TRUE;
}

static gboolean check_reply(const char *command, json_object *reply, GError **error)
{
    if (json_object_object_get_ex(reply, "return", NULL))
        return TRUE;
    json_object *problem;
    const char *words;
    if (!rm_json_object(reply, "error", &problem, error) || !rm_json_string(problem, "desc", &words, error))
        return FALSE;
    return rm_fail(error, RM_REASON_QMP_ERROR, "QEMU refused %s: %s", command, words);
}

/* Waits for the reply with `id`. */
static gboolean await_reply(RmQmp *qmp, const char *command, uint64_t id, gint64 deadline,
                            json_object **ret_reply, GError **error)
{
    for (;;) {
        rm_autojson message = NULL;
        if (!next_message(qmp, deadline, &message, error))
            return FALSE;
        if (message == NULL)
            return rm_fail(error, RM_REASON_QMP_UNREACHABLE,
                           "QEMU did not answer %s within %u ms: it is stopped, or waits for its storage",
                           command, qmp->timeout_ms);
        uint64_t got = 0;
        if (!rm_json_uint_opt(message, "id", &got, NULL) || got != id)
            continue; /* late: its command was given up */
        if (!check_reply(command, message, error))
            return FALSE;
        if (ret_reply != NULL)
            *ret_reply = g_steal_pointer(&message);
        return TRUE;
    }
}

#define JSON_FLAGS (JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE)

static char *command_text(const char *command, const char *arguments)
{
    return g_strdup_printf("{\"execute\":\"%s\"%s%s", command, arguments != NULL ? ",\"arguments\":" : "",
                           arguments != NULL ? arguments : "");
}

static gboolean send_command(RmQmp *qmp, int fd, const char *text, uint64_t *ret_id, GError **error)
{
    if (!check_sound(qmp, error) || g_cancellable_set_error_if_cancelled(rm_qmp_cancellable(qmp), error))
        return FALSE;
    g_autofree char *line = g_strdup_printf("%s,\"id\":%" G_GUINT64_FORMAT "}\n", text, ++qmp->last_id);
    g_debug("qmp > %.*s", (int)MIN(strlen(line) - 1, 400), line);
    *ret_id = qmp->last_id;
    return send_line(qmp, line, fd, deadline_of(qmp), error);
}

void rm_qmp_ahead(RmQmp *qmp, const char *command, const char *arguments)
{
    g_autofree char *text = command_text(command, arguments);
    uint64_t id;
    if (send_command(qmp, -1, text, &id, NULL)) /* else rm_qmp_run() will say why */
        rm_qmp_ahead_add(&qmp->ahead, text, id);
}

static gboolean run(RmQmp *qmp, int fd, const char *command, json_object *arguments, json_object **ret_reply,
                    GError **error)
{
    rm_autojson owned = arguments;
    g_autofree char *text = command_text(
        command, arguments != NULL ? json_object_to_json_string_ext(arguments, JSON_FLAGS) : NULL);
    uint64_t id = rm_qmp_ahead_take(&qmp->ahead, text);
    if (id == 0 && !send_command(qmp, fd, text, &id, error))
        return FALSE;
    return await_reply(qmp, command, id, deadline_of(qmp), ret_reply, error);
}

gboolean rm_qmp_run(RmQmp *qmp, const char *command, json_object *arguments, json_object **ret_reply,
                    GError **error)
{
    return run(qmp, -1, command, arguments, ret_reply, error);
}

gboolean rm_qmp_run_with_fd(RmQmp *qmp, int fd, const char *command, json_object *arguments, GError **error)
{
    return run(qmp, fd, command, arguments, NULL, error);
}

gboolean rm_qmp_receive(RmQmp *qmp, GError **error)
{
    gboolean more = TRUE;
    if (!check_sound(qmp, error))
        return FALSE;
    while (more) {
        if (!read_some(qmp, &more, error))
            return FALSE;
        for (;;) {
            rm_autojson message = NULL;
            if (!take_line(qmp, &message, error))
                return FALSE;
            if (message == NULL)
                break;
            if (!divert_event(qmp, &message, error))
                return FALSE;
            if (message != NULL)
                rm_qmp_ahead_forget(&qmp->ahead); /* it may have been one of these */
        }
    }
    return TRUE;
}

json_object *rm_qmp_next_event(RmQmp *qmp)
{
    return g_queue_pop_head(&qmp->events);
}

json_object *rm_qmp_peek_event(RmQmp *qmp, guint n)
{
    return g_queue_peek_nth(&qmp->events, n);
}

void rm_qmp_shield(RmQmp *qmp, gboolean on)
{
    qmp->shielded = on;
}

gboolean rm_qmp_wait(RmQmp *qmp, unsigned ms, GError **error)
{
    gboolean ready = FALSE;
    return check_sound(qmp, error) &&
           wait_for(qmp, G_IO_IN, g_get_monotonic_time() + (gint64)ms * 1000, &ready, error) &&
           (!ready || rm_qmp_receive(qmp, error));
}

gboolean rm_qmp_has(RmQmp *qmp, const char *command, gboolean *ret_has, GError **error)
{
    if (qmp->commands == NULL) {
        rm_autojson reply = NULL;
        json_object *list;
        if (!rm_qmp_run(qmp, "query-commands", NULL, &reply, error) ||
            !rm_json_array(reply, "return", &list, error))
            return FALSE;
        g_autoptr(GHashTable) commands = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
        for (size_t i = 0; i < json_object_array_length(list); i++) {
            const char *name;
            if (!rm_json_string(json_object_array_get_idx(list, i), "name", &name, error))
                return FALSE;
            g_hash_table_add(commands, g_strdup(name));
        }
        qmp->commands = g_steal_pointer(&commands);
    }
    *ret_has = g_hash_table_contains(qmp->commands, command);
    return TRUE;
}

static gboolean read_version(RmQmp *qmp, json_object *version, GError **error)
{
    json_object *numbers;
    uint64_t major, minor, micro;
    if (!rm_json_object(version, "qemu", &numbers, error) || !rm_json_uint(numbers, "major", &major, error) ||
        !rm_json_uint(numbers, "minor", &minor, error) || !rm_json_uint(numbers, "micro", &micro, error))
        return FALSE;
    qmp->version = RM_QEMU_VERSION(MIN(major, 1000), MIN(minor, 999));
    g_free(qmp->version_text);
    qmp->version_text = g_strdup_printf("%u.%u.%u", (unsigned)major, (unsigned)minor, (unsigned)micro);
    return TRUE;
}

static gboolean read_greeting(RmQmp *qmp, json_object *greeting, GError **error)
{
    json_object *body, *version;
    if (rm_json_object(greeting, "QMP", &body, error) && rm_json_object(body, "version", &version, error) &&
        read_version(qmp, version, error))
        return TRUE;
    g_prefix_error(error, "%s is not a QMP socket: ", qmp->path);
    return FALSE;
}

/* Whatever goes wrong before the greeting means that no QEMU can be spoken to here. */
static gboolean greet(RmQmp *qmp, GError **error)
{
    g_autoptr(GError) problem = NULL;
    rm_autojson greeting = NULL;
    qmp->peer = rm_qmp_socket_peer(qmp->fd, error);
    if (qmp->peer < 0)
        return FALSE;
    if (!next_message(qmp, deadline_of(qmp), &greeting, &problem)) {
        if (rm_error_reason(problem) == RM_REASON_CANCELLED) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
        return rm_fail(error, RM_REASON_QMP_UNREACHABLE, "no QMP greeting: %s", problem->message);
    }
    if (greeting == NULL)
        return rm_fail(
            error, RM_REASON_QMP_BUSY,
            "no greeting on QMP socket %s within %u ms: another client (libvirt?) holds it, or QEMU is "
            "stopped; give QEMU a monitor of its own for rdmamig: -qmp unix:PATH,server=on,wait=off",
            qmp->path, qmp->timeout_ms);
    if (!read_greeting(qmp, greeting, &problem))
        return rm_fail(error, RM_REASON_QMP_UNREACHABLE, "%s", problem->message);
    return rm_qmp_run(qmp, "qmp_capabilities", NULL, NULL, error);
}

/* Not by close() alone: while a guardian holds the descriptor, too, QEMU would go on serving this connection,
 * and nobody else. */
static void disconnect(RmQmp *qmp)
{
    if (qmp->fd >= 0)
        shutdown(qmp->fd, SHUT_RDWR);
    rm_fd_clear(&qmp->fd);
    g_byte_array_set_size(qmp->in, 0);
    qmp->scanned = 0;
    qmp->broken = qmp->gone = FALSE;
    rm_qmp_ahead_forget(&qmp->ahead);
}

static gboolean connect_and_greet(RmQmp *qmp, GError **error)
{
    disconnect(qmp);
    qmp->fd = rm_qmp_socket_connect(qmp->path, deadline_of(qmp), rm_qmp_cancellable(qmp), error);
    return qmp->fd >= 0 && greet(qmp, error);
}

gboolean rm_qmp_reconnect(RmQmp *qmp, GError **error)
{
    if (qmp->gone)
        return fail_gone(qmp, error);
    if (!qmp->broken)
        return TRUE;
    if (connect_and_greet(qmp, error))
        return TRUE;
    qmp->broken = TRUE;
    return FALSE;
}

static RmQmp *qmp_alloc(const char *path, unsigned timeout_ms, GCancellable *cancellable)
{
    RmQmp *qmp = g_new0(RmQmp, 1);
    qmp->path = g_strdup(path);
    qmp->timeout_ms = timeout_ms;
    qmp->cancellable = cancellable != NULL ? g_object_ref(cancellable) : NULL;
    qmp->fd = -1;
    qmp->in = g_byte_array_new();
    g_queue_init(&qmp->events);
    return qmp;
}

RmQmp *rm_qmp_new(const char *path, unsigned timeout_ms, GCancellable *cancellable, GError **error)
{
    g_autoptr(RmQmp) qmp = qmp_alloc(path, timeout_ms, cancellable);
    if (!connect_and_greet(qmp, error))
        return NULL;
    return g_steal_pointer(&qmp);
}

RmQmp *rm_qmp_greet(int fd, const char *path, unsigned timeout_ms, GError **error)
{
    g_autoptr(RmQmp) qmp = qmp_alloc(path, timeout_ms, NULL);
    qmp->fd = fd;
    return greet(qmp, error) ? g_steal_pointer(&qmp) : NULL;
}

/* ---- adopting ---- */

/* Drops what comes, parsed or not, until the answer with this id. */
static gboolean skip_until(RmQmp *qmp, const char *id, gint64 deadline, GError **error)
{
    for (;;) {
        gboolean ready = FALSE, more;
        gsize length;
        while (find_line(qmp, &length)) {
            rm_autojson message = rm_json_parse((const char *)qmp->in->data, length, RM_QMP_DEPTH, NULL);
            const char *got = NULL;
            drop_line(qmp, length);
            if (message != NULL && rm_json_string_opt(message, "id", &got, NULL) && g_strcmp0(got, id) == 0)
                return TRUE;
        }
        if (!wait_for(qmp, G_IO_IN, deadline, &ready, error))
            return FALSE;
        if (!ready)
            return rm_fail(error, RM_REASON_QMP_UNREACHABLE,
                           "QEMU did not answer on %s within %u ms: it is stopped, or waits for its storage",
                           qmp->path, qmp->timeout_ms);
        if (!read_some(qmp, &more, error))
            return FALSE;
    }
}

/* 0xFF can be no part of JSON, not even inside a string: QEMU answers it with an error, drops what it had of
 * a command, and starts anew behind the newline (tried with 7.2 and 10.0 at each byte of a command).
 * qmp_capabilities is the one command that is answered, if only with an error, both before and after the
 * negotiation. Commands are answered in order, so that nothing of what was asked earlier comes after it. */
static gboolean resynchronise(RmQmp *qmp, GError **error)
{
    gint64 deadline = deadline_of(qmp);
    g_autofree char *uuid = g_uuid_string_random();
    g_autofree char *line = g_strdup_printf("\xff\n{\"execute\":\"qmp_capabilities\",\"id\":\"%s\"}\n", uuid);
    return send_line(qmp, line, -1, deadline, error) && skip_until(qmp, uuid, deadline, error);
}

RmQmp *rm_qmp_adopt(int fd, const char *path, unsigned timeout_ms, GError **error)
{
    g_autoptr(RmQmp) qmp = qmp_alloc(path, timeout_ms, NULL);
    rm_autojson reply = NULL;
    json_object *version;
    qmp->fd = fd;
    qmp->peer = rm_qmp_socket_peer(fd, error);
    if (qmp->peer < 0 || !resynchronise(qmp, error) ||
        !rm_qmp_run(qmp, "query-version", NULL, &reply, error) ||
        !rm_json_object(reply, "return", &version, error) || !read_version(qmp, version, error))
        return NULL;
    return g_steal_pointer(&qmp);
}

void rm_qmp_free(RmQmp *qmp)
{
    if (qmp == NULL)
        return;
    disconnect(qmp);
    g_byte_array_unref(qmp->in);
    for (json_object *event; (event = rm_qmp_next_event(qmp)) != NULL;)
        json_object_put(event);
    g_clear_pointer(&qmp->commands, g_hash_table_unref);
    g_clear_object(&qmp->cancellable);
    g_free(qmp->version_text);
    g_free(qmp->path);
    g_free(qmp);
}

unsigned rm_qmp_version(const RmQmp *qmp)
{
    return qmp->version;
}

const char *rm_qmp_version_text(const RmQmp *qmp)
{
    return qmp->version_text;
}

int rm_qmp_fd(const RmQmp *qmp)
{
    return qmp->fd;
}

pid_t rm_qmp_peer(const RmQmp *qmp)
{
    return qmp->peer;
}

unsigned rm_qmp_timeout_ms(const RmQmp *qmp)
{
    return qmp->timeout_ms;
}
