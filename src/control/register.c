/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Encoders and decoders of what is said about registration. */
#include "control/register.h"

#include "common/reason.h"
#include "control/json.h"
#include "control/message.h"
#include "memory/chunk.h"

gboolean rm_message_check_block(uint64_t index, const GPtrArray *blocks, GError **error)
{
    if (index < blocks->len)
        return TRUE;
    return rm_fail(error, RM_REASON_PROTOCOL, "block %" G_GUINT64_FORMAT " of %u", index, blocks->len);
}

gboolean rm_message_check_chunk(uint64_t chunk, const RmBlock *block, uint64_t chunk_size, GError **error)
{
    if (chunk < rm_chunk_count(block, chunk_size))
        return TRUE;
    return rm_fail(error, RM_REASON_PROTOCOL, "chunk %" G_GUINT64_FORMAT " is past the end of block `%s`",
                   chunk, block->name);
}

static void register_chunk_free(gpointer data)
{
    RmRegisterChunk *chunk = data;
    g_array_unref(chunk->extents);
    g_free(chunk);
}

RmRegister *rm_register_new(uint64_t block)
{
    RmRegister *request = g_new0(RmRegister, 1);
    request->block = block;
    request->chunks = g_ptr_array_new_with_free_func(register_chunk_free);
    return request;
}

RmRegisterChunk *rm_register_add(RmRegister *request, uint64_t chunk)
{
    RmRegisterChunk *item = g_new0(RmRegisterChunk, 1);
    item->chunk = chunk;
    item->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_ptr_array_add(request->chunks, item);
    return item;
}

void rm_register_free(RmRegister *request)
{
    if (request == NULL)
        return;
    g_ptr_array_unref(request->chunks);
    g_free(request);
}

/* {"block":0,"chunks":[[chunk, first_page, end_page, first_page, end_page, …], …]}; pages count from the
 * block's start. */
json_object *rm_register_encode(const RmRegister *request)
{
    json_object *message = rm_json_message(RM_MSG_REGISTER);
    rm_json_add_uint(message, "block", request->block);
    json_object *chunks = json_object_new_array();
    for (guint i = 0; i < request->chunks->len; i++) {
        const RmRegisterChunk *chunk = request->chunks->pdata[i];
        json_object *item = json_object_new_array();
        json_object_array_add(item, json_object_new_uint64(chunk->chunk));
        for (guint k = 0; k < chunk->extents->len; k++) {
            const RmExtent *extent = &g_array_index(chunk->extents, RmExtent, k);
            json_object_array_add(item, json_object_new_uint64(extent->start >> RM_PAGE_SHIFT));
            json_object_array_add(item, json_object_new_uint64(extent->end >> RM_PAGE_SHIFT));
        }
        json_object_array_add(chunks, item);
    }
    rm_json_add(message, "chunks", chunks);
    return message;
}

static gboolean decode_register_chunk(json_object *item, RmRegister *request, const RmBlock *block,
                                      uint64_t chunk_size, size_t *budget, GError **error)
{
    uint64_t index;
    if (!json_object_is_type(item, json_type_array) || json_object_array_length(item) % 2 != 1)
        return rm_fail(error, RM_REASON_PROTOCOL, "a member of `chunks` is not [chunk, first, end, …]");
    if (!rm_json_array_uint(item, 0, &index, error) ||
        !rm_message_check_chunk(index, block, chunk_size, error))
        return FALSE;
    RmRegisterChunk *chunk = rm_register_add(request, index);
    uint64_t floor = index * chunk_size / RM_PAGE;
    uint64_t ceiling = floor + rm_chunk_length(block, chunk_size, index) / RM_PAGE;
    for (size_t i = 1; i < json_object_array_length(item); i += 2) {
        uint64_t first, end;
        if (!rm_json_array_uint(item, i, &first, error) || !rm_json_array_uint(item, i + 1, &end, error))
            return FALSE;
        if (first < floor || end <= first || end > ceiling || (*budget)-- == 0)
            return rm_fail(error, RM_REASON_PROTOCOL,
                           "bad extent in chunk %" G_GUINT64_FORMAT " of block `%s`", index, block->name);
        RmExtent extent = {first << RM_PAGE_SHIFT, end << RM_PAGE_SHIFT};
        g_array_append_val(chunk->extents, extent);
        floor = end; /* in order, not overlapping */
    }
    return TRUE;
}

