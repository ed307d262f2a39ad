/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The control channel: requests, replies, and the queue of what the peer asks, on top of a link.
 *
 * The link's reader thread routes each message as it comes: it wakes the caller that waits for a reply, or
 * queues a request. It never waits, so a peer that asks faster than the session answers is cut off at a
 * bound, rather than held up with its keep-alives unread.
 *
 * Requests that had arrived before the peer closed are still handed out; after a cancel or nonsense from it
 * they are not. Lock order: the channel's lock before the link's.
 */
#include "control/channel.h"

#include "common/autoptr.h"
#include "common/fault.h"
#include "common/printable.h"
#include "common/reason.h"
#include "control/json.h"
#include "control/link.h"

#include <string.h>

#define KEEPALIVE_MS 2000
#define TIMEOUT_MS 10000
#define QUEUE_MESSAGES 1024
/* Two bytes of text can be sixty in memory, or hundreds: bounds go by an estimate of what json-c takes. The
 * largest message that the protocol has is about 3 MiB. */
#define CONTAINER_WEIGHT 512 /* an object or an array */
#define VALUE_WEIGHT 64
#define MESSAGE_WEIGHT_MAX (16u << 20)
#define QUEUE_WEIGHT_MAX (64u << 20)
/* All that a stranger may say: strangers are many, each may be at its bound at a time, and nothing but a
 * hello (1.6 MiB at most: a thousand blocks of long names) and keep-alives is due. */
#define STRANGER_WEIGHT_MAX (4u << 20)
#define DETAIL_MAX 1024
#define TYPE_MAX 64

typedef struct {
    json_object *reply; /* NULL until it comes */
    gboolean abandoned; /* its caller left: the reply, should it come, is dropped */
} Pending;

typedef struct {
    json_object *message;
    gsize weight;
} Incoming;

struct RmControl {
    RmLink *link; /* immutable */

    GMutex lock; /* guards what follows */
    GCond changed;
    GHashTable *pending; /* id -> Pending */
    GQueue incoming;     /* Incoming */
    gsize incoming_weight;
    gboolean stranger;
    gsize stranger_weight; /* of all it has said */
    uint64_t next_id;
    unsigned users; /* calls in progress, which rm_control_free() waits for */
};

static void pending_free(gpointer data)
{
    Pending *pending = data;
    json_object_put(pending->reply);
    g_free(pending);
}

static void incoming_free(gpointer data)
{
    Incoming *incoming = data;
    json_object_put(incoming->message);
    g_free(incoming);
}

static void enter(RmControl *control)
{
    g_mutex_lock(&control->lock);
    control->users++;
    g_mutex_unlock(&control->lock);
}

static void leave(RmControl *control)
{
    g_mutex_lock(&control->lock);
    control->users--;
    g_cond_broadcast(&control->changed);
    g_mutex_unlock(&control->lock);
}

/* Reason and detail of a failure at the peer, made safe to print. "none" would read as success; whether the
 * guest's place is in doubt, or a guest that moved left something behind, is for each end to find by itself.
 */
static RmReason peer_failure(json_object *message, RmReason otherwise, char **ret_detail)
{
    const char *name = NULL, *detail = NULL;
    RmReason reason;
    if (!rm_json_string_opt(message, "reason", &name, NULL) || name == NULL)
        reason = otherwise;
    else if (!rm_reason_from_name(name, &reason) || reason == RM_REASON_NONE ||
             reason == RM_REASON_DOUBTFUL || reason == RM_REASON_CLEANUP)
        reason = RM_REASON_PROTOCOL;
    rm_json_string_opt(message, "detail", &detail, NULL);
    *ret_detail = rm_printable(detail != NULL ? detail : "no detail given", DETAIL_MAX);
    return reason;
}

static json_object *failure_message(const char *type, RmReason reason, const char *text)
{
    json_object *message = rm_json_message(type);
    g_autofree char *detail = rm_printable(text, DETAIL_MAX);
    rm_json_add_string(message, "reason", rm_reason_name(reason));
    rm_json_add_string(message, "detail", detail);
    return message;
}

