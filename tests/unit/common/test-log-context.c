/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whose a line is: in a thread, in those that it starts, in one that is lent, and in a process of one
 * session. */
#include "common/log-context.h"

#include <string.h>

static void check(const char *session, const char *guest, const char *peer)
{
    g_autofree char *has_session = NULL, *has_guest = NULL, *has_peer = NULL;
    rm_log_context_get(&has_session, &has_guest, &has_peer);
    g_assert_cmpstr(has_session, ==, session);
    g_assert_cmpstr(has_guest, ==, guest);
    g_assert_cmpstr(has_peer, ==, peer);
}

typedef struct {
    GMutex lock;
    GCond changed;
    unsigned step;
} Steps;

static void step(Steps *steps, unsigned to)
{
    g_mutex_lock(&steps->lock);
    steps->step = to;
    g_cond_broadcast(&steps->changed);
    g_mutex_unlock(&steps->lock);
}

static void wait_for(Steps *steps, unsigned until)
{
    g_mutex_lock(&steps->lock);
    while (steps->step < until)
        g_cond_wait(&steps->changed, &steps->lock);
    g_mutex_unlock(&steps->lock);
}

static gpointer child(gpointer data)
{
    Steps *steps = data;
    check(NULL, NULL, "10.0.0.7:4711");
    step(steps, 1);
    wait_for(steps, 2);
    check("one", "web1", "10.0.0.7:4711"); /* learned after it had been started */
    return NULL;
}

static gpointer connection(gpointer data)
{
    Steps *steps = data;
    check(NULL, NULL, NULL);
    rm_log_context_set(NULL, NULL, "10.0.0.7:4711");
    GThread *thread = rm_log_thread_new("child", child, steps);
    wait_for(steps, 1);
    rm_log_context_set("one", "web1", NULL);
    step(steps, 2);
    g_thread_join(thread);
    check("one", "web1", "10.0.0.7:4711");
    return NULL;
}

static void test_threads(void)
{
    Steps steps = {0};
    g_thread_join(g_thread_new("connection", connection, &steps));
    check(NULL, NULL, NULL); /* is nobody else's */
}

static gpointer bare(gpointer data)
{
    check(NULL, NULL, NULL);
    return NULL;
}

static gpointer lent(gpointer data)
{
    RmLogContext *context = data;
    for (unsigned i = 0; i < 2; i++) {
        check(NULL, NULL, NULL);
        rm_log_context_enter(context);
        check("two", NULL, NULL);
        rm_log_context_enter(NULL);
    }
    rm_log_context_enter(context); /* the thread's end gives it back */
    return NULL;
}

static gpointer lender(gpointer data)
{
    rm_log_context_set("two", NULL, NULL);
    g_autoptr(RmLogContext) context = rm_log_context_ref(rm_log_context());
    g_thread_join(g_thread_new("lent", lent, context));
    g_thread_join(g_thread_new("bare", bare, NULL)); /* not by rm_log_thread_new() */
    return NULL;
}

static void test_lent(void)
{
    g_thread_join(g_thread_new("lender", lender, NULL));
}

static gpointer of_process(gpointer data)
{
    check("three", "web2", "host:1");
    rm_log_context_set("four", NULL, NULL);
    check("four", NULL, NULL);
    rm_log_context_enter(NULL);
    check("three", "web2", "host:1");
    return NULL;
}

/* Last: it stays. */
static void test_process(void)
{
    rm_log_context_set_process("three", NULL, "host:1");
    rm_log_context_set_process(NULL, "web2", NULL);
    g_thread_join(g_thread_new("any", of_process, NULL));
    check("three", "web2", "host:1");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log-context/threads", test_threads);
    g_test_add_func("/log-context/lent", test_lent);
    g_test_add_func("/log-context/process", test_process);
    return g_test_run();
}
