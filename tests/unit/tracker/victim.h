/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A victim: a child process that maps a file, on tmpfs or hugetlbfs, and writes to it on command, by all the
 * ways in which a VMM's memory is written. Nothing in it helps the tracker.
 */
#pragma once

#include "common/autoptr.h"
#include "common/reason.h"
#include "tracker/tracker.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)
#define HUGE_PAGE (2 * MIB)
#define HUGE_PAGES 8

typedef enum {
    OP_STORE,
    OP_LOAD,
    OP_READ,
    OP_DIRECT,
    OP_SPLIT,
    OP_REMAP,
    OP_UNMAP,
    OP_MAP_OTHER,
    OP_PUNCH,
    OP_HAMMER
} Op;

struct command {
    Op op;
    uint64_t page, count;
    int value;
};

typedef struct {
    pid_t pid;
    int socket;
    char *direct; /* a file for O_DIRECT reads, one page of 0xd1 */
    RmBlock *block;
    GPtrArray *blocks;
    RmTracker *tracker;
    RmBitmap *dirty;
    char *mount;        /* a hugetlbfs of ours, NULL if none */
    uint64_t huge_page; /* its pages' size */
} Victim;

/* ---- the child ---- */

static inline int hammer(uint8_t *map, uint64_t pages, int ms)
{
    uint64_t state = 1;
    for (int64_t end = g_get_monotonic_time() + ms * 1000; g_get_monotonic_time() < end;) {
        for (int i = 0; i < 1000; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            *(volatile uint64_t *)(map + (state >> 33) % pages * RM_PAGE + (state >> 20) % 512 * 8) = state;
        }
    }
    return 0;
}

static inline int execute(const struct command *command, uint8_t *map, int fd, const char *direct)
{
    uint8_t *page = map + command->page * RM_PAGE;
    size_t length = command->count * RM_PAGE;
    int result = 0;
    switch (command->op) {
    case OP_STORE:
        for (uint64_t i = 0; i < command->count; i++)
            ((volatile uint8_t *)page)[i * RM_PAGE] = (uint8_t)command->value;
        return 0;
    case OP_LOAD:
        for (uint64_t i = 0; i < command->count; i++)
            result += ((volatile uint8_t *)page)[i * RM_PAGE];
        return result;
    case OP_READ: { /* the kernel writes into the page */
        rm_autofd zero = open("/dev/zero", O_RDONLY);
        return read(zero, page, length) == (ssize_t)length ? 0 : -errno;
    }
    case OP_DIRECT: { /* the block layer writes into the pinned page */
        rm_autofd file = open(direct, O_RDONLY | O_DIRECT);
        return pread(file, page, RM_PAGE, 0) == RM_PAGE ? 0 : -errno;
    }
    case OP_SPLIT: /* makes several VMAs out of one */
        return madvise(page, length, MADV_DONTFORK) < 0 ? -errno : 0;
    case OP_REMAP: { /* the same file, mapped anew: tracking is lost there */
        void *again = mremap(page, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, map - 64 * MIB);
        return again == MAP_FAILED ||
                       mremap(again, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, page) != page
                   ? -errno
                   : 0;
    }
    case OP_UNMAP:
        return munmap(page, length) < 0 ? -errno : 0;
    case OP_MAP_OTHER: { /* another file of the same file system, at the same offset */
        rm_autofd other = open("/dev/shm", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
        off_t offset = (off_t)(command->page * RM_PAGE);
        if (ftruncate(other, offset + (off_t)length) < 0)
            return -errno;
        void *at = mmap(page, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, other, offset);
        return at == page ? 0 : -errno;
    }
    case OP_PUNCH: /* as QEMU's ram_block_discard_range(): huge pages without the second half */
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(command->page * RM_PAGE),
                      (off_t)length) < 0)
            return -errno;
        return command->value != 0 || madvise(page, length, MADV_DONTNEED) == 0 ? 0 : -errno;
    case OP_HAMMER: /* writes at random for that many milliseconds */
        return hammer(page, command->count, command->value);
    }
    return -EINVAL;
}

static inline void G_GNUC_NORETURN child(int socket, uint8_t *map, int fd, const char *direct)
{
    struct command command;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(socket, &command, sizeof command) == sizeof command) {
        int result = execute(&command, map, fd, direct);
        if (write(socket, &result, sizeof result) != sizeof result)
            break;
    }
    _exit(0);
}

/* ---- the parent ---- */

static inline int tell(Victim *victim, Op op, uint64_t page, uint64_t count, int value)
{
    struct command command = {op, page, count, value};
    int result = -EPIPE;
    g_assert_cmpint(write(victim->socket, &command, sizeof command), ==, sizeof command);
    g_assert_cmpint(read(victim->socket, &result, sizeof result), ==, sizeof result);
    return result;
}

static inline void store(Victim *victim, uint64_t page, uint64_t count, int value)
{
    g_assert_cmpint(tell(victim, OP_STORE, page, count, value), ==, 0);
}

/* A file of `size` bytes on tmpfs or the hugetlbfs at `mount`, mapped by a child whose mapping is found again
 * by address since the parent made it before the fork. */
