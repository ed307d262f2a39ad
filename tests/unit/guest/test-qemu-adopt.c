/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Taking over the QMP connection of a process that died, with real QEMUs: wherever it died. */
#include "vm.h"

#include "guest/qemu/qmp-socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SAVE_DEATHS "{\"fdname\":\"rdmamig-state\"}"

/* A connection of our own making, as the process that is going to die has it; negotiated or not. */
static int raw_connect(Vm *vm, gboolean negotiated)
{
    g_autoptr(GError) error = NULL;
    int fd = rm_qmp_socket_connect(vm->qmp, g_get_monotonic_time() + TIMEOUT_MS * 1000, NULL, &error);
    g_assert_no_error(error);
    if (negotiated) {
        const char text[] = "{\"execute\":\"qmp_capabilities\"}\n";
        g_assert_cmpint(send(fd, text, strlen(text), 0), ==, (gssize)strlen(text));
    }
    return fd;
}

/* Sends so much of `text`, `passed` (or -1) with it. */
static void raw_send(int fd, const char *text, gsize length, int passed)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)text, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (length == 0)
        return;
    if (passed >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    g_assert_cmpint(sendmsg(fd, &message, 0), ==, (gssize)length);
}

static ino_t inode_of(int fd)
{
    struct stat info;
    g_assert_cmpint(fstat(fd, &info), ==, 0);
    return info.st_ino;
}

/* By path only where that is expected: the number of the descriptor says nothing, its inode does. */
static RmGuest *adopt_same(Vm *vm, int fd, gboolean same)
{
    ino_t inode = inode_of(fd);
    g_autoptr(GError) error = NULL;
    RmGuest *guest = rm_guest_qemu_adopt(fd, vm->qmp, vm->pid, TIMEOUT_MS, &error);
    g_assert_no_error(error);
    g_assert_cmpint(inode_of(guest->ops->connection(guest)) == inode, ==, same);
    return guest;
}

static RmGuest *adopt(Vm *vm, int fd)
{
    return adopt_same(vm, fd, TRUE);
}

static void recall_and_resume(RmGuest *guest, const char *note)
{
    g_autoptr(GError) error = NULL;
    rm_autojson found = note != NULL ? json_tokener_parse(note) : NULL;
    guest->ops->recall(guest, found);
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
}

/* Every command that a switchover sends, cut at every byte. Whatever was executed of it, the guest runs
 * afterwards, on the same connection, and QEMU holds nothing of ours. */
static void test_cut(const Qemu *qemu)
{
    static const char *const commands[] = {
        "{\"execute\":\"stop\",\"id\":7}\n",
        "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"rdmamig-state\"},\"id\":\"\\u00e9\"}\n",
    };
    g_autoptr(Vm) vm = vm_start(qemu, "");
    for (size_t i = 0; i < G_N_ELEMENTS(commands); i++) {
        for (gsize cut = 0; cut <= strlen(commands[i]); cut++) {
            int ends[2], fd = raw_connect(vm, TRUE);
            g_assert_cmpint(pipe2(ends, O_CLOEXEC), ==, 0);
            raw_send(fd, commands[i], cut, i == 1 ? ends[1] : -1);
            close(ends[1]);
            g_autoptr(RmGuest) guest = adopt(vm, fd);
            recall_and_resume(guest, "{}");
            vm_assert_status(vm, "running");
            struct pollfd end = {.fd = ends[0], .events = POLLIN};
            g_assert_cmpint(poll(&end, 1, TIMEOUT_MS), ==, 1);
            g_assert_cmpint(end.revents, ==, POLLHUP); /* nobody holds the other end */
            close(ends[0]);
        }
    }
}

/* Died before the negotiation, with the greeting unread; and in the middle of reading answers. */
static void test_unread(const Qemu *qemu)
{
    const char *ask = "{\"execute\":\"query-commands\"}\n";
    g_autoptr(Vm) vm = vm_start(qemu, "");
    for (gsize length = 0; length < 400; length += 7) {
        char buffer[400];
        int fd = raw_connect(vm, length > 0);
        for (int i = 0; i < 3 && length > 0; i++)
            raw_send(fd, ask, strlen(ask), -1);
        raw_send(fd, "{\"execute\":\"stop\"}", 18,
                 -1); /* its event is our dead sibling's, not an operator's */
        g_assert_cmpint(fcntl(fd, F_SETFL, 0), ==, 0);
        g_assert_cmpint(recv(fd, buffer, length, MSG_WAITALL), ==, (gssize)length);
        g_autoptr(RmGuest) guest = adopt(vm, fd);
        recall_and_resume(guest, NULL);
        vm_assert_status(vm, "running");
    }
}

static char *query(Vm *vm, const char *command)
{
    rm_autojson reply = vm_run(vm, command, NULL);
    json_object_object_del(reply, "id");
    return g_strdup(json_object_to_json_string(reply));
}

