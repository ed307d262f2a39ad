/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A late word to let a guest run, by QEMU's run state then: it may run elsewhere by now. */
#include "guest/guest.h"

#include "common/reason.h"
#include "fake-qmp.h"

typedef struct {
    const char *status; /* before cont */
    unsigned refusals;  /* of cont, before it succeeds: the disks' locks, for example */
    const char *then;   /* the status after a refused cont; NULL: the same */
    const char *words;  /* of the error; NULL: none */
    unsigned conts;
} Row;

static unsigned conts; /* the server's thread's; read when it has ended */

static void answer(int fd, unsigned id, const char *line, const Row *row, const char **status)
{
    g_autofree char *cpus = g_strdup_printf("[{\"thread-id\": %d}]", (int)getpid());
    g_autofree char *state = g_strdup_printf("{\"running\": false, \"status\": \"%s\"}", *status);
    if (strstr(line, "\"cont\"") == NULL) {
        fake_qmp_return(fd, id,
                        strstr(line, "query-cpus-fast") != NULL ? cpus
                        : strstr(line, "query-status") != NULL  ? state
                                                                : "{}");
        return;
    }
    if (conts++ >= row->refusals) {
        *status = "running";
        fake_qmp_return(fd, id, "{}");
        return;
    }
    *status = row->then ?: *status;
    g_autofree char *text = g_strdup_printf(
        "{\"error\": {\"class\": \"GenericError\", \"desc\": \"Failed to get \\\"write\\\" lock\"}, "
        "\"id\": %u}\r\n",
        id);
    fake_qmp_send(fd, text);
}

static void serve(FakeQmp *server, int fd, G_GNUC_UNUSED unsigned connection)
{
    const Row *row = server->data;
    const char *status = row->status;
    fake_qmp_welcome(fd);
    for (;;) {
        g_autofree char *line = NULL;
        unsigned id = fake_qmp_read(fd, &line);
        if (id == 0)
            return;
        answer(fd, id, line, row, &status);
    }
}

static const Row rows[] = {
    {"paused", 0, NULL, NULL, 1},
    {"running", 0, NULL, NULL, 0},
    {"postmigrate", 0, NULL, "moved on", 0},
    {"finish-migrate", 0, NULL, "moved on", 0}, /* this moment */
    {"inmigrate", 0, NULL, "nothing has been loaded", 0},
    {"io-error", 0, NULL, "by itself", 0},
    {"guest-panicked", 0, NULL, "by itself", 0},
    {"shutdown", 0, NULL, "by itself", 0},
    {"save-vm", 0, NULL, "by itself", 0},
    {"paused", 2, NULL, NULL, 3},
    {"paused", 2, "postmigrate", "moved on", 1}, /* while it was tried again */
};

static void test_row(gconstpointer data)
{
    const Row *row = data;
    g_autoptr(GError) error = NULL;
    FakeQmp *server = fake_qmp_new(serve, row, 1);
    conts = 0;
    RmGuest *guest = rm_guest_qemu_new(server->path, 5000, NULL, &error);
    g_assert_no_error(error);
    gboolean ok = guest->ops->activate(guest, &error);
    rm_guest_free(guest);
    fake_qmp_free(server);
    g_assert_true(ok == (row->words == NULL));
    if (row->words != NULL) {
        g_assert_error(error, RM_ERROR, RM_REASON_RESUME);
        g_assert_nonnull(strstr(error->message, row->words));
    }
    g_assert_cmpuint(conts, ==, row->conts);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree char *name = g_strdup_printf("/activate/%s-%u", rows[i].status, i);
        g_test_add_data_func(name, &rows[i], test_row);
    }
    return g_test_run();
}