static const char *to_text(json_object *message, gsize *ret_length)
{
    return json_object_to_json_string_length(message, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE,
                                             ret_length);
}

#if RM_FAULTS
static const char *type_of(json_object *message)
{
    const char *type = "";
    rm_json_string_opt(message, "type", &type, NULL);
    return type;
}
#endif

/* Takes `message`. */
static gboolean write_message(RmControl *control, json_object *message, GError **error)
{
    rm_autojson owned = message;
    gsize length = 0;
    const char *text = to_text(owned, &length);
    if (length > RM_MESSAGE_MAX)
        return rm_fail(error, RM_REASON_INTERNAL, "a control message of %zu bytes is over the limit of %u",
                       length, RM_MESSAGE_MAX);
    switch (rm_fault_message("send", type_of(owned))) {
    case RM_FAULT_DROP:
        return TRUE;
    case RM_FAULT_SHORT:
        return rm_link_cut(control->link, text, length / 2, error);
    default:
        return rm_link_write(control->link, text, length, error);
    }
}

/* What is taken in changes hands by stealing, never by a second reference: json-c's counts are not atomic
 * unless it was built so, and the reader would drop its own while the receiver uses the message. */
static gboolean take_in_reply(RmControl *control, json_object **message, GError **error)
{
    uint64_t id;
    if (!rm_json_uint(*message, RM_REPLY, &id, error))
        return FALSE;
    g_mutex_lock(&control->lock);
    Pending *pending = g_hash_table_lookup(control->pending, &id);
    gboolean known = pending != NULL && pending->reply == NULL;
    if (known && pending->abandoned) {
        g_hash_table_remove(control->pending, &id);
    } else if (known) {
        pending->reply = g_steal_pointer(message);
        g_cond_broadcast(&control->changed);
    }
    g_mutex_unlock(&control->lock);
    return known || rm_fail(error, RM_REASON_PROTOCOL,
                            "reply to %" G_GUINT64_FORMAT ", which was not asked or is answered", id);
}

static gboolean take_in_request(RmControl *control, json_object **message, gsize weight, GError **error)
{
    uint64_t id = 1;
    if (!rm_json_uint_opt(*message, "id", &id, error))
        return FALSE;
    if (id == 0)
        return rm_fail(error, RM_REASON_PROTOCOL, "a request's id can't be 0");
    g_mutex_lock(&control->lock);
    guint count = g_queue_get_length(&control->incoming);
    gboolean room =
        count == 0 || (count < QUEUE_MESSAGES && control->incoming_weight + weight <= QUEUE_WEIGHT_MAX);
    if (room) {
        Incoming *incoming = g_new(Incoming, 1);
        *incoming = (Incoming){.message = g_steal_pointer(message), .weight = weight};
        g_queue_push_tail(&control->incoming, incoming);
        control->incoming_weight += weight;
        g_cond_broadcast(&control->changed);
    }
    g_mutex_unlock(&control->lock);
    return room || rm_fail(error, RM_REASON_PROTOCOL, "too many requests at once: %u wait already", count);
}

/* A message that ends the channel. FALSE if this one does not. */
static gboolean take_in_end(RmControl *control, json_object *message, const char *type)
{
    gboolean cancel = strcmp(type, "cancel") == 0;
    gboolean failure = strcmp(type, "error") == 0 && !json_object_object_get_ex(message, "id", NULL);
    if (!cancel && !failure)
        return FALSE;
    if (cancel && rm_link_expects_end(control->link)) /* too late to cancel what is done */
        return TRUE;
    g_autofree char *detail = NULL;
    RmReason reason = peer_failure(message, cancel ? RM_REASON_CANCELLED : RM_REASON_PROTOCOL, &detail);
    g_autofree char *text = g_strconcat(reason == RM_REASON_CANCELLED ? "cancelled: " : "", detail, NULL);
    rm_link_break(control->link, reason, text);
    return TRUE;
}

