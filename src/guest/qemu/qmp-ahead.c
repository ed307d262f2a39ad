/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Commands sent ahead of the call that runs them.
 *
 * QEMU answers in the order in which it was asked, so the reply of one that is not the next has others before
 * it that nobody waits for: whoever runs something else has changed his mind, and everything is forgotten.
 */
#include "guest/qemu/qmp-ahead.h"

#include <string.h>

typedef struct {
    char *text; /* of the command, with its arguments */
    guint64 id;
} Sent;

static void sent_free(gpointer data)
{
    g_free(((Sent *)data)->text);
    g_free(data);
}

void rm_qmp_ahead_add(RmQmpAhead *ahead, const char *text, guint64 id)
{
    Sent *sent = g_new0(Sent, 1);
    sent->text = g_strdup(text);
    sent->id = id;
    g_queue_push_tail(&ahead->sent, sent);
}

guint64 rm_qmp_ahead_take(RmQmpAhead *ahead, const char *text)
{
    Sent *first = g_queue_peek_head(&ahead->sent);
    if (first == NULL || strcmp(first->text, text) != 0) {
        rm_qmp_ahead_forget(ahead);
        return 0;
    }
    guint64 id = first->id;
    sent_free(g_queue_pop_head(&ahead->sent));
    return id;
}

void rm_qmp_ahead_forget(RmQmpAhead *ahead)
{
    g_queue_clear_full(&ahead->sent, sent_free);
}
