/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Admission checks. */
#include "destination/admit.h"

#include "common/reason.h"
#include "common/size.h"
#include "destination/numa.h"
#include "memory/chunk.h"

#include <string.h>
#include <sys/statfs.h>

#define TCP_CHANNELS_DEFAULT 2
#define RDMA_CHANNELS_DEFAULT 1

gboolean rm_admit_terms(const RmListenOptions *options, const RmHello *hello, RmAccept *accept,
                        GError **error)
{
    if (hello->protocol < RM_PROTOCOL_MIN || hello->protocol_min > RM_PROTOCOL)
        return rm_fail(error, RM_REASON_VERSION,
                       "the source speaks protocol %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                       ", this rdmamigd %d to %d; upgrade the older one",
                       hello->protocol_min, hello->protocol, RM_PROTOCOL_MIN, RM_PROTOCOL);
    accept->protocol = MIN(hello->protocol, RM_PROTOCOL);
    if (!rm_chunk_size_valid(hello->chunk_size) || hello->chunk_size < options->min_chunk_size)
        return rm_fail(error, RM_REASON_CHUNK_SIZE,
                       "chunk size %" G_GUINT64_FORMAT " of the source against %" G_GUINT64_FORMAT
                       " to %" G_GUINT64_FORMAT " here: change --chunk-size there or --min-chunk-size here",
                       hello->chunk_size, options->min_chunk_size, options->max_chunk_size);
    accept->chunk_size = MIN(hello->chunk_size, options->max_chunk_size);
    if (hello->channels > RM_CHANNELS_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "%" G_GUINT64_FORMAT " channels; at most %d",
                       hello->channels, RM_CHANNELS_MAX);
    for (guint i = 0; rm_transports[i] != NULL; i++) {
        g_autofree char *why = NULL;
        if (rm_transports[i]->available(&why))
            g_ptr_array_add(accept->available, g_strdup(rm_transports[i]->name));
    }
    return TRUE;
}

void rm_admit_features(const RmListenOptions *options, const RmHello *hello, GIOStream *control,
                       RmAccept *accept)
{
    if (rm_has_name(hello->features, RM_FEATURE_RELEASE))
        g_ptr_array_add(accept->features, g_strdup(RM_FEATURE_RELEASE));
    if (!rm_has_name(hello->features, RM_FEATURE_PLAIN_DATA))
        return;
    if (options->common.plain_data && G_IS_TLS_CONNECTION(control))
        g_ptr_array_add(accept->features, g_strdup(RM_FEATURE_PLAIN_DATA));
    else
        g_warning("session %s: the source would send data in clear; it stays inside TLS, for there is no "
                  "--plain-data here",
                  hello->session);
}

const char *rm_admit_data_kind(GIOStream *control, const RmAccept *accept)
{
    gboolean hidden = G_IS_TLS_CONNECTION(control) && g_strcmp0(accept->transport, "tcp") == 0 &&
                      !rm_has_name(accept->features, RM_FEATURE_PLAIN_DATA);
    return hidden ? "data inside TLS" : "data in clear";
}

gboolean rm_admit_transport(const GPtrArray *offers, const GPtrArray *available, guint *next,
                            uint64_t channels, RmAccept *accept)
{
    while (*next < offers->len) {
        const char *name = offers->pdata[(*next)++];
        if (rm_transport_find(name) == NULL ||
            !g_ptr_array_find_with_equal_func((GPtrArray *)available, name, g_str_equal, NULL))
            continue;
        g_free(accept->transport);
        accept->transport = g_strdup(name);
        accept->channels = channels != 0              ? channels
                           : strcmp(name, "tcp") == 0 ? TCP_CHANNELS_DEFAULT
                                                      : RDMA_CHANNELS_DEFAULT;
        return TRUE;
    }
    return FALSE;
}

/* ---- the guest ---- */

static gboolean check_traits(const RmHello *hello, const RmGuestInfo *info, GError **error)
{
    GHashTableIter iter;
    gpointer key, value;
    g_hash_table_iter_init(&iter, hello->traits);
    while (g_hash_table_iter_next(&iter, &key, &value)) {
        const char *ours = g_hash_table_lookup(info->traits, key);
        if (ours != NULL && strcmp(ours, value) != 0)
            return rm_fail(error, RM_REASON_MISMATCH,
                           "%s is `%s` at the source and `%s` here; start the waiting QEMU alike",
                           (const char *)key, (const char *)value, ours);
    }
    return TRUE;
}

/* Against all of theirs, whichever its place: what is emptied here must not be a running guest's RAM there.
 */
