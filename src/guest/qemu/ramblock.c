/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * From QEMU's RAM blocks to files of ours.
 *
 * QEMU says names, sizes and (one way or the other) host addresses; the kernel says what is mapped there. A
 * block is ours to move if QEMU would leave it out of its own stream under x-ignore-shared: the two must
 * agree, or a block would travel twice or not at all. Before 8.1 QEMU leaves out every shared block, from 8.1
 * on only those of a named file. Everything else goes along in the device state, which is all right for ROMs
 * and video memory, and refused for RAM.
 */
#include "guest/qemu/ramblock.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "common/size.h"
#include "control/json.h"
#include "guest/qemu/qmp-hmp.h"
#include "guest/qemu/qom.h"
#include "guest/qemu/ramblock-text.h"
#include "guest/qemu/vmm.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* A block with what decides about it. */
typedef struct {
    const char *name;
    uint64_t size, hva;
    char *backend; /* QOM type of the memory backend, NULL if the block is a device's own */
    RmMapping vma; /* the first mapping; covers [hva, hva + size) together with its successors; no path */
} Found;

static void found_clear(gpointer data)
{
    g_clear_pointer(&((Found *)data)->backend, g_free);
}

/* The QOM type of the memory backend whose RAM block this is: called by its id, by its path on machine types
 * that say so, or behind its device's address (virtio-mem, ivshmem). The machine's default RAM is such an
 * object as well. Those of devices count only where QEMU says where they are: older versions cannot move
 * these devices anyway, and the preflight says so. */
static char *backend_type(GHashTable *objects, const RmRamLine *line)
{
    const char *slash = strrchr(line->name, '/'), *id = slash != NULL ? slash + 1 : line->name;
    if (slash != NULL && !g_str_has_prefix(line->name, "/objects/") && line->hva == 0)
        return NULL;
    const char *type = g_hash_table_lookup(objects, id);
    g_autofree char *child = type != NULL ? rm_qom_child_type(type) : NULL;
    return child != NULL && g_str_has_prefix(child, "memory-backend-") ? g_steal_pointer(&child) : NULL;
}

/* QEMU before 8.0 names guest addresses only: from the block's place in the guest to its place in QEMU. */
static gboolean ask_address(RmQmp *qmp, const char *mtree, Found *found, GError **error)
{
    uint64_t gpa, offset, hva;
    if (!rm_ram_find_address(mtree, found->name, &gpa, &offset))
        return rm_fail(error, RM_REASON_QEMU_VERSION,
                       "QEMU %s does not tell where RAM block %s is, since the guest has it mapped nowhere "
                       "now; QEMU 8.0 "
                       "or newer does",
                       rm_qmp_version_text(qmp), found->name);
    g_autofree char *line = g_strdup_printf("gpa2hva 0x%" PRIx64, gpa);
    g_autofree char *text = NULL;
    if (!rm_qmp_hmp(qmp, line, &text, error) || !rm_ram_parse_hva(text, found->name, &hva, error))
        return FALSE;
    found->hva = hva - offset;
    return TRUE;
}

/* Finds the mappings that hold the block: they must cover it without a gap, and be one file in order (mbind()
 * and madvise() split them). */
static gboolean find_vmas(const GArray *vmas, Found *found, GError **error)
{
    uint64_t at = found->hva, end = found->hva + found->size;
    for (guint i = 0; i < vmas->len && at < end; i++) {
        const RmMapping *vma = &g_array_index(vmas, RmMapping, i);
        if (vma->end <= at)
            continue;
        if (vma->start > at)
            break;
        if (at == found->hva) {
            found->vma = *vma;
            found->vma.path = NULL; /* stays the array's */
        }
        const RmMapping *first = &found->vma;
        if (vma->ino != first->ino || vma->dev != first->dev || vma->shared != first->shared ||
            (vma->ino != 0 && vma->offset - first->offset != vma->start - first->start))
            break;
        at = vma->end;
    }
    if (at < end)
        return rm_fail(error, RM_REASON_INTERNAL,
                       "RAM block %s is not at 0x%" PRIx64
                       " in QEMU's memory as one mapping: what QEMU says and what "
                       "/proc shows differ",
                       found->name, found->hva);
    return TRUE;
}

