/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mappings are recognised by what they map, whatever the file is called. */
#include "common/autoptr.h"
#include "common/mappings.h"
#include "common/reason.h"

#include <fcntl.h>
#include <glib/gstdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define SIZE 65536

static void check_name(const char *name, gboolean removed)
{
    g_autofree char *path = g_strdup_printf("/dev/shm/rdmamig-test-%d%s", (int)getpid(), name);
    g_autoptr(GError) error = NULL;
    struct stat status;
    rm_autofd fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, SIZE), ==, 0);
    g_assert_cmpint(fstat(fd, &status), ==, 0);
    uint8_t *map = mmap(NULL, SIZE / 2, PROT_READ | PROT_WRITE, MAP_SHARED, fd, SIZE / 4);
    g_assert_true(map != MAP_FAILED);
    if (removed)
        g_unlink(path);

    g_autoptr(GArray) mappings = rm_mappings_read(getpid(), &error);
    g_assert_no_error(error);
    const RmMapping *mapping = rm_mappings_find(mappings, (uintptr_t)map + SIZE / 2 - 1);
    g_assert_nonnull(mapping);
    g_assert_cmphex(mapping->start, ==, (uintptr_t)map);
    g_assert_cmphex(mapping->end, ==, (uintptr_t)map + SIZE / 2);
    g_assert_cmpuint(mapping->offset, ==, SIZE / 4);
    g_assert_true(mapping->ino == status.st_ino && mapping->dev == status.st_dev);
    g_assert_true(mapping->shared && mapping->read && mapping->write && !mapping->exec);

    RmMapping asked = {0};
    rm_autofd maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    gboolean can = rm_mappings_ask(maps, (uintptr_t)check_name, &asked);
    if (can) {
        g_assert_true(rm_mappings_ask(maps, (uintptr_t)map + SIZE / 2 - 1, &asked));
        g_assert_cmphex(asked.start, ==, mapping->start);
        g_assert_cmphex(asked.end, ==, mapping->end);
        g_assert_cmpuint(asked.offset, ==, mapping->offset);
        g_assert_true(asked.ino == mapping->ino && asked.dev == mapping->dev && asked.shared);
        g_assert_true(rm_mappings_ask(maps, (uintptr_t)check_name, &asked) && !asked.shared);
    } else {
        g_test_message("this kernel cannot tell of one mapping (before Linux 6.11)");
    }

    munmap(map, SIZE / 2);
    g_assert_true(!rm_mappings_ask(maps, (uintptr_t)map, &asked) || asked.ino != status.st_ino);
    g_array_unref(mappings);
    mappings = rm_mappings_read(getpid(), &error);
    mapping = rm_mappings_find(mappings, (uintptr_t)map);
    g_assert_true(mapping == NULL || mapping->ino != status.st_ino);
    g_unlink(path);
}

static void test_names(void)
{
    check_name("", FALSE);
    check_name(" with  spaces ", FALSE);
    check_name("\n7f0000000000-7f0000001000 r-xp 0 00:00 1 newline", FALSE);
    check_name(" (deleted)", FALSE);
    check_name(" gone", TRUE);
}

/* Of a text: what is no mapping, ends where it begins, or goes back in addresses would mislead the search. */
static void test_text(void)
{
    char text[] = "1000-2000 rw-s 00003000 00:1b 7   /dev/shm/a b\n"
                  "nonsense\n"
                  "2000-2000 rw-p 00000000 00:00 0 \n"
                  "1800-2800 rw-p 00000000 00:00 0 \n"
                  "2000-3000 r--p 00000000 00:00 0 \n"
                  "4000-5000 rw-p 00000000 00:00 0"; /* no newline: torn */
    g_autoptr(GArray) mappings = rm_mappings_parse(text);
    g_assert_cmpuint(mappings->len, ==, 2);
    const RmMapping *first = rm_mappings_find(mappings, 0x1fff), *second = rm_mappings_find(mappings, 0x2000);
    g_assert_true(first->offset == 0x3000 && first->ino == 7 && first->shared && first->write);
    g_assert_cmpstr(first->path, ==, "/dev/shm/a b");
    g_assert_true(second->start == 0x2000 && second->end == 0x3000 && !second->write);
    g_assert_null(rm_mappings_find(mappings, 0x3000));
}

static void test_gone(void)
{
    g_autoptr(GError) error = NULL;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    siginfo_t info;
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    g_assert_null(rm_mappings_read(pid, &error)); /* a zombie: no memory, but it exists */
    g_assert_error(error, RM_ERROR, RM_REASON_GUEST_GONE);
    g_clear_error(&error);
    waitpid(pid, NULL, 0);
    g_assert_null(rm_mappings_read(pid, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_GUEST_GONE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/mappings/names", test_names);
    g_test_add_func("/mappings/text", test_text);
    g_test_add_func("/mappings/gone", test_gone);
    return g_test_run();
}