static gsize weigh(const char *line, gsize length)
{
    gsize weight = length;
    for (gsize i = 0; i < length; i++) {
        if (line[i] == '{' || line[i] == '[')
            weight += CONTAINER_WEIGHT;
        else if (line[i] == ',')
            weight += VALUE_WEIGHT;
    }
    return weight;
}

/* The form of all types, whether known or of a later version: so they can be quoted in messages as they are.
 */
static gboolean check_type(const char *type, GError **error)
{
    gsize length = strlen(type);
    if (length > 0 && length <= TYPE_MAX && strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789-") == length)
        return TRUE;
    return rm_fail(error, RM_REASON_PROTOCOL, "malformed message type of %zu bytes", length);
}

/* Before anything is made of it. */
static gboolean check_weight(RmControl *control, gsize weight, GError **error)
{
    g_mutex_lock(&control->lock);
    if (control->stranger)
        control->stranger_weight += weight;
    gboolean too_much = control->stranger && control->stranger_weight > STRANGER_WEIGHT_MAX;
    g_mutex_unlock(&control->lock);
    if (weight > MESSAGE_WEIGHT_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "message with too many members");
    return !too_much || rm_fail(error, RM_REASON_PROTOCOL, "too much said before a hello was accepted");
}

static gboolean take_in(RmControl *control, const char *line, gsize length, GError **error)
{
    gsize weight = weigh(line, length);
    if (!check_weight(control, weight, error))
        return FALSE;
    rm_autojson message = rm_json_parse(line, length, RM_MESSAGE_DEPTH, error);
    const char *type = NULL;
    if (message == NULL || !rm_json_string(message, "type", &type, error) || !check_type(type, error))
        return FALSE;
    RmFaultFate fate = rm_fault_message("receive", type);
    if (fate == RM_FAULT_DROP)
        return TRUE;
    if (fate == RM_FAULT_SHORT)
        return rm_link_cut(control->link, NULL, 0, error);
    if (json_object_object_get_ex(message, RM_REPLY, NULL))
        return take_in_reply(control, &message, error);
    if (strcmp(type, "keep-alive") == 0 || take_in_end(control, message, type))
        return TRUE;
    return take_in_request(control, &message, weight, error);
}

/* --- waiting --- */

typedef gboolean (*Take)(RmControl *control, uint64_t id, json_object **ret_message);

static void wake_all(void *opaque)
{
    RmControl *control = opaque;
    g_mutex_lock(&control->lock);
    g_cond_broadcast(&control->changed);
    g_mutex_unlock(&control->lock);
}

static void on_cancelled(GCancellable *cancellable, gpointer data)
{
    wake_all(data);
}

/* Waits until `take` succeeds, which runs under the lock; what has arrived counts even if the channel broke.
 */
static gboolean wait_for(RmControl *control, Take take, uint64_t id, unsigned timeout_ms,
                         GCancellable *cancellable, json_object **ret_message, GError **error)
{
    gulong handler = 0;
    /* Calls back at once if it is cancelled already, hence before the lock is taken. */
    if (cancellable != NULL)
        handler = g_cancellable_connect(cancellable, G_CALLBACK(on_cancelled), control, NULL);
    gint64 until = timeout_ms > 0 ? g_get_monotonic_time() + (gint64)timeout_ms * 1000 : G_MAXINT64;
    gboolean ok = FALSE;

    g_mutex_lock(&control->lock);
    while (TRUE) {
        if (take(control, id, ret_message)) {
            ok = TRUE;
            break;
        }
        if (rm_link_state(control->link) != RM_LINK_ALIVE) {
            rm_link_fail_over(control->link, error);
            break;
        }
        if (g_cancellable_is_cancelled(cancellable)) {
            rm_fail(error, RM_REASON_CANCELLED, "cancelled");
            break;
        }
        if (g_get_monotonic_time() >= until) {
            g_autofree char *name = rm_link_dup_peer_name(control->link);
            rm_fail(error, RM_REASON_PEER_TIMEOUT, "%s: no %s within %u ms", name,
                    id != 0 ? "answer" : "request", timeout_ms);
            break;
        }
        if (timeout_ms > 0)
            g_cond_wait_until(&control->changed, &control->lock, until);
        else
            g_cond_wait(&control->changed, &control->lock);
    }
    g_mutex_unlock(&control->lock);
    if (handler != 0)
        g_cancellable_disconnect(cancellable, handler);
    return ok;
}

static gboolean take_reply(RmControl *control, uint64_t id, json_object **ret_message)
{
    Pending *pending = g_hash_table_lookup(control->pending, &id);
    if (pending == NULL || pending->reply == NULL)
        return FALSE;
    *ret_message = g_steal_pointer(&pending->reply);
    g_hash_table_remove(control->pending, &id);
    return TRUE;
}

static gboolean peek_reply(RmControl *control, uint64_t id, json_object **ret_message)
{
    Pending *pending = g_hash_table_lookup(control->pending, &id);
    return pending == NULL || pending->reply != NULL || rm_link_state(control->link) != RM_LINK_ALIVE;
}

static gboolean take_request(RmControl *control, uint64_t id, json_object **ret_message)
{
    if (rm_link_state(control->link) == RM_LINK_BROKEN)
        return FALSE;
    Incoming *incoming = g_queue_pop_head(&control->incoming);
    if (incoming == NULL)
        return FALSE;
    control->incoming_weight -= incoming->weight;
    *ret_message = incoming->message;
    g_free(incoming);
    return TRUE;
}

/* --- the interface --- */

static char *say_farewell(const GError *error)
{
    rm_autojson message = failure_message("error", rm_error_reason(error), error->message);
    gsize length = 0;
    const char *text = to_text(message, &length);
    switch (rm_fault_message("send", "error")) {
    case RM_FAULT_DROP:
        return NULL;
    case RM_FAULT_SHORT:
        return g_strndup(text, length / 2);
    default:
        return g_strdup(text);
    }
}

static gboolean take_line(void *opaque, const char *line, gsize length, GError **error)
{
    return take_in(opaque, line, length, error);
}

RmControl *rm_control_new(GIOStream *stream, const char *first, const RmControlParams *params)
{
    RmControl *control = g_new0(RmControl, 1);
    g_mutex_init(&control->lock);
    g_cond_init(&control->changed);
    control->pending = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, pending_free);
    g_queue_init(&control->incoming);
    control->next_id = 1;
    control->stranger = params->stranger;
    const RmLinkOps ops = {
        .keepalive = "{\"type\":\"keep-alive\"}",
        .keepalive_ms = params->keepalive_ms > 0 ? params->keepalive_ms : KEEPALIVE_MS,
        .timeout_ms = params->timeout_ms > 0 ? params->timeout_ms : TIMEOUT_MS,
        .line_max = RM_MESSAGE_MAX,
        .take_line = take_line,
        .farewell = say_farewell,
        .over = wake_all,
    };
    control->link = rm_link_new(stream, first, &ops, control);
    rm_link_start(control->link);
    return control;
}