static gboolean fail_not_shared(const Found *found, GError **error)
{
    g_autofree char *size = rm_format_size(found->size);
    if (found->backend == NULL)
        return rm_fail(error, RM_REASON_RAM_NOT_SHARED,
                       "RAM block %s (%s) is private to QEMU and too large to travel in its device state: "
                       "make the device's "
                       "memory smaller (64 MiB at most), or take the device away",
                       found->name, size);
    return rm_fail(
        error, RM_REASON_RAM_NOT_SHARED,
        "RAM block %s (%s) is private to QEMU: start the guest again with shared, file-backed RAM. QEMU: "
        "-object memory-backend-file,id=ram,size=%" PRIu64 ",mem-path=/dev/shm/NAME,share=on "
        "-machine memory-backend=ram; libvirt: <memoryBacking><source type='file'/><access mode='shared'/>"
        "</memoryBacking>, and memory_backing_dir = \"/dev/shm\" in qemu.conf",
        found->name, size, found->size);
}

/* Whether QEMU's x-ignore-shared leaves this block to us; FALSE with `error` if that must not be. */
static gboolean is_ours(RmQmp *qmp, const Found *found, gboolean *ret_ours, GError **error)
{
    gboolean named = g_strcmp0(found->backend, "memory-backend-file") == 0;
    gboolean must = found->backend != NULL || found->size > RM_RAM_IN_STATE_MAX;
    *ret_ours = FALSE;
    if (!found->vma.shared || found->vma.ino == 0)
        return must ? fail_not_shared(found, error) : TRUE;
    if (named || rm_qmp_version(qmp) < RM_QEMU_VERSION(8, 1)) {
        *ret_ours = TRUE;
        return TRUE;
    }
    if (!must)
        return TRUE;
    return rm_fail(
        error, RM_REASON_RAM_MEMFD,
        "RAM block %s is shared memory without a name (%s), which QEMU %s copies itself, while the guest "
        "stands "
        "still: start the guest again with -object "
        "memory-backend-file,id=ram,mem-path=/dev/shm/NAME,share=on; "
        "libvirt: <source type='file'/> in <memoryBacking>, memory_backing_dir = \"/dev/shm\" in qemu.conf",
        found->name, found->backend != NULL ? found->backend : "a device's", rm_qmp_version_text(qmp));
}

/* Worth looking at: small blocks of devices are known to be private without a look, unless addresses come for
 * free. */
static gboolean matters(const RmRamLine *line, const char *backend)
{
    return *line->name != '\0' && line->used > 0 &&
           (backend != NULL || line->used > RM_RAM_IN_STATE_MAX || line->hva != 0);
}

static gint by_name(gconstpointer a, gconstpointer b)
{
    return strcmp(((const Found *)a)->name, ((const Found *)b)->name);
}

/* All blocks that are ours. Names are borrowed from `lines`. */
static gboolean find_blocks(RmQmp *qmp, pid_t pid, const GArray *lines, GArray *ret_found, GError **error)
{
    g_autoptr(GHashTable) objects = NULL;
    g_autoptr(GArray) vmas = NULL;
    g_autofree char *mtree = NULL;
    if (!rm_qom_list(qmp, "/objects", &objects, error))
        return FALSE;
    vmas = rm_mappings_read(pid, error);
    if (vmas == NULL)
        return FALSE;
    for (guint i = 0; i < lines->len; i++) {
        const RmRamLine *line = &g_array_index(lines, RmRamLine, i);
        g_autofree char *backend = backend_type(objects, line);
        if (!matters(line, backend))
            continue;
        Found found = {.name = line->name, .size = line->used, .hva = line->hva, .backend = backend};
        if (mtree == NULL && found.hva == 0 && !rm_qmp_hmp(qmp, "info mtree -f", &mtree, error))
            return FALSE;
        gboolean ours = FALSE;
        if ((found.hva == 0 && !ask_address(qmp, mtree, &found, error)) || !find_vmas(vmas, &found, error) ||
            !is_ours(qmp, &found, &ours, error))
            return FALSE;
        if (!ours)
            continue;
        found.backend = g_steal_pointer(&backend);
        g_array_append_val(ret_found, found);
    }
    g_array_sort(ret_found, by_name);
    return TRUE;
}

