/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Any bytes that decode so will do, wherever in an instruction of the original program they begin. They are
 * taken from read-only mappings of files, since code that was generated may be rewritten; and from the C
 * library rather than a plugin, since that is never unmapped.
 */
#include "tracker/find-code.h"

#include "common/reason.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define WINDOW (1u << 20)
#define OVERLAP 16u

static const uint8_t syscall_ret[] = {0x0f, 0x05, 0xc3};
static const uint8_t restorer_rax[] = {0x48, 0xc7, 0xc0, 0x0f, 0x00,
                                       0x00, 0x00, 0x0f, 0x05};                   /* mov $15,%rax */
static const uint8_t restorer_eax[] = {0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05}; /* mov $15,%eax */

static ssize_t read_memory(pid_t pid, uint64_t address, void *data, size_t length)
{
    struct iovec local = {data, length}, remote = {(void *)(uintptr_t)address, length};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

static void search(const uint8_t *data, size_t length, uint64_t address, RmCode *code)
{
    const uint8_t *at = memmem(data, length, syscall_ret, sizeof syscall_ret);
    if (code->syscall_ret == 0 && at != NULL)
        code->syscall_ret = address + (uint64_t)(at - data);
    at = memmem(data, length, restorer_rax, sizeof restorer_rax);
    if (at == NULL)
        at = memmem(data, length, restorer_eax, sizeof restorer_eax);
    if (code->restorer == 0 && at != NULL)
        code->restorer = address + (uint64_t)(at - data);
}

static void search_mapping(pid_t pid, const RmMapping *mapping, uint8_t *buffer, RmCode *code)
{
    for (uint64_t at = mapping->start;
         at < mapping->end && (code->syscall_ret == 0 || code->restorer == 0);) {
        ssize_t n = read_memory(pid, at, buffer, MIN(WINDOW, mapping->end - at));
        if (n <= 0)
            return;
        search(buffer, (size_t)n, at, code);
        if (at + (uint64_t)n >= mapping->end)
            return;
        at += (uint64_t)n > OVERLAP ? (uint64_t)n - OVERLAP : (uint64_t)n;
    }
}

/* 0: a C library; 1: other files; -1: not to be used. */
static int rank(const RmMapping *mapping)
{
    if (!mapping->exec || !mapping->read || mapping->write || mapping->ino == 0)
        return -1;
    const char *slash = strrchr(mapping->path, '/');
    const char *name = slash != NULL ? slash + 1 : mapping->path;
    return g_str_has_prefix(name, "libc.so") || g_str_has_prefix(name, "libc-") ||
                   g_str_has_prefix(name, "ld-musl")
               ? 0
               : 1;
}

gboolean rm_code_find(pid_t pid, const GArray *mappings, RmCode *ret_code, GError **error)
{
    RmCode code = {0};
    g_autofree uint8_t *buffer = g_malloc(WINDOW);
    for (int wanted = 0; wanted <= 1; wanted++)
        for (guint i = 0; i < mappings->len; i++)
            if (rank(&g_array_index(mappings, RmMapping, i)) == wanted)
                search_mapping(pid, &g_array_index(mappings, RmMapping, i), buffer, &code);
    if (code.syscall_ret == 0 || code.restorer == 0)
        return rm_fail(
            error, RM_REASON_ATTACH,
            "found no `syscall; ret` or no rt_sigreturn in the code of process %d, or may not read its "
            "memory; it cannot be attached to safely",
            (int)pid);
    *ret_code = code;
    return TRUE;
}

gboolean rm_code_check(pid_t pid, const RmCode *code)
{
    uint8_t call[sizeof syscall_ret], restorer[sizeof restorer_rax];
    if (read_memory(pid, code->syscall_ret, call, sizeof call) != sizeof call ||
        read_memory(pid, code->restorer, restorer, sizeof restorer) != sizeof restorer)
        return FALSE;
    return memcmp(call, syscall_ret, sizeof call) == 0 &&
           (memcmp(restorer, restorer_rax, sizeof restorer_rax) == 0 ||
            memcmp(restorer, restorer_eax, sizeof restorer_eax) == 0);
}
