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
    g_test_add_func("/output/order", test_order);
    return g_test_run();
}