static gboolean ask_blocks(RmQmp *qmp, GArray **ret_lines, GError **error)
{
    rm_autojson reply = NULL;
    json_object *body;
    const char *text;
    return rm_qmp_run(qmp, "x-query-ramblock", NULL, &reply, error) &&
           rm_json_object(reply, "return", &body, error) &&
           rm_json_string(body, "human-readable-text", &text, error) &&
           rm_ram_parse_blocks(text, ret_lines, error);
}

static uint64_t file_offset_of(const Found *found)
{
    return found->vma.offset + (found->hva - found->vma.start);
}

static RmBlock *open_block(pid_t pid, const Found *found, gboolean writable, GError **error)
{
    g_autoptr(RmBlock) block = rm_block_new(found->name, found->size);
    block->hva = found->hva;
    block->file_offset = file_offset_of(found);
    rm_autofd fd = rm_vmm_open(pid, &found->vma, writable, error);
    struct stat status;
    if (fd < 0)
        return NULL;
    /* The device is not compared: for files on btrfs or overlayfs stat() and maps disagree; those are refused
     * anyway. */
    if (fstat(fd, &status) < 0 || status.st_ino != found->vma.ino) {
        rm_fail(error, RM_REASON_GUEST_CHANGED, "RAM block %s changed its backing file while it was opened",
                found->name);
        return NULL;
    }
    return rm_block_open(block, rm_fd_steal(&fd), writable, error) ? g_steal_pointer(&block) : NULL;
}

/* Two blocks over the same bytes: a write through one is not seen through the other, and received, the second
 * would overwrite the first. */
static gboolean check_apart(GPtrArray *blocks, GError **error)
{
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *a = blocks->pdata[i];
        for (guint k = 0; k < i; k++) {
            const RmBlock *b = blocks->pdata[k];
            if (a->dev == b->dev && a->ino == b->ino && a->file_offset < b->file_offset + b->size &&
                b->file_offset < a->file_offset + a->size)
                return rm_fail(
                    error, RM_REASON_RAM_BACKING,
                    "RAM blocks %s and %s are the same memory: give each a mem-path (or offset) of its own",
                    b->name, a->name);
        }
    }
    return TRUE;
}

gboolean rm_ram_blocks(RmQmp *qmp, pid_t pid, gboolean writable, GPtrArray **ret_blocks, GError **error)
{
    g_autoptr(GArray) lines = NULL;
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(Found));
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_array_set_clear_func(found, found_clear);
    if (!ask_blocks(qmp, &lines, error) || !find_blocks(qmp, pid, lines, found, error))
        return FALSE;
    for (guint i = 0; i < found->len; i++) {
        RmBlock *block = open_block(pid, &g_array_index(found, Found, i), writable, error);
        if (block == NULL)
            return FALSE;
        g_ptr_array_add(blocks, block);
    }
    if (blocks->len == 0)
        return rm_fail(error, RM_REASON_RAM_NOT_SHARED,
                       "QEMU has no shared RAM block: there is nothing to move");
    if (!check_apart(blocks, error))
        return FALSE;
    *ret_blocks = g_steal_pointer(&blocks);
    return TRUE;
}

gboolean rm_ram_recheck(RmQmp *qmp, pid_t pid, GPtrArray *blocks, GError **error)
{
    g_autoptr(GArray) lines = NULL;
    g_autoptr(GArray) found = g_array_new(FALSE, FALSE, sizeof(Found));
    g_array_set_clear_func(found, found_clear);
    if (!ask_blocks(qmp, &lines, error) || !find_blocks(qmp, pid, lines, found, error))
        return FALSE;
    if (found->len != blocks->len)
        return rm_fail(error, RM_REASON_GUEST_CHANGED,
                       "the guest had %u RAM blocks and has %u now: memory was plugged", blocks->len,
                       found->len);
    for (guint i = 0; i < found->len; i++) {
        const Found *now = &g_array_index(found, Found, i);
        const RmBlock *then = g_ptr_array_index(blocks, i);
        if (strcmp(now->name, then->name) != 0 || now->hva != then->hva || now->size != then->size ||
            now->vma.ino != then->ino || now->vma.dev != then->dev ||
            file_offset_of(now) != then->file_offset)
            return rm_fail(error, RM_REASON_GUEST_CHANGED,
                           "RAM block %s is not what it was when the migration began", then->name);
    }
    return TRUE;
}
