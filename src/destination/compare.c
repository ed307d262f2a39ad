/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Digests of chunks against the source's. */
#include "destination/compare.h"

#include "control/message.h"
#include "memory/chunk.h"

json_object *rm_compare_digests(const GArray *items, const GPtrArray *blocks, uint64_t chunk_size,
                                GError **error)
{
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    json_object *differ = json_object_new_array();
    uint64_t block_index = UINT64_MAX;
    for (guint i = 0; i < items->len; i++) {
        const RmVerifyItem *item = &g_array_index(items, RmVerifyItem, i);
        const RmBlock *block = blocks->pdata[item->block];
        if (item->block != block_index) {
            g_array_set_size(extents, 0);
            if (!rm_block_populated(block, extents, error)) {
                json_object_put(differ);
                return NULL;
            }
            block_index = item->block;
        }
        RmDigest digest = rm_digest_range(block, extents, item->chunk * chunk_size,
                                          rm_chunk_length(block, chunk_size, item->chunk));
        if (digest.low != item->digest.low || digest.high != item->digest.high) {
            json_object_array_add(differ, json_object_new_uint64(item->block));
            json_object_array_add(differ, json_object_new_uint64(item->chunk));
        }
    }
    return differ;
}