void rm_control_free(RmControl *control)
{
    if (control == NULL)
        return;
    rm_link_close(control->link);
    g_mutex_lock(&control->lock);
    while (control->users > 0)
        g_cond_wait(&control->changed, &control->lock);
    g_mutex_unlock(&control->lock);
    rm_link_free(control->link);
    g_hash_table_unref(control->pending);
    g_queue_clear_full(&control->incoming, incoming_free);
    g_cond_clear(&control->changed);
    g_mutex_clear(&control->lock);
    g_free(control);
}

uint64_t rm_control_begin(RmControl *control, json_object *message, GError **error)
{
    enter(control);
    g_mutex_lock(&control->lock);
    uint64_t id = control->next_id++;
    g_hash_table_insert(control->pending, g_memdup2(&id, sizeof(id)), g_new0(Pending, 1));
    g_mutex_unlock(&control->lock);

    rm_json_add_uint(message, "id", id);
    gboolean ok = write_message(control, message, error);
    if (!ok) {
        g_mutex_lock(&control->lock);
        g_hash_table_remove(control->pending, &id);
        g_mutex_unlock(&control->lock);
    }
    leave(control);
    return ok ? id : 0;
}

/* A reply that says no becomes an error. */
static gboolean check_reply(RmControl *control, json_object *reply, GError **error)
{
    const char *type = "";
    rm_json_string_opt(reply, "type", &type, NULL);
    if (strcmp(type, "error") != 0 && strcmp(type, "refuse") != 0 && strcmp(type, "failed") != 0)
        return TRUE;
    g_autofree char *detail = NULL;
    RmReason reason = peer_failure(reply, RM_REASON_PROTOCOL, &detail);
    g_autofree char *name = rm_link_dup_peer_name(control->link);
    return rm_fail(error, reason, "%s: %s", name, detail);
}

