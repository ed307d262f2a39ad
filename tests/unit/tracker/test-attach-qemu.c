/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Attaching to a real QEMU, whose guest counts on its serial port and checks its own arithmetic, and tracking
 * its RAM.
 *
 * RDMAMIG_QEMU_7 and RDMAMIG_QEMU_10 name the binaries, if they are not at their usual places. The attaching
 * process is killed at every fourth of its fault points on each of QEMU's threads, with RDMAMIG_TEST_FULL=1
 * at every one.
 */
#include "attach-util.h"
#include "common/fault.h"
#include "common/mappings.h"
#include "tracker/attach.h"
#include "tracker/task-status.h"
#include "tracker/tracker.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#define FLAGS (O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)
#define RAM_SIZE (UINT64_C(32) << 20)
#define ANSWER_MS 20000 /* generous: the machine may be busy */
#define COUNTER_PAGE 8  /* the guest stores there all the time */
#define QUIET_PAGE 64   /* and never there */

/*
 * The guest, at 0000:7c00, in real mode:
 *
 *   start:  cli;  ds = ss = 0;  sp = 0x7c00;  bl = 0
 *   next:   wait for port 0x3fd, bit 5;  out 0x3f8, bl
 *           ecx = 3000;  eax = 0x12345678
 *   again:  eax = eax * 1664525 + 1013904223;  push eax;  pop esi;  xor [0x8000], esi;  loop again
 *           if eax != 0x772abf90: halt for ever
 *           bl = bl + 1;  goto next
 */
static const uint8_t boot_code[] = {
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x30, 0xdb, 0xba, 0xfd, 0x03, 0xec,
    0xa8, 0x20, 0x74, 0xfb, 0xba, 0xf8, 0x03, 0x88, 0xd8, 0xee, 0x66, 0xb9, 0xb8, 0x0b, 0x00, 0x00,
    0x66, 0xb8, 0x78, 0x56, 0x34, 0x12, 0x66, 0x69, 0xc0, 0x0d, 0x66, 0x19, 0x00, 0x66, 0x05, 0x5f,
    0xf3, 0x6e, 0x3c, 0x66, 0x50, 0x66, 0x5e, 0x66, 0x31, 0x36, 0x00, 0x80, 0x67, 0xe2, 0xe7, 0x66,
    0x3d, 0x90, 0xbf, 0x2a, 0x77, 0x75, 0x04, 0xfe, 0xc3, 0xeb, 0xc1, 0xf4, 0xeb, 0xfd,
};

typedef struct {
    pid_t pid;
    int serial;
    int ram; /* the file */
    char *dir;
    uint8_t next; /* what the guest must print next */
} Qemu;

static void write_image(const char *path)
{
    uint8_t sector[512] = {[510] = 0x55, [511] = 0xaa};
    memcpy(sector, boot_code, sizeof boot_code);
    g_assert_true(g_file_set_contents(path, (char *)sector, sizeof sector, NULL));
}

/* Takes what the guest has printed, each number one more than the last. Waits up to `wait_ms` for the first
 * of it. */
static unsigned take(Qemu *qemu, int wait_ms)
{
    struct pollfd poll_fd = {qemu->serial, POLLIN, 0};
    uint8_t bytes[4096];
    if (poll(&poll_fd, 1, wait_ms) == 0)
        return 0;
    ssize_t n = read(qemu->serial, bytes, sizeof bytes);
    g_assert_cmpint(n, >, 0); /* else QEMU has ended */
    for (ssize_t i = 0; i < n; i++)
        g_assert_cmpuint(bytes[i], ==, qemu->next++);
    return (unsigned)n;
}

/* The guest goes on: prints `count` more numbers from now on. */
static void assert_counts(Qemu *qemu, unsigned count)
{
    while (take(qemu, 0) > 0)
        ;
    for (unsigned n = 0, more; n < count; n += more) {
        more = take(qemu, ANSWER_MS);
        g_assert_cmpuint(more, >, 0); /* else it hangs */
    }
}