static gboolean check_backing(const RmHello *hello, const RmBlock *ours, GError **error)
{
    g_autofree char *backing = rm_backing_id(ours);
    for (guint i = 0; i < hello->blocks->len; i++) {
        const RmHelloBlock *theirs = hello->blocks->pdata[i];
        if (strcmp(theirs->backing, backing) == 0)
            return rm_fail(error, RM_REASON_SAME_MEMORY,
                           "RAM block `%s` here is the file of `%s` at the source; give the waiting QEMU a "
                           "mem-path of its own",
                           ours->name, theirs->name);
    }
    return TRUE;
}

static gboolean check_block(const RmHelloBlock *theirs, const RmBlock *ours, GError **error)
{
    if (strcmp(theirs->name, ours->name) != 0)
        return rm_fail(error, RM_REASON_MISMATCH, "RAM block `%s` at the source stands where `%s` is here",
                       theirs->name, ours->name);
    if (theirs->size != ours->size)
        return rm_fail(error, RM_REASON_MISMATCH,
                       "RAM block `%s` has %" G_GUINT64_FORMAT " bytes at the source and %" G_GUINT64_FORMAT
                       " here",
                       ours->name, theirs->size, ours->size);
    return TRUE;
}

static uint64_t read_number(const char *path, const char *key)
{
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return UINT64_MAX;
    const char *at = key != NULL ? strstr(text, key) : text;
    return at != NULL ? g_ascii_strtoull(at + (key != NULL ? strlen(key) : 0), NULL, 10) : UINT64_MAX;
}

/* Bytes that can still be had for blocks of this kind, beyond what they have already; UINT64_MAX: unknown. */
static uint64_t free_bytes(const RmBlock *block)
{
    struct statfs info;
    if (block->hugetlb) {
        g_autofree char *path =
            g_strdup_printf("/sys/kernel/mm/hugepages/hugepages-%" G_GUINT64_FORMAT "kB/free_hugepages",
                            block->page_size / 1024);
        uint64_t pages = read_number(path, NULL);
        return pages == UINT64_MAX ? pages : pages * block->page_size;
    }
    uint64_t available = read_number("/proc/meminfo", "MemAvailable:");
    available = available == UINT64_MAX ? available : available * 1024;
    if (fstatfs(block->fd, &info) == 0 && info.f_blocks > 0) /* a size limit of the tmpfs */
        available = MIN(available, (uint64_t)info.f_bavail * (uint64_t)info.f_bsize);
    return available;
}

static gboolean check_memory(const RmHello *hello, const RmGuestInfo *info, GPtrArray *blocks, GError **error)
{
    uint64_t have = 0, available = 0;
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = blocks->pdata[i];
        uint64_t allocated;
        if (!rm_block_allocated(block, &allocated, error))
            return FALSE;
        have += MIN(allocated, block->size);
        available = MAX(available, free_bytes(block));
    }
    if (hello->populated <= have)
        return TRUE;
    if (available == UINT64_MAX || hello->populated - have <= available)
        return rm_numa_check("", (int)info->pid, blocks, hello->populated - have, error);
    g_autofree char *need = rm_format_size(hello->populated - have);
    g_autofree char *got = rm_format_size(available);
    const RmBlock *first = blocks->pdata[0];
    return rm_fail(error, RM_REASON_MEMORY_SHORT, "the guest's RAM needs %s more here and %s is free; %s",
                   need, got,
                   first->hugetlb ? "reserve more in vm.nr_hugepages"
                                  : "free memory, or enlarge the tmpfs of its mem-path");
}

gboolean rm_admit_guest(const RmHello *hello, const RmGuestInfo *info, GPtrArray *blocks, GError **error)
{
    if (!check_traits(hello, info, error))
        return FALSE;
    for (guint i = 0; i < MIN(blocks->len, hello->blocks->len); i++) {
        if (!check_block(hello->blocks->pdata[i], blocks->pdata[i], error))
            return FALSE;
    }
    for (guint i = 0; i < blocks->len; i++) {
        if (!check_backing(hello, blocks->pdata[i], error))
            return FALSE;
    }
    if (blocks->len != hello->blocks->len)
        return rm_fail(
            error, RM_REASON_MISMATCH, "%u RAM blocks at the source and %u here; block `%s` has no partner",
            hello->blocks->len, blocks->len,
            hello->blocks->len > blocks->len ? ((RmHelloBlock *)hello->blocks->pdata[blocks->len])->name
                                             : ((RmBlock *)blocks->pdata[hello->blocks->len])->name);
    return check_memory(hello, info, blocks, error);
}