gboolean rm_control_wait(RmControl *control, uint64_t id, unsigned timeout_ms)
{
    g_autoptr(GError) ignored = NULL;
    enter(control);
    gboolean ok = wait_for(control, peek_reply, id, timeout_ms, NULL, NULL, &ignored);
    leave(control);
    return ok;
}

gboolean rm_control_finish(RmControl *control, uint64_t id, unsigned timeout_ms, GCancellable *cancellable,
                           json_object **ret_reply, GError **error)
{
    g_return_val_if_fail(id != 0, FALSE);
    enter(control);
    rm_autojson reply = NULL;
    gboolean ok = wait_for(control, take_reply, id, timeout_ms, cancellable, &reply, error);
    if (ok) {
        ok = check_reply(control, reply, error);
    } else {
        g_mutex_lock(&control->lock);
        Pending *pending = g_hash_table_lookup(control->pending, &id);
        if (pending != NULL && pending->reply != NULL)
            g_hash_table_remove(control->pending, &id); /* came this moment: too late */
        else if (pending != NULL)
            pending->abandoned = TRUE;
        g_mutex_unlock(&control->lock);
    }
    if (ok && ret_reply != NULL)
        *ret_reply = g_steal_pointer(&reply);
    leave(control);
    return ok;
}

gboolean rm_control_request(RmControl *control, json_object *message, unsigned timeout_ms,
                            GCancellable *cancellable, json_object **ret_reply, GError **error)
{
    uint64_t id = rm_control_begin(control, message, error);
    return id != 0 && rm_control_finish(control, id, timeout_ms, cancellable, ret_reply, error);
}

gboolean rm_control_send(RmControl *control, json_object *message, GError **error)
{
    enter(control);
    gboolean ok = write_message(control, message, error);
    leave(control);
    return ok;
}

gboolean rm_control_receive(RmControl *control, unsigned timeout_ms, GCancellable *cancellable,
                            json_object **ret_message, GError **error)
{
    enter(control);
    gboolean ok = wait_for(control, take_request, 0, timeout_ms, cancellable, ret_message, error);
    leave(control);
    return ok;
}

gboolean rm_control_reply(RmControl *control, json_object *request, json_object *reply, GError **error)
{
    uint64_t id = 0;
    if (!rm_json_uint_opt(request, "id", &id, error) || id == 0) {
        json_object_put(reply);
        return id == 0; /* a message without id wants no answer */
    }
    rm_json_add_uint(reply, RM_REPLY, id);
    enter(control);
    gboolean ok = write_message(control, reply, error);
    leave(control);
    return ok;
}

gboolean rm_control_reply_failure(RmControl *control, json_object *request, const char *type,
                                  const GError *problem, GError **error)
{
    return rm_control_reply(control, request,
                            failure_message(type, rm_error_reason(problem), problem->message), error);
}

void rm_control_trust(RmControl *control)
{
    g_mutex_lock(&control->lock);
    control->stranger = FALSE;
    g_mutex_unlock(&control->lock);
}

void rm_control_set_peer_name(RmControl *control, const char *name)
{
    rm_link_set_peer_name(control->link, name);
}

GCancellable *rm_control_lost(RmControl *control)
{
    return rm_link_lost(control->link);
}

gboolean rm_control_error(RmControl *control, GError **error)
{
    return rm_link_check(control->link, error);
}

void rm_control_expect_end(RmControl *control)
{
    rm_link_expect_end(control->link);
}