static gboolean keep_note(gpointer data, json_object *found, GError **error)
{
    *(char **)data = g_strdup(json_object_to_json_string(found));
    return TRUE;
}

static gboolean refuse_note(gpointer data, json_object *found, GError **error)
{
    return rm_fail(error, RM_REASON_JOURNAL, "the disk is full");
}

/* Died after the save, and during one: the note puts QEMU back. */
static void test_recall(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    vm_do(vm, "migrate-set-capabilities",
          "{\"capabilities\": [{\"capability\": \"auto-converge\", \"state\": true}]}");
    vm_do(vm, "migrate-set-parameters", "{\"max-bandwidth\": 1234567}");
    g_autofree char *capabilities = query(vm, "query-migrate-capabilities");
    g_autofree char *parameters = query(vm, "query-migrate-parameters");
    for (int i = 0; i < 2; i++) {
        g_autofree char *note = NULL;
        g_autoptr(RmGuest) dead = vm_guest(vm);
        g_autoptr(GByteArray) state = NULL;
        dead->ops->set_note(dead, keep_note, &note);
        g_assert_true(dead->ops->stop(dead, &error) && dead->ops->save(dead, &state, &error));
        g_assert_nonnull(strstr(note, "auto-converge"));
        g_assert_nonnull(strstr(note, "1234567"));
        int fd = fcntl(dead->ops->connection(dead), F_DUPFD_CLOEXEC, 0);
        if (i == 1) { /* as it was before the vector was put back, and with a reader that is gone for good */
            int ends[2];
            const char *get = "{\"execute\":\"getfd\",\"arguments\":" SAVE_DEATHS "}\n";
            const char *migrate = "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:rdmamig-state\"}}\n";
            vm_do(vm, "cont", NULL);
            vm_do(vm, "migrate-set-capabilities",
                  "{\"capabilities\": [{\"capability\": \"auto-converge\", \"state\": false}]}");
            vm_do(vm, "migrate-set-parameters", "{\"max-bandwidth\": 7654321}");
            g_assert_cmpint(pipe2(ends, O_CLOEXEC), ==, 0);
            raw_send(fd, get, strlen(get), ends[1]);
            raw_send(fd, migrate, strlen(migrate), -1);
            raw_send(fd, "{\"execute\":\"stop\"}", 9, -1);
            close(ends[1]);
            close(ends[0]); /* QEMU finds out that nobody reads any more, or is told to stop */
        }
        g_autoptr(RmGuest) guest = adopt(vm, fd);
        recall_and_resume(guest, note);
        vm_assert_status(vm, "running");
        g_autofree char *now_capabilities = query(vm, "query-migrate-capabilities");
        g_autofree char *now_parameters = query(vm, "query-migrate-parameters");
        g_assert_cmpstr(now_capabilities, ==, capabilities);
        g_assert_cmpstr(now_parameters, ==, parameters);
    }
}

/* What can't be noted is not changed. */
static void test_refused_note(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GByteArray) state = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autofree char *before = query(vm, "query-migrate-capabilities");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    guest->ops->set_note(guest, refuse_note, NULL);
    g_assert_true(guest->ops->stop(guest, &error));
    g_assert_false(guest->ops->save(guest, &state, &error));
    assert_reason(error, RM_REASON_JOURNAL, "the disk is full");
    g_autofree char *after = query(vm, "query-migrate-capabilities");
    g_assert_cmpstr(after, ==, before);
}

/* The dead process had ended that connection itself and made another one. */
static void test_by_path(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    int fd = raw_connect(vm, TRUE);
    shutdown(fd, SHUT_RDWR);
    g_autoptr(RmGuest) guest = adopt_same(vm, fd, FALSE);
    recall_and_resume(guest, NULL);
    g_clear_pointer(&guest, rm_guest_free);
    fd = raw_connect(vm, TRUE);
    shutdown(fd, SHUT_RDWR);
    g_assert_null(
        rm_guest_qemu_adopt(fd, vm->qmp, getpid(), TIMEOUT_MS, &error)); /* another QEMU than meant */
    assert_reason(error, RM_REASON_GUEST_GONE, "another one answers");
    g_clear_error(&error);
    fd = raw_connect(vm, TRUE);
    pid_t pid = vm->pid;
    vm_kill(vm);
    g_assert_null(rm_guest_qemu_adopt(fd, vm->qmp, pid, TIMEOUT_MS, &error));
    assert_reason(error, RM_REASON_QMP_UNREACHABLE, "cannot connect");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    add_for_each("adopt/cut", test_cut);
    add_for_each("adopt/unread", test_unread);
    add_for_each("adopt/recall", test_recall);
    add_for_each("adopt/refused-note", test_refused_note);
    add_for_each("adopt/by-path", test_by_path);
    return g_test_run();
}
