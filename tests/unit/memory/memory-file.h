/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Blocks over anonymous files of tmpfs or of 2 MiB huge pages, for the memory tests. */
#pragma once

#include "common/reason.h"
#include "memory/block.h"

#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE (UINT64_C(2) << 20)
#define NR_HUGEPAGES "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define FREE_HUGEPAGES "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

static inline RmBlock *memory_block(uint64_t size, uint64_t file_offset, unsigned flags)
{
    g_autoptr(GError) error = NULL;
    RmBlock *block = rm_block_new("ram", size);
    block->file_offset = file_offset;
    int fd = memfd_create("ram", MFD_CLOEXEC | flags);
    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, (off_t)(file_offset + size)), ==, 0);
    rm_block_open(block, fd, TRUE, &error);
    g_assert_no_error(error);
    return block;
}

static inline uint64_t memory_allocated(const RmBlock *block)
{
    g_autoptr(GError) error = NULL;
    uint64_t bytes = 0;
    rm_block_allocated(block, &bytes, &error);
    g_assert_no_error(error);
    return bytes;
}

static inline GArray *memory_extents(const RmBlock *block)
{
    g_autoptr(GError) error = NULL;
    GArray *extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    rm_block_populated(block, extents, &error);
    g_assert_no_error(error);
    return extents;
}

/* "START-END START-END" in pages, easy to compare and to read. */
static inline char *memory_extents_text(const RmBlock *block)
{
    g_autoptr(GArray) extents = memory_extents(block);
    GString *text = g_string_new(NULL);
    for (unsigned i = 0; i < extents->len; i++) {
        RmExtent extent = g_array_index(extents, RmExtent, i);
        g_string_append_printf(text, "%s%" G_GUINT64_FORMAT "-%" G_GUINT64_FORMAT, i > 0 ? " " : "",
                               extent.start / RM_PAGE, extent.end / RM_PAGE);
    }
    return g_string_free(text, FALSE);
}

static inline int64_t memory_read_number(const char *path)
{
    g_autofree char *text = NULL;
    return g_file_get_contents(path, &text, NULL, NULL) ? g_ascii_strtoll(text, NULL, 10) : -1;
}

static inline gboolean memory_write_number(const char *path, int64_t value)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return FALSE;
    gboolean ok = fprintf(file, "%" G_GINT64_FORMAT "\n", value) > 0;
    return fclose(file) == 0 && ok;
}

static int64_t memory_huge_before = -1;

static inline void memory_huge_release(void)
{
    if (memory_huge_before >= 0)
        memory_write_number(NR_HUGEPAGES, memory_huge_before);
    memory_huge_before = -1;
}

/* A failed assertion aborts, and a full pool is a SIGBUS; exit handlers don't run then. */
static inline void memory_huge_abort(int signal_number)
{
    memory_huge_release();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Sees to it that `n` huge pages are free; what was added is given back at exit. FALSE after skipping the
 * test. */
static inline gboolean memory_huge_reserve(int64_t n)
{
    int64_t total = memory_read_number(NR_HUGEPAGES), free_pages = memory_read_number(FREE_HUGEPAGES);
    if (free_pages < n && total >= 0) {
        if (memory_huge_before < 0) {
            memory_huge_before = total;
            atexit(memory_huge_release);
            signal(SIGABRT, memory_huge_abort);
            signal(SIGBUS, memory_huge_abort);
            signal(SIGSEGV, memory_huge_abort);
        }
        memory_write_number(NR_HUGEPAGES, total + n - free_pages);
        free_pages = memory_read_number(FREE_HUGEPAGES);
    }
    if (free_pages >= n)
        return TRUE;
    g_test_skip("no 2 MiB huge pages: needs root and free memory to raise nr_hugepages");
    return FALSE;
}
