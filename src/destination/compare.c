/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination's part of --verify. */
#include "destination/compare.h"

#include "common/fault.h"
#include "control/json.h"
#include "control/message.h"
#include "memory/chunk.h"
#include "memory/digest.h"

gboolean rm_compare_digests(RmControl *control, json_object *message, GPtrArray *blocks, uint64_t chunk_size,
                            GError **error)
{
    g_autoptr(GArray) items = rm_verify_decode(message, blocks, chunk_size, error);
    g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    uint64_t block_index = UINT64_MAX;
    if (items == NULL)
        return FALSE;
    if (rm_fault("flip-byte")) { /* proves that --verify sees one wrong byte */
        RmBlock *first = blocks->pdata[0];
        first->map[0] ^= 1;
    }
    json_object *differ = json_object_new_array();
    for (guint i = 0; i < items->len; i++) {
        const RmVerifyItem *item = &g_array_index(items, RmVerifyItem, i);
        const RmBlock *block = blocks->pdata[item->block];
        if (item->block != block_index) {
            g_array_set_size(extents, 0);
            if (!rm_block_populated(block, extents, error)) {
                json_object_put(differ);
                return FALSE;
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
    json_object *reply = rm_json_message(RM_MSG_VERIFIED);
    rm_json_add(reply, "differ", differ);
    return rm_control_reply(control, message, reply, error);
}
