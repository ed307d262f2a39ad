/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * compare-pages: are two guests' RAM files equal, page by page?
 *
 *   compare-pages A B              prints "N pages, M differ" and where; exit 0 equal, 1 different, 2 error
 *   compare-pages --flip OFFSET A  turns one byte over, so that a test can see the comparison fail
 *
 * It shares no code with the project, so that it can't share its mistakes. It reads with pread() and skips
 * what SEEK_DATA calls a hole in both files: a hole is zeroes, and reading it through a mapping would
 * allocate it. On hugetlbfs, which reports no holes, it reads all. Only mappings would see a page that
 * another process has not yet written back, and files on tmpfs and hugetlbfs have no such pages: their page
 * cache is the memory itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define SPAN (1 << 20) /* bytes read at once */
#define SHOWN 16       /* differing ranges printed */

struct file {
    const char *path;
    int fd;
    off_t size;
    off_t hole_end; /* everything from the last look up to here is a hole */
};

struct tally {
    uint64_t differ;
    unsigned ranges;
    off_t start, end; /* the differing range being built; empty if equal */
};

static int fail(const char *path, const char *what)
{
    fprintf(stderr, "compare-pages: %s: %s: %s\n", path, what, strerror(errno));
    return 2;
}

static int open_file(struct file *file, const char *path, int flags)
{
    struct stat st;
    file->path = path;
    file->hole_end = 0;
    file->fd = open(path, flags | O_CLOEXEC);
    if (file->fd < 0 || fstat(file->fd, &st) < 0)
        return fail(path, "cannot open");
    file->size = st.st_size;
    return 0;
}

/* Whether [offset, offset + length) is a hole of `file` to its end. Offsets only grow. */
static int is_hole(struct file *file, off_t offset, off_t length)
{
    if (offset + length <= file->hole_end)
        return 1;
    off_t data = lseek(file->fd, offset, SEEK_DATA);
    if (data < 0)
        data = errno == ENXIO ? file->size : offset; /* ENXIO: nothing but a hole up to the end */
    file->hole_end = data;
    return offset + length <= data;
}

static int read_all(struct file *file, unsigned char *buffer, off_t offset, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(file->fd, buffer + done, length - done, offset + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(file->path, n == 0 ? "it became shorter while it was read" : "cannot read");
        done += (size_t)n;
    }
    return 0;
}

static void close_range_found(struct tally *tally)
{
    if (tally->start == tally->end)
        return;
    if (tally->ranges++ < SHOWN)
        printf("differ: %#jx-%#jx\n", (intmax_t)tally->start, (intmax_t)tally->end);
    tally->start = tally->end = 0;
}

static void note(struct tally *tally, off_t page, off_t end)
{
    tally->differ++;
    if (tally->end != page || tally->start == tally->end) {
        close_range_found(tally);
        tally->start = page;
    }
    tally->end = end;
}

static int compare(const char *path_a, const char *path_b)
{
    static unsigned char a[SPAN], b[SPAN];
    struct file file_a, file_b;
    if (open_file(&file_a, path_a, O_RDONLY) != 0 || open_file(&file_b, path_b, O_RDONLY) != 0)
        return 2;
    if (file_a.size != file_b.size) {
        fprintf(stderr, "compare-pages: %s has %jd bytes, %s has %jd\n", path_a, (intmax_t)file_a.size,
                path_b, (intmax_t)file_b.size);
        return 2;
    }

    struct tally tally = {0};
    for (off_t offset = 0; offset < file_a.size; offset += SPAN) {
        size_t length = (size_t)(file_a.size - offset < SPAN ? file_a.size - offset : SPAN);
        int hole_a = is_hole(&file_a, offset, (off_t)length),
            hole_b = is_hole(&file_b, offset, (off_t)length);
        if (hole_a && hole_b)
            continue;
        if (hole_a)
            memset(a, 0, length);
        else if (read_all(&file_a, a, offset, length) != 0)
            return 2;
        if (hole_b)
            memset(b, 0, length);
        else if (read_all(&file_b, b, offset, length) != 0)
            return 2;
        for (size_t at = 0; at < length; at += PAGE) {
            size_t page = length - at < PAGE ? length - at : PAGE;
            if (memcmp(a + at, b + at, page) != 0)
                note(&tally, offset + (off_t)at, offset + (off_t)(at + page));
        }
    }
    close_range_found(&tally);
    if (tally.ranges > SHOWN)
        printf("differ: … and %u more ranges\n", tally.ranges - SHOWN);
    printf("%jd pages, %" PRIu64 " differ\n", (intmax_t)((file_a.size + PAGE - 1) / PAGE), tally.differ);
    return tally.differ != 0;
}

static int flip(const char *offset_text, const char *path)
{
    char *end;
    errno = 0;
    unsigned long long offset = strtoull(offset_text, &end, 0);
    struct file file;
    if (errno != 0 || *end != '\0' || end == offset_text) {
        fprintf(stderr, "compare-pages: %s is no offset\n", offset_text);
        return 2;
    }
    if (open_file(&file, path, O_RDWR) != 0)
        return 2;
    unsigned char byte;
    if (offset >= (unsigned long long)file.size) {
        fprintf(stderr, "compare-pages: %s ends before byte %llu\n", path, offset);
        return 2;
    }
    if (read_all(&file, &byte, (off_t)offset, 1) != 0)
        return 2;
    byte ^= 0xff;
    if (pwrite(file.fd, &byte, 1, (off_t)offset) != 1)
        return fail(path, "cannot write");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && argv[1][0] != '-')
        return compare(argv[1], argv[2]);
    if (argc == 4 && strcmp(argv[1], "--flip") == 0)
        return flip(argv[2], argv[3]);
    fprintf(stderr, "usage: compare-pages A B\n       compare-pages --flip OFFSET FILE\n");
    return 2;
}
