/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Log lines: which are written, what they look like, and that no reader can hold up the writer. */
#include "common/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each child is this program again, told by its arguments what to log; its stderr is the parent's pipe. */
static void talk(int verbosity)
{
    rm_log_init("tester", verbosity);
    g_debug("a debug line");
    g_info("an info line");
    g_message("a message line\nwith \x1b[2J in it");
    g_warning("a warning line");
    g_log("Other-Library", G_LOG_LEVEL_DEBUG, "chatter");
}

static char *run_talker(const char *verbosity)
{
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    char *argv[] = {self, (char *)"--talk", (char *)verbosity, NULL};
    char *output = NULL;
    int status = -1;
    g_autoptr(GError) error = NULL;
    g_spawn_sync(NULL, argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, &output, &status, &error);
    g_assert_no_error(error);
    g_assert_cmpint(status, ==, 0);
    return output;
}

static void test_levels(void)
{
    static const char *const expected[] = {
        "tester: warning: a warning line\n",
        "tester: a message line\\nwith \\x1b[2J in it\ntester: warning: a warning line\n",
        "tester: an info line\ntester: a message line\\nwith \\x1b[2J in it\ntester: warning: a warning "
        "line\n",
        "tester: debug: a debug line\ntester: an info line\ntester: a message line\\nwith \\x1b[2J in it\n"
        "tester: warning: a warning line\n",
    };
    for (int verbosity = -1; verbosity <= 2; verbosity++) {
        g_autofree char *text = g_strdup_printf("%d", verbosity);
        g_autofree char *output = run_talker(text);
        g_assert_cmpstr(output, ==, expected[verbosity + 1]);
    }
}

/* In a child: stderr is a pipe that nobody reads, then one whose reader is gone, then a full disk. */
static int flood(void)
{
    rm_log_init("tester", 0);
    int pipes[2];
    if (pipe(pipes) != 0)
        return 2;
    fcntl(pipes[1], F_SETPIPE_SZ, 4096);
    dup2(pipes[1], STDERR_FILENO);
    close(pipes[1]);
    g_autofree char *longest = g_strnfill(100000, 'x');
    g_message("%s", longest);
    char buffer[8192];
    ssize_t got = read(pipes[0], buffer, sizeof(buffer));
    if (got != 4096 || buffer[4095] != '\n')
        return 3;
    for (int i = 0; i < 5; i++)
        g_message("%s", longest);
    if (read(pipes[0], buffer, sizeof(buffer)) != 4096)
        return 4;
    g_message("after");
    got = read(pipes[0], buffer, sizeof(buffer) - 1);
    buffer[got > 0 ? got : 0] = '\0';
    if (strcmp(buffer, "tester: warning: 4 log lines were lost\n") == 0) {
        /* a pipe of one page may take one line at a time */
    } else if (strcmp(buffer, "tester: warning: 4 log lines were lost\ntester: after\n") != 0) {
        return 5;
    }
    close(pipes[0]);
    g_message("nobody there");
    int full = open("/dev/full", O_WRONLY);
    if (full < 0)
        return 6;
    dup2(full, STDERR_FILENO);
    g_message("no space");
    return 0;
}

static void test_no_reader(void)
{
    g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
    char *argv[] = {self, (char *)"--flood", NULL};
    int status = -1;
    g_autoptr(GError) error = NULL;
    g_spawn_sync(NULL, argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL | G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, NULL,
                 NULL, &status, &error);
    g_assert_no_error(error);
    g_assert_cmpint(status, ==, 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--talk") == 0) {
        talk(atoi(argv[2]));
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--flood") == 0)
        return flood();
    g_unsetenv("G_MESSAGES_DEBUG");
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/log/levels", test_levels);
    g_test_add_func("/log/no-reader", test_no_reader);
    return g_test_run();
}
