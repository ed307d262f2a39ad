/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whose a log line is: the session, its guest and the other end, which become fields in the journal.
 *
 * A context belongs to a thread, and to the threads that it starts by rm_log_thread_new(): what is learned
 * later (a connection's session, from its `hello`) holds for all of them. A thread without one has the
 * process's, if there is one: a process of one session (rdmamig, a guardian) needs no other.
 */
#pragma once

#include <glib.h>

typedef struct RmLogContext RmLogContext; /* thread-safe */

RmLogContext *rm_log_context_ref(RmLogContext *context); /* NULL is fine in each */
void rm_log_context_unref(RmLogContext *context);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmLogContext, rm_log_context_unref)

/* The calling thread's, or the process's, or NULL. Borrowed. */
RmLogContext *rm_log_context(void);

/* Sets what is not NULL, in the calling thread's context, which is made if it has none of its own. */
void rm_log_context_set(const char *session, const char *guest, const char *peer);
/* The same for the process's; the first time before the first thread. */
void rm_log_context_set_process(const char *session, const char *guest, const char *peer);

/* Makes `context` the calling thread's, until the next call or the thread's end: for threads that work for
 * one session after the other. NULL: none of its own. */
void rm_log_context_enter(RmLogContext *context);

/* g_thread_new() and g_thread_try_new(), for a thread that works for whom the calling one does. */
GThread *rm_log_thread_new(const char *name, GThreadFunc func, gpointer data);
GThread *rm_log_thread_try_new(const char *name, GThreadFunc func, gpointer data, GError **error);

/* What is known; each is a copy, or NULL. Caller frees. */
void rm_log_context_get(char **ret_session, char **ret_guest, char **ret_peer);