static inline void victim_start(Victim *victim, uint64_t size)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path =
        g_strdup_printf("%s/rdmamig-test-%d", victim->mount != NULL ? victim->mount : "/dev/shm", getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), pair[2];
    g_assert_cmpint(fd, >=, 0);
    g_unlink(path);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), ==, 0);

    rm_autofd direct = g_file_open_tmp("rdmamig-direct-XXXXXX", &victim->direct, &error);
    uint8_t data[RM_PAGE];
    memset(data, 0xd1, sizeof data);
    g_assert_no_error(error);
    g_assert_cmpint(write(direct, data, sizeof data), ==, sizeof data);

    /* 64 MiB of room before it for OP_REMAP, and alignment for huge pages. */
    uint64_t align = MAX(victim->huge_page, HUGE_PAGE), spare = 64 * MIB + align;
    uint8_t *room = mmap(NULL, size + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_assert_true(room != MAP_FAILED);
    uint8_t *map = (uint8_t *)(((uintptr_t)room + spare - 1) & ~(uintptr_t)(align - 1));
    if ((victim->pid = fork()) == 0) {
        close(pair[0]);
        if (mmap(map, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) != map)
            _exit(1);
        child(pair[1], map, fd, victim->direct);
    }
    munmap(room, size + spare);
    close(pair[1]);
    victim->socket = pair[0];
    victim->block = rm_block_new("ram", size);
    victim->block->hva = (uintptr_t)map;
    g_assert_true(rm_block_open(victim->block, fd, TRUE, &error));
    g_assert_no_error(error);
    victim->blocks = g_ptr_array_new();
    g_ptr_array_add(victim->blocks, victim->block);
    victim->dirty = rm_bitmap_new(rm_block_pages(victim->block));
    victim->tracker = rm_tracker_uffd_async_new(victim->pid, victim->blocks);
    /* The map is there once it answers. */
    g_assert_cmpint(tell(victim, OP_LOAD, 0, 0, 0), ==, 0);
}

static inline void victim_stop(Victim *victim)
{
    rm_tracker_free(victim->tracker);
    close(victim->socket);
    waitpid(victim->pid, NULL, 0);
    g_unlink(victim->direct);
    g_free(victim->direct);
    g_ptr_array_unref(victim->blocks);
    rm_block_free(victim->block);
    rm_bitmap_free(victim->dirty);
}

static inline void arm(Victim *victim)
{
    g_autoptr(GError) error = NULL;
    g_assert_true(victim->tracker->ops->arm(victim->tracker, &error));
    g_assert_no_error(error);
}

static inline gboolean read_extents(Victim *victim, const GArray *extents, gboolean protect, GError **error)
{
    const RmTrackerOps *ops = victim->tracker->ops;
    rm_bitmap_clear_all(victim->dirty);
    return protect ? ops->scan(victim->tracker, 0, extents, victim->dirty, error)
                   : ops->peek(victim->tracker, 0, extents, victim->dirty, error);
}

/* As the rounds do: of what is populated. Returns the number of dirty pages. */
static inline uint64_t look(Victim *victim, gboolean protect)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_assert_true(rm_block_populated(victim->block, extents, &error));
    g_assert_true(read_extents(victim, extents, protect, &error));
    g_assert_no_error(error);
    return rm_bitmap_count(victim->dirty, 0, victim->dirty->n_bits);
}

static inline uint64_t scan(Victim *victim)
{
    return look(victim, TRUE);
}

static inline void assert_dirty(Victim *victim, uint64_t first, uint64_t count)
{
    g_assert_cmpuint(rm_bitmap_count(victim->dirty, first, count), ==, count);
}

static inline gboolean any_vma_tracked(pid_t pid)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/smaps", pid), *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++)
        if (g_str_has_prefix(*line, "VmFlags:") && strstr(*line, " uw") != NULL)
            return TRUE;
    return FALSE;
}

/* ---- huge pages ---- */

#define POOL "/sys/kernel/mm/hugepages/hugepages-%" G_GUINT64_FORMAT "kB/nr_hugepages"

static inline uint64_t huge_pages_total(uint64_t size)
{
    g_autofree char *path = g_strdup_printf(POOL, size / 1024), *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) ? g_ascii_strtoull(text, NULL, 10) : 0;
}

static inline void set_huge_pages(uint64_t size, uint64_t n)
{
    g_autofree char *path = g_strdup_printf(POOL, size / 1024);
    rm_autofd fd = open(path, O_WRONLY);
    g_autofree char *text = g_strdup_printf("%" G_GUINT64_FORMAT "\n", n);
    if (write(fd, text, strlen(text)) < 0)
        g_test_message("cannot set %s: %s", path, g_strerror(errno));
}

/* Runs `test` on a victim whose RAM is `pages` huge pages of `size` bytes, if the host can give them. */
static inline void with_huge_pages(uint64_t size, unsigned pages, void (*test)(Victim *victim))
{
    Victim victim = {.mount = g_dir_make_tmp("rdmamig-huge-XXXXXX", NULL), .huge_page = size};
    g_autofree char *option = g_strdup_printf("pagesize=%" G_GUINT64_FORMAT, size);
    uint64_t before = huge_pages_total(size);
    if (mount("hugetlbfs", victim.mount, "hugetlbfs", 0, option) < 0) {
        g_test_skip("needs root, and huge pages of this size, for a hugetlbfs mount");
    } else {
        set_huge_pages(size, before + pages);
        if (huge_pages_total(size) < before + pages) {
            g_test_skip("the host has no memory left for the huge pages");
        } else {
            victim_start(&victim, pages * size);
            test(&victim);
            rm_tracker_free(g_steal_pointer(&victim.tracker));
            g_assert_false(any_vma_tracked(victim.pid));
            victim_stop(&victim);
        }
        umount(victim.mount);
        set_huge_pages(size, before);
    }
    g_rmdir(victim.mount);
    g_free(victim.mount);
}
