/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A synchronous QMP client: one command at a time, each with an id, a time-out and a cancellable.
 *
 * A QMP monitor serves one client at a time; the next one sits in the listen backlog without a greeting,
 * which is how "busy" is told from "not there". One thread uses a client.
 */
#pragma once

#include <gio/gio.h>
#include <json-c/json.h>
#include <sys/types.h>

#define RM_QMP_LINE_MAX (64u << 20) /* bytes; a guest with thousands of block nodes answers in a few MiB */
#define RM_QMP_DEPTH 64             /* nesting of a reply */
#define RM_QMP_EVENTS_MAX 16384     /* waiting to be taken by rm_qmp_next_event() */

#define RM_QEMU_VERSION(major, minor) ((unsigned)(major)*1000 + (unsigned)(minor))

typedef struct RmQmp RmQmp;

/* Connects, waits for the greeting and leaves capability negotiation. `timeout_ms` bounds this, and each
 * later command. Reasons qmp-unreachable, qmp-busy, cancelled. */
RmQmp *rm_qmp_new(const char *path, unsigned timeout_ms, GCancellable *cancellable, GError **error);
/* The same over a connection that nobody has spoken on yet; takes `fd`. */
RmQmp *rm_qmp_greet(int fd, const char *path, unsigned timeout_ms, GError **error);
/* Takes over a connection to `path` that another process had opened, and may have left anywhere: in the
 * middle of a command or of reading an answer, with events unread, not even negotiated. Takes `fd`. What had
 * come until then is dropped. Reasons as rm_qmp_run(). */
RmQmp *rm_qmp_adopt(int fd, const char *path, unsigned timeout_ms, GError **error);
void rm_qmp_free(RmQmp *qmp); /* ends the connection, for whoever else holds its descriptor, too */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmQmp, rm_qmp_free)

/* Connects again if the connection broke on our side (a reply that was no QMP); no-op on a sound one. Fails
 * with guest-gone if QEMU ended. */
gboolean rm_qmp_reconnect(RmQmp *qmp, GError **error);

/* Facts from the greeting and the socket. */
unsigned rm_qmp_version(const RmQmp *qmp);         /* RM_QEMU_VERSION(major, minor) */
const char *rm_qmp_version_text(const RmQmp *qmp); /* "7.2.22" */
pid_t rm_qmp_peer(const RmQmp *qmp);               /* see rm_qmp_socket_peer() */
unsigned rm_qmp_timeout_ms(const RmQmp *qmp);
GCancellable *rm_qmp_cancellable(const RmQmp *qmp); /* NULL while shielded */
int rm_qmp_fd(const RmQmp *qmp);                    /* to be inherited; -1 while there is none */

/* Whether this QEMU has `command` (query-commands, asked once). Reasons as rm_qmp_run(). */
gboolean rm_qmp_has(RmQmp *qmp, const char *command, gboolean *ret_has, GError **error);

/* Runs `command` with `arguments` (ownership taken; NULL for none) and waits for its reply, an object whose
 * member "return" is QEMU's answer; ret_reply may be NULL. Reasons: qmp-error with QEMU's words,
 * qmp-unreachable (no answer in time), guest-gone (QEMU ended), cancelled, protocol. After a time-out or
 * cancellation the late reply is skipped. */
gboolean rm_qmp_run(RmQmp *qmp, const char *command, json_object *arguments, json_object **ret_reply,
                    GError **error);

/* Sends a command, whose reply the rm_qmp_run() of the same command takes: several of them are answered in
 * the time of one. `arguments` is JSON as rm_qmp_run() would send it, or NULL. They must be run in the order
 * in which they were sent, and before anything else: else they are simply sent again. So not what does harm
 * if done twice. */
void rm_qmp_ahead(RmQmp *qmp, const char *command, const char *arguments);

/* rm_qmp_run() with a descriptor passed along, for getfd. `fd` stays the caller's. */
gboolean rm_qmp_run_with_fd(RmQmp *qmp, int fd, const char *command, json_object *arguments, GError **error);

/* Takes in what QEMU has sent, without blocking. */
gboolean rm_qmp_receive(RmQmp *qmp, GError **error);
/* The oldest event not taken yet (caller puts), NULL if there is none. */
json_object *rm_qmp_next_event(RmQmp *qmp);
/* The nth of them, 0 being the oldest, which stays there; NULL if there are no more. */
json_object *rm_qmp_peek_event(RmQmp *qmp, guint n);

/* While on, the cancellable is ignored: for roll-back, which must run to its end. */
void rm_qmp_shield(RmQmp *qmp, gboolean on);
/* Waits until QEMU has sent something, which is taken in then, for at most `ms`. Reasons cancelled,
 * guest-gone, qmp-unreachable. */
gboolean rm_qmp_wait(RmQmp *qmp, unsigned ms, GError **error);
