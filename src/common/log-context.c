/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Contexts of threads. */
#include "common/log-context.h"

struct RmLogContext {
    gint refs; /* atomic */
    GMutex lock;
    char *session, *guest, *peer; /* lock */
};

static RmLogContext *of_process; /* set before threads are started */

static void unref(gpointer context)
{
    rm_log_context_unref(context);
}

static GPrivate of_thread = G_PRIVATE_INIT(unref);

static RmLogContext *context_new(void)
{
    RmLogContext *context = g_new0(RmLogContext, 1);
    context->refs = 1;
    g_mutex_init(&context->lock);
    return context;
}

RmLogContext *rm_log_context_ref(RmLogContext *context)
{
    if (context != NULL)
        g_atomic_int_inc(&context->refs);
    return context;
}

void rm_log_context_unref(RmLogContext *context)
{
    if (context == NULL || !g_atomic_int_dec_and_test(&context->refs))
        return;
    g_free(context->session);
    g_free(context->guest);
    g_free(context->peer);
    g_mutex_clear(&context->lock);
    g_free(context);
}

RmLogContext *rm_log_context(void)
{
    RmLogContext *context = g_private_get(&of_thread);
    return context != NULL ? context : of_process;
}

static void replace(char **text, const char *by)
{
    if (by == NULL)
        return;
    g_free(*text);
    *text = g_strdup(by);
}

static void set(RmLogContext *context, const char *session, const char *guest, const char *peer)
{
    g_mutex_lock(&context->lock);
    replace(&context->session, session);
    replace(&context->guest, guest);
    replace(&context->peer, peer);
    g_mutex_unlock(&context->lock);
}

void rm_log_context_set(const char *session, const char *guest, const char *peer)
{
    if (g_private_get(&of_thread) == NULL)
        g_private_set(&of_thread, context_new());
    set(g_private_get(&of_thread), session, guest, peer);
}

void rm_log_context_set_process(const char *session, const char *guest, const char *peer)
{
    if (of_process == NULL)
        of_process = context_new();
    set(of_process, session, guest, peer);
}

void rm_log_context_enter(RmLogContext *context)
{
    g_private_replace(&of_thread, rm_log_context_ref(context));
}

typedef struct {
    GThreadFunc func;
    gpointer data;
    RmLogContext *context;
} Start;

static gpointer thread_main(gpointer data)
{
    Start start = *(Start *)data;
    g_free(data);
    g_private_set(&of_thread, start.context);
    return start.func(start.data);
}

static Start *start_new(GThreadFunc func, gpointer data)
{
    Start *start = g_new(Start, 1);
    *start = (Start){func, data, rm_log_context_ref(g_private_get(&of_thread))};
    return start;
}

GThread *rm_log_thread_new(const char *name, GThreadFunc func, gpointer data)
{
    return g_thread_new(name, thread_main, start_new(func, data));
}

GThread *rm_log_thread_try_new(const char *name, GThreadFunc func, gpointer data, GError **error)
{
    Start *start = start_new(func, data);
    GThread *thread = g_thread_try_new(name, thread_main, start, error);
    if (thread == NULL) {
        rm_log_context_unref(start->context);
        g_free(start);
    }
    return thread;
}

void rm_log_context_get(char **ret_session, char **ret_guest, char **ret_peer)
{
    RmLogContext *context = rm_log_context();
    *ret_session = *ret_guest = *ret_peer = NULL;
    if (context == NULL)
        return;
    g_mutex_lock(&context->lock);
    *ret_session = g_strdup(context->session);
    *ret_guest = g_strdup(context->guest);
    *ret_peer = g_strdup(context->peer);
    g_mutex_unlock(&context->lock);
}
