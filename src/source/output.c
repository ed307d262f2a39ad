/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The output thread. */
#include "source/output.h"

#define QUEUE_MAX 4096

typedef struct {
    FILE *stream; /* NULL: end */
    char *text;
} Item;

struct RmOutput {
    GAsyncQueue *queue; /* of Item */
    GThread *thread;
};

static gpointer run(gpointer data)
{
    RmOutput *output = data;
    for (;;) {
        g_autofree Item *item = g_async_queue_pop(output->queue);
        if (item->stream == NULL)
            return NULL;
        fputs(item->text, item->stream);
        fflush(item->stream);
        g_free(item->text);
    }
}

RmOutput *rm_output_new(void)
{
    RmOutput *output = g_new0(RmOutput, 1);
    output->queue = g_async_queue_new();
    output->thread = g_thread_new("output", run, output);
    return output;
}

static void end(RmOutput *output)
{
    g_async_queue_push(output->queue, g_new0(Item, 1));
    g_thread_join(output->thread);
}

void rm_output_drain(RmOutput *output)
{
    end(output);
    output->thread = g_thread_new("output", run, output);
}

void rm_output_free(RmOutput *output)
{
    if (output == NULL)
        return;
    end(output);
    g_async_queue_unref(output->queue);
    g_free(output);
}

void rm_output_print(RmOutput *output, FILE *stream, char *text)
{
    if (g_async_queue_length(output->queue) >= QUEUE_MAX) {
        g_free(text);
        return;
    }
    Item *item = g_new(Item, 1);
    *item = (Item){stream, text};
    g_async_queue_push(output->queue, item);
}
