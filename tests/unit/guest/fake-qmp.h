/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A QMP server in a thread of the test, which does what a function of the test says, connection by
 * connection. */
#pragma once

#include <errno.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define GREETING                                                                                             \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, \"package\": \"\"}, "   \
    "\"capabilities\": []}}\r\n"

typedef struct FakeQmp FakeQmp;
typedef void (*FakeQmpServe)(FakeQmp *server, int fd, unsigned connection);

struct FakeQmp {
    char *directory, *path;
    int listener;
    GThread *thread;
    FakeQmpServe serve;
    gconstpointer data;   /* the test's */
    unsigned connections; /* how many to serve */
};

static inline void fake_qmp_send(int fd, const char *text)
{
    gsize length = strlen(text);
    while (length > 0) {
        ssize_t n = send(fd, text, length, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* the client has enough */
        text += n;
        length -= (gsize)n;
    }
}

/* Reads a line and returns the id in it; 0 at the end of the connection. *ret_line (caller frees) may be
 * NULL. */
static inline unsigned fake_qmp_read(int fd, char **ret_line)
{
    g_autoptr(GString) line = g_string_new(NULL);
    char c;
    unsigned id = 0;
    while (recv(fd, &c, 1, 0) == 1 && c != '\n')
        g_string_append_c(line, c);
    const char *at = strstr(line->str, "\"id\":");
    if (at != NULL)
        sscanf(at, "\"id\":%u", &id);
    if (ret_line != NULL)
        *ret_line = g_strdup(line->str);
    return id;
}

static inline void fake_qmp_return(int fd, unsigned id, const char *value)
{
    g_autofree char *text = g_strdup_printf("{\"return\": %s, \"id\": %u}\r\n", value, id);
    fake_qmp_send(fd, text);
}

/* Greeting and qmp_capabilities. */
static inline void fake_qmp_welcome(int fd)
{
    fake_qmp_send(fd, GREETING);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "{}");
}

/* One answer of a scripted server: to `command`, if `part` (NULL: anything) is in its line. */
typedef struct {
    const char *command;
    const char *part;
    const char *value; /* of "return" */
    const char *after; /* sent behind it, may be NULL: events */
} FakeQmpRule;

/* A server that greets as `version` ("7, 2": major, minor are numbers) and answers by the first rule that
 * fits; the list ends with a NULL command. What fits none gets QEMU's own error. */
typedef struct {
    unsigned major, minor;
    const FakeQmpRule *rules;
} FakeQmpScript;

static inline void fake_qmp_answer(int fd, unsigned id, const char *line, const FakeQmpRule *rule)
{
    for (; rule->command != NULL; rule++) {
        g_autofree char *execute = g_strdup_printf("\"execute\":\"%s\"", rule->command);
        if (strstr(line, execute) == NULL || (rule->part != NULL && strstr(line, rule->part) == NULL))
            continue;
        fake_qmp_return(fd, id, rule->value);
        if (rule->after != NULL)
            fake_qmp_send(fd, rule->after);
        return;
    }
    g_autofree char *text = g_strdup_printf(
        "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"no rule for this\"}, \"id\": %u}\r\n", id);
    fake_qmp_send(fd, text);
}

static inline void fake_qmp_serve_script(FakeQmp *server, int fd, unsigned connection)
{
    const FakeQmpScript *script = server->data;
    g_autofree char *greeting = g_strdup_printf("{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, "
                                                "\"minor\": %u, \"major\": %u}, \"package\": \"\"}, "
                                                "\"capabilities\": []}}\r\n",
                                                script->minor, script->major);
    fake_qmp_send(fd, greeting);
    fake_qmp_return(fd, fake_qmp_read(fd, NULL), "{}");
    for (;;) {
        g_autofree char *line = NULL;
        unsigned id = fake_qmp_read(fd, &line);
        if (id == 0)
            return;
        fake_qmp_answer(fd, id, line, script->rules);
    }
}

static inline gpointer fake_qmp_main(gpointer argument)
{
    FakeQmp *server = argument;
    for (unsigned i = 0; i < server->connections; i++) {
        int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            break;
        server->serve(server, fd, i);
        close(fd);
    }
    return NULL;
}

static inline FakeQmp *fake_qmp_new(FakeQmpServe serve, gconstpointer data, unsigned connections)
{
    FakeQmp *server = g_new0(FakeQmp, 1);
    server->directory = g_dir_make_tmp("rdmamig-qmp-XXXXXX", NULL);
    server->path = g_build_filename(server->directory, "qmp", NULL);
    server->serve = serve;
    server->data = data;
    server->connections = connections;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    g_strlcpy(address.sun_path, server->path, sizeof address.sun_path);
    server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    g_assert_cmpint(bind(server->listener, (struct sockaddr *)&address, sizeof address), ==, 0);
    g_assert_cmpint(listen(server->listener, 0), ==, 0);
    if (serve != NULL)
        server->thread = g_thread_new("fake-qmp", fake_qmp_main, server);
    return server;
}

/* Free the client first: the server may be waiting for the end of its connection. */
static inline void fake_qmp_free(FakeQmp *server)
{
    if (server == NULL)
        return;
    shutdown(server->listener, SHUT_RDWR);
    if (server->thread != NULL)
        g_thread_join(server->thread);
    close(server->listener);
    g_unlink(server->path);
    g_rmdir(server->directory);
    g_free(server->path);
    g_free(server->directory);
    g_free(server);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(FakeQmp, fake_qmp_free)