/* The command for QEMU 7 or 10; one that is unpacked beside the system's looks for its data and libraries
 * there. NULL, and the test skipped, if there is none. */
static char *qemu_command(int version)
{
    const char *variable = version == 7 ? "RDMAMIG_QEMU_7" : "RDMAMIG_QEMU_10";
    const char *usual =
        version == 7 ? "/usr/bin/qemu-system-x86_64" : "/opt/qemu-10/root/usr/bin/qemu-system-x86_64";
    const char *path = g_getenv(variable);
    if (path == NULL || *path == '\0')
        path = usual;
    if (!g_file_test(path, G_FILE_TEST_IS_EXECUTABLE)) {
        g_autofree char *why = g_strdup_printf("no QEMU %d at %s; set %s", version, path, variable);
        g_test_skip(why);
        return NULL;
    }
    char *end = strstr(path, "/usr/bin/");
    if (end == NULL || end == path)
        return g_strdup(path);
    g_autofree char *prefix = g_strndup(path, (gsize)(end - path));
    return g_strdup_printf("env LD_LIBRARY_PATH=%s/usr/lib/x86_64-linux-gnu:%s/lib/x86_64-linux-gnu %s "
                           "-L %s/usr/share/qemu -L /usr/share/seabios",
                           prefix, prefix, path, prefix);
}

