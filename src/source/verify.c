/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * --verify: digests of chunks compared at both ends.
 *
 * A chunk can be compared during pre-copy if it did not change from the moment its last version was read: it
 * is digested first and looked at afterwards; if the tracker reports no write in it, the digest is that of
 * the bytes the destination should hold (direct I/O included: the round was fenced, and later submissions
 * mark their pages before they land). What was punched since it was sent is a change, too, holes included.
 * Chunks with a suspect page wait for a fenced round. What is left is compared while the guest stands still.
 */
#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "memory/chunk.h"
#include "source/session.h"

#define BATCH 256 /* digests in a message: a wrong byte is known before all of RAM has been read */

static gboolean has_bits(const RmBitmap *map, uint64_t first, uint64_t count)
{
    return rm_bitmap_next_set(map, first, first + count) < first + count;
}

static gboolean send_batch(RmSession *session, GArray *items, GError **error)
{
    rm_autojson reply = NULL;
    json_object *differ;
    uint64_t block, chunk;
    if (items->len == 0)
        return TRUE;
    if (!rm_control_request(session->control,
                            rm_verify_encode((const RmVerifyItem *)(const void *)items->data, items->len), 0,
                            session->cancel, &reply, error) ||
        !rm_message_expect(reply, RM_MSG_VERIFIED, error) || !rm_json_array(reply, "differ", &differ, error))
        return FALSE;
    if (json_object_array_length(differ) == 0) {
        for (guint i = 0; i < items->len; i++) {
            const RmVerifyItem *item = &g_array_index(items, RmVerifyItem, i);
            session->rounds[item->block].verified[item->chunk] = 1;
        }
        session->metrics.verified_chunks += items->len;
        g_array_set_size(items, 0);
        return TRUE;
    }
    if (!rm_json_array_uint(differ, 0, &block, error) || !rm_json_array_uint(differ, 1, &chunk, error))
        return FALSE;
    if (block >= session->blocks->len)
        return rm_fail(error, RM_REASON_PROTOCOL, "`differ` names block %" G_GUINT64_FORMAT, block);
    return rm_fail(error, RM_REASON_VERIFY,
                   "RAM differs at the destination: %zu of %u chunks, first chunk %" G_GUINT64_FORMAT
                   " of block `%s`; "
                   "something writes this memory that the tracker does not see",
                   json_object_array_length(differ) / 2, items->len, chunk,
                   ((RmBlock *)session->blocks->pdata[block])->name);
}

/* What is worth reading: a hole is a page of zeroes. A page that appears is written, so the peek sees it. */
static gboolean ask_extents(const RmBlock *block, RmBlockRounds *rounds, gboolean stopped,
                            GArray **ret_extents, GError **error)
{
    if (!block->hugetlb) {
        if (!rm_populated_refresh(rounds->populated, block, stopped, error))
            return FALSE;
        *ret_extents = g_array_ref(rounds->populated->extents);
        return TRUE;
    }
    *ret_extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    return rm_block_populated(block, *ret_extents, error);
}

static gboolean digest_block(RmSession *session, guint i, gboolean stopped, GArray *items, GError **error)
{
    RmBlock *block = session->blocks->pdata[i];
    RmBlockRounds *rounds = &session->rounds[i];
    uint64_t chunk_size = session->accept->chunk_size, n_chunks = rm_chunk_count(block, chunk_size);
    g_autoptr(GArray) candidates = g_array_new(FALSE, FALSE, sizeof(RmVerifyItem));
    g_autoptr(GArray) extents = NULL;
    if (!ask_extents(block, rounds, stopped, &extents, error))
        return FALSE;
    for (uint64_t chunk = 0; chunk < n_chunks; chunk++) {
        uint64_t length = rm_chunk_length(block, chunk_size, chunk);
        if (rounds->verified[chunk] ||
            (!stopped && has_bits(rounds->suspect, chunk * chunk_size / RM_PAGE, length / RM_PAGE)))
            continue;
        if (!rm_session_check(session, error))
            return FALSE;
        RmVerifyItem item = {i, chunk, rm_digest_range(block, extents, chunk * chunk_size, length)};
        g_array_append_val(candidates, item);
    }
    rm_bitmap_clear_all(rounds->scratch);
    if (!stopped) {
        if (!rm_populated_refresh(rounds->populated, block, FALSE, error) ||
            !session->tracker->ops->peek(session->tracker, i, rounds->populated->extents, rounds->scratch,
                                         error) ||
            !rm_round_add_punched(session, i, NULL, rounds->scratch, error))
            return FALSE;
    }
    for (guint k = 0; k < candidates->len; k++) {
        const RmVerifyItem *item = &g_array_index(candidates, RmVerifyItem, k);
        uint64_t length = rm_chunk_length(block, chunk_size, item->chunk);
        if (has_bits(rounds->scratch, item->chunk * chunk_size / RM_PAGE, length / RM_PAGE))
            continue;
        g_array_append_vals(items, item, 1);
        if (items->len == BATCH && !send_batch(session, items, error))
            return FALSE;
    }
    return TRUE;
}

gboolean rm_verify_clean(RmSession *session, gboolean stopped, GError **error)
{
    g_autoptr(GArray) items = g_array_new(FALSE, FALSE, sizeof(RmVerifyItem));
    for (guint i = 0; i < session->blocks->len; i++) {
        if (!digest_block(session, i, stopped, items, error))
            return FALSE;
    }
    return send_batch(session, items, error);
}