RmRegister *rm_register_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, GError **error)
{
    g_autoptr(RmRegister) request = rm_register_new(0);
    json_object *chunks;
    size_t budget = RM_REGISTER_EXTENTS_MAX;
    if (!rm_json_uint(message, "block", &request->block, error) ||
        !rm_message_check_block(request->block, blocks, error) ||
        !rm_json_array(message, "chunks", &chunks, error))
        return NULL;
    if (json_object_array_length(chunks) > RM_REGISTER_CHUNKS_MAX) {
        rm_fail(error, RM_REASON_PROTOCOL, "more than %d chunks in one register", RM_REGISTER_CHUNKS_MAX);
        return NULL;
    }
    for (size_t i = 0; i < json_object_array_length(chunks); i++) {
        if (!decode_register_chunk(json_object_array_get_idx(chunks, i), request,
                                   blocks->pdata[request->block], chunk_size, &budget, error))
            return NULL;
    }
    return g_steal_pointer(&request);
}

json_object *rm_release_encode(const RmRegister *request, uint32_t mark)
{
    json_object *message = rm_register_encode(request);
    rm_json_add_string(message, "type", RM_MSG_RELEASE);
    rm_json_add_uint(message, "mark", mark);
    return message;
}

RmRegister *rm_release_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, unsigned channels,
                              uint32_t *ret_mark, GError **error)
{
    g_autoptr(RmRegister) request = rm_register_decode(message, blocks, chunk_size, error);
    uint64_t mark;
    if (request == NULL || !rm_json_uint(message, "mark", &mark, error))
        return NULL;
    if (mark == 0 || mark > G_MAXUINT32) {
        rm_fail(error, RM_REASON_PROTOCOL, "impossible mark %" G_GUINT64_FORMAT, mark);
        return NULL;
    }
    /* Marks are numbered for each channel. */
    for (guint i = 1; i < request->chunks->len; i++) {
        const RmRegisterChunk *one = request->chunks->pdata[0], *other = request->chunks->pdata[i];
        if (rm_chunk_channel((uint32_t)request->block, one->chunk, channels) !=
            rm_chunk_channel((uint32_t)request->block, other->chunk, channels)) {
            rm_fail(error, RM_REASON_PROTOCOL, "one mark for chunks of two channels");
            return NULL;
        }
    }
    *ret_mark = (uint32_t)mark;
    return g_steal_pointer(&request);
}

/* {"regions":[first_page, pages, key, …]}; pages count from the block's start. */
json_object *rm_registered_encode(const GArray *regions)
{
    json_object *message = rm_json_message(RM_MSG_REGISTERED);
    json_object *list = json_object_new_array();
    for (guint i = 0; i < regions->len; i++) {
        const RmRegion *region = &g_array_index(regions, RmRegion, i);
        json_object_array_add(list, json_object_new_uint64(region->offset >> RM_PAGE_SHIFT));
        json_object_array_add(list, json_object_new_uint64(region->length >> RM_PAGE_SHIFT));
        json_object_array_add(list, json_object_new_uint64(region->key));
    }
    rm_json_add(message, "regions", list);
    return message;
}

static gboolean check_region(uint64_t page, uint64_t count, uint64_t key, const RmBlock *block,
                             uint64_t chunk_size, GError **error)
{
    uint64_t pages = rm_block_pages(block), chunk_pages = chunk_size / RM_PAGE;
    if (count > 0 && page < pages && count <= pages - page &&
        page / chunk_pages == (page + count - 1) / chunk_pages && key <= G_MAXUINT32)
        return TRUE;
    return rm_fail(error, RM_REASON_PROTOCOL, "the destination registered something impossible in block `%s`",
                   block->name);
}

GArray *rm_registered_decode(json_object *message, const RmBlock *block, uint64_t chunk_size, GError **error)
{
    g_autoptr(GArray) regions = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    json_object *list;
    if (!rm_json_array(message, "regions", &list, error))
        return NULL;
    size_t n = json_object_array_length(list);
    if (n % 3 != 0) {
        rm_fail(error, RM_REASON_PROTOCOL, "`regions` has %zu members", n);
        return NULL;
    }
    for (size_t i = 0; i < n; i += 3) {
        uint64_t page, count, key;
        if (!rm_json_array_uint(list, i, &page, error) || !rm_json_array_uint(list, i + 1, &count, error) ||
            !rm_json_array_uint(list, i + 2, &key, error) ||
            !check_region(page, count, key, block, chunk_size, error))
            return NULL;
        RmRegion region = {page << RM_PAGE_SHIFT, count << RM_PAGE_SHIFT, (uint32_t)key};
        g_array_append_val(regions, region);
    }
    return g_steal_pointer(&regions);
}
