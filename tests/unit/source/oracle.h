/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A daemon that is asked after a session, again and again, and always says the same. */
#pragma once

#include "control/channel.h"
#include "control/json.h"
#include "control/message.h"

#include "../handover/state-folder.h"

typedef struct {
    GSocketListener *listener;
    GCancellable *end;
    GThread *thread;
    uint16_t port;
    const char *fate; /* NULL: closes the connection instead of answering */
    gboolean done;
    gint asked; /* atomic */
} Oracle;

static inline void oracle_answer(Oracle *oracle, GSocketConnection *connection)
{
    const char *session, *token;
    json_object *message = NULL;
    g_autoptr(RmControl) control = rm_control_new(G_IO_STREAM(connection), NULL, &(RmControlParams){0});
    g_assert_true(rm_control_receive(control, 0, NULL, &message, NULL));
    g_assert_cmpstr(rm_message_type(message), ==, RM_MSG_QUERY);
    g_assert_true(rm_json_string(message, "session", &session, NULL));
    g_assert_cmpstr(session, ==, SESSION);
    g_assert_true(rm_json_string(message, "token", &token, NULL));
    g_assert_cmpstr(token, ==, TOKEN);
    g_atomic_int_inc(&oracle->asked);
    if (oracle->fate != NULL) {
        json_object *reply = rm_json_message(RM_MSG_FATE);
        rm_json_add_string(reply, "fate", oracle->fate);
        rm_json_add_bool(reply, "done", oracle->done);
        rm_control_reply(control, message, reply, NULL);
    }
    json_object_put(message);
}

static inline gpointer oracle_main(gpointer data)
{
    Oracle *oracle = data;
    for (;;) {
        g_autoptr(GSocketConnection) connection =
            g_socket_listener_accept(oracle->listener, NULL, oracle->end, NULL);
        if (connection == NULL)
            return NULL;
        oracle_answer(oracle, connection);
    }
}

static inline Oracle *oracle_new(const char *fate, gboolean done)
{
    Oracle *oracle = g_new0(Oracle, 1);
    oracle->fate = fate;
    oracle->done = done;
    oracle->end = g_cancellable_new();
    oracle->listener = g_socket_listener_new();
    oracle->port = g_socket_listener_add_any_inet_port(oracle->listener, NULL, NULL);
    oracle->thread = g_thread_new("oracle", oracle_main, oracle);
    return oracle;
}

static inline void oracle_free(Oracle *oracle)
{
    g_cancellable_cancel(oracle->end);
    g_thread_join(oracle->thread);
    g_object_unref(oracle->end);
    g_object_unref(oracle->listener);
    g_free(oracle);
}