/* Starts it, and waits for the guest's first numbers; the BIOS prints nothing there. */
static gboolean qemu_start(Qemu *qemu, int version)
{
    g_autofree char *command = qemu_command(version);
    if (command == NULL)
        return FALSE;
    int pair[2];
    g_assert_cmpint(pipe2(pair, O_CLOEXEC), ==, 0);
    qemu->dir = g_dir_make_tmp("rdmamig-qemu-XXXXXX", NULL);
    g_autofree char *image = g_build_filename(qemu->dir, "boot.img", NULL);
    g_autofree char *ram = g_strdup_printf("/dev/shm/rdmamig-test-qemu-%d", (int)getpid());
    write_image(image);
    qemu->ram = open(ram, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    g_assert_cmpint(qemu->ram, >=, 0);
    g_autofree char *line = g_strdup_printf(
        "%s -display none -nodefaults -no-user-config -accel tcg,thread=multi -machine "
        "pc,memory-backend=ram0 "
        "-m 32M -smp 2 -object memory-backend-file,id=ram0,size=32M,mem-path=%s,share=on -object "
        "iothread,id=io0 "
        "-drive if=floppy,format=raw,readonly=on,file=%s -chardev stdio,id=serial0 -serial chardev:serial0",
        command, ram, image);
    g_auto(GStrv) argv = g_strsplit(line, " ", -1);
    qemu->pid = fork();
    if (qemu->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rm_autofd null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(pair[1], 1);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(pair[1]);
    qemu->serial = pair[0];
    assert_counts(qemu, 200);
    g_unlink(ram);
    g_unlink(image);
    g_rmdir(qemu->dir);
    return TRUE;
}

static void qemu_stop(Qemu *qemu)
{
    g_assert_cmpint(waitpid(qemu->pid, NULL, WNOHANG), ==, 0);
    kill(qemu->pid, SIGKILL);
    waitpid(qemu->pid, NULL, 0);
    close(qemu->serial);
    close(qemu->ram);
    g_free(qemu->dir);
}

/* Returns the fault points passed, 0 if the thread has ended, as those of QEMU's thread pool do when idle. */
static guint attach_in_peace(Qemu *qemu, pid_t tid, int64_t *stopped_us)
{
    g_autoptr(GError) error = NULL;
    RmAttachStats stats = {0};
    rm_autofd fd = rm_attach_userfaultfd(qemu->pid, tid, FLAGS, &stats, &error);
    if (fd < 0 && task_state(qemu->pid, tid) == '?')
        return 0;
    g_assert_no_error(error);
    *stopped_us = stats.stopped_us;
    return stats.steps;
}

static void test_killed(gconstpointer version)
{
#if !RM_FAULTS
    g_test_skip("needs a build with fault points (meson setup -Dfault_points=true)");
    return;
#endif
    Qemu qemu = {0};
    guint stride = g_getenv("RDMAMIG_TEST_FULL") != NULL ? 1 : ATTACH_SAMPLE, uffds;
    if (!qemu_start(&qemu, GPOINTER_TO_INT(version)))
        return;
    g_autoptr(GArray) tids = rm_task_list(qemu.pid, NULL);
    guint fds = count_fds(qemu.pid, &uffds), kills = 0;
    g_assert_cmpuint(uffds, ==, 0);
    g_assert_cmpuint(tids->len, >=, 4); /* main, RCU, I/O, virtual CPUs */
    for (guint i = 0; i < tids->len; i++) {
        pid_t tid = g_array_index(tids, pid_t, i);
        int64_t stopped_us = 0;
        guint points = attach_in_peace(&qemu, tid, &stopped_us);
        for (guint n = 1 + i % stride; n <= points; n += stride) {
            g_autofree char *fault = g_strdup_printf("attach-die=%u", n);
            kills += WIFSIGNALED(attach_once(qemu.pid, tid, fault, 0));
            assert_task_released(qemu.pid, tid);
            assert_counts(&qemu, 20);
        }
        attach_in_peace(&qemu, tid, &stopped_us);
        assert_counts(&qemu, 50);
        g_test_message("thread %d: %u points, stood still for %" G_GINT64_FORMAT " us", (int)tid, points,
                       stopped_us);
    }
    g_assert_cmpuint(kills, >, 0);
    g_assert_cmpuint(count_fds(qemu.pid, &uffds) - uffds, ==,
                     fds); /* userfaultfds are all that may be left */
    g_assert_cmpuint(uffds, <, kills);
    assert_counts(&qemu, 300);
    qemu_stop(&qemu);
}

static void test_tracker(gconstpointer version)
{
    Qemu qemu = {0};
    g_autoptr(GError) error = NULL;
    if (!qemu_start(&qemu, GPOINTER_TO_INT(version)))
        return;
    g_autoptr(RmBlock) block = rm_block_new("ram0", RAM_SIZE);
    g_assert_true(rm_block_open(block, dup(qemu.ram), FALSE, &error));
    g_autoptr(GArray) mappings = rm_mappings_read(qemu.pid, &error);
    for (guint i = 0; i < mappings->len; i++) {
        const RmMapping *mapping = &g_array_index(mappings, RmMapping, i);
        if (mapping->ino == block->ino && mapping->dev == block->dev && mapping->offset == 0)
            block->hva = mapping->start;
    }
    g_assert_cmpuint(block->hva, !=, 0);
    g_autoptr(GPtrArray) blocks = g_ptr_array_new();
    g_ptr_array_add(blocks, block);
    g_autoptr(RmTracker) tracker = rm_tracker_uffd_async_new(qemu.pid, blocks);
    g_autoptr(RmBitmap) dirty = rm_bitmap_new(rm_block_pages(block));
    g_assert_true(tracker->ops->arm(tracker, &error));
    for (int round = 0; round < 20; round++) {
        g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
        rm_bitmap_clear_all(dirty);
        assert_counts(&qemu, 5);
        g_assert_true(rm_block_populated(block, extents, &error));
        g_assert_true(tracker->ops->scan(tracker, 0, extents, dirty, &error));
        g_assert_true(rm_bitmap_test(dirty, COUNTER_PAGE));
        if (round > 0)
            g_assert_false(rm_bitmap_test(dirty, QUIET_PAGE));
    }
    rm_tracker_free(g_steal_pointer(&tracker));
    assert_counts(&qemu, 300);
    qemu_stop(&qemu);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_data_func("/attach-qemu/7/killed", GINT_TO_POINTER(7), test_killed);
    g_test_add_data_func("/attach-qemu/7/tracker", GINT_TO_POINTER(7), test_tracker);
    g_test_add_data_func("/attach-qemu/10/killed", GINT_TO_POINTER(10), test_killed);
    g_test_add_data_func("/attach-qemu/10/tracker", GINT_TO_POINTER(10), test_tracker);
    return g_test_run();
}
