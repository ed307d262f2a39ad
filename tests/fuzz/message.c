/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The decoders of messages: what they let through lies within the blocks, and is what the encoders would say.
 */
#include "fuzz.h"

#include "common/autoptr.h"
#include "control/channel.h"
#include "control/json.h"
#include "control/message.h"

#define CHUNK (UINT64_C(1) << 20)

static void check_range(const RmBlock *block, uint64_t from, uint64_t to, uint64_t chunk)
{
    g_assert_true(from < to && to <= block->size);
    g_assert_true(from / CHUNK == chunk && (to - 1) / CHUNK == chunk);
}

static void check_register(json_object *message, GPtrArray *blocks)
{
    uint32_t mark = 0;
    g_autoptr(RmRegister) one = rm_register_decode(message, blocks, CHUNK, NULL);
    g_autoptr(RmRegister) release = rm_release_decode(message, blocks, CHUNK, 2, &mark, NULL);
    for (guint i = 0; one != NULL && i < one->chunks->len; i++) {
        const RmRegisterChunk *chunk = one->chunks->pdata[i];
        for (guint k = 0; k < chunk->extents->len; k++) {
            const RmExtent *extent = &g_array_index(chunk->extents, RmExtent, k);
            check_range(blocks->pdata[one->block], extent->start, extent->end, chunk->chunk);
        }
    }
    g_autoptr(GArray) regions = rm_registered_decode(message, blocks->pdata[0], CHUNK, NULL);
    for (guint i = 0; regions != NULL && i < regions->len; i++) {
        const RmRegion *region = &g_array_index(regions, RmRegion, i);
        check_range(blocks->pdata[0], region->offset, region->offset + region->length,
                    region->offset / CHUNK);
    }
    if (release != NULL) {
        rm_autojson said = rm_release_encode(release, mark);
        g_autoptr(RmRegister) again = rm_release_decode(said, blocks, CHUNK, 2, &mark, NULL);
        fuzz_assert_same(json_object_get(said), rm_release_encode(again, mark));
    }
}

static void check_pages(json_object *message, GPtrArray *blocks)
{
    g_autoptr(RmRoundEnd) end = rm_round_end_decode(message, blocks, NULL);
    for (guint i = 0; end != NULL && i < end->zeroes->len; i++) {
        const RmZeroRange *range = &g_array_index(end->zeroes, RmZeroRange, i);
        uint64_t pages = rm_block_pages(blocks->pdata[range->block]);
        g_assert_true(range->count > 0 && range->page < pages && range->count <= pages - range->page);
    }
    g_autoptr(GArray) items = rm_verify_decode(message, blocks, CHUNK, NULL);
    if (items != NULL) {
        rm_autojson said = rm_verify_encode((const RmVerifyItem *)items->data, items->len);
        g_autoptr(GArray) again = rm_verify_decode(said, blocks, CHUNK, NULL);
        g_assert_cmpmem(items->data, items->len * sizeof(RmVerifyItem), again->data,
                        again->len * sizeof(RmVerifyItem));
    }
}

/* The decoder of `name` reads what its encoder says of what it read. */
#define CHECK_TERMS(Type, name)                                                                              \
    g_autoptr(Type) name = rm_##name##_decode(message, NULL);                                                \
    if (name != NULL) {                                                                                      \
        rm_autojson said = rm_##name##_encode(name);                                                         \
        g_autoptr(Type) again = rm_##name##_decode(said, NULL);                                              \
        g_assert_nonnull(again);                                                                             \
        fuzz_assert_same(json_object_get(said), rm_##name##_encode(again));                                  \
    }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rm_autojson message = rm_json_parse((const char *)data, size, RM_MESSAGE_DEPTH, NULL);
    if (message == NULL)
        return 0;
    g_autoptr(GPtrArray) blocks = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    g_ptr_array_add(blocks, rm_block_new("ram", 8 * CHUNK));
    g_ptr_array_add(blocks, rm_block_new("odd", 2 * CHUNK + RM_PAGE));
    CHECK_TERMS(RmHello, hello)
    CHECK_TERMS(RmAccept, accept)
    check_register(message, blocks);
    check_pages(message, blocks);
    return 0;
}
