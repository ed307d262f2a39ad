/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Output that nobody reads holds nobody up. */
#include "source/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_stuck_reader(void)
{
    int fds[2];
    g_assert_cmpint(pipe(fds), ==, 0);
    fcntl(fds[1], F_SETPIPE_SZ, 4096);
    FILE *stream = fdopen(fds[1], "w");
    RmOutput *output = rm_output_new();
    /* far more than the pipe and the queue hold; returns because print() never waits */
    for (int i = 0; i < 20000; i++)
        rm_output_print(output, stream, g_strnfill(100, 'x'));
    close(fds[0]); /* the reader goes away: what is left is lost, and the thread ends */
    rm_output_free(output);
    fclose(stream);
}

static gpointer read_all(gpointer data)
{
    GString *text = g_string_new(NULL);
    char buffer[4096];
    for (ssize_t n; (n = read(GPOINTER_TO_INT(data), buffer, sizeof buffer)) > 0;)
        g_string_append_len(text, buffer, n);
    return text;
}

/* A reader that comes back after a long time has missed something, but not the last word. */
static void test_last_word(void)
{
    int fds[2];
    g_assert_cmpint(pipe(fds), ==, 0);
    fcntl(fds[1], F_SETPIPE_SZ, 4096);
    FILE *stream = fdopen(fds[1], "w");
    RmOutput *output = rm_output_new();
    for (int i = 0; i < 20000; i++)
        rm_output_print(output, stream, g_strnfill(100, 'x'));
    GThread *reader = g_thread_new("reader", read_all, GINT_TO_POINTER(fds[0]));
    rm_output_drain(output);
    rm_output_print(output, stream, g_strdup("done"));
    rm_output_free(output);
    fclose(stream);
    GString *text = g_thread_join(reader);
    close(fds[0]);
    g_assert_cmpuint(text->len, <, 20000 * 100);
    g_assert_true(g_str_has_suffix(text->str, "xdone"));
    g_string_free(text, TRUE);
}

static void test_order(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    RmOutput *output = rm_output_new();
    for (int i = 0; i < 1000; i++)
        rm_output_print(output, stream, g_strdup_printf("%d\n", i));
    rm_output_free(output);
    fclose(stream);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_assert_cmpuint(g_strv_length(lines), ==, 1001);
    for (int i = 0; i < 1000; i++)
        g_assert_cmpint(atoi(lines[i]), ==, i);
    free(text);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    signal(SIGPIPE, SIG_IGN);
    g_test_add_func("/output/stuck-reader", test_stuck_reader);
    g_test_add_func("/output/last-word", test_last_word);
    g_test_add_func("/output/order", test_order);
    return g_test_run();
}
