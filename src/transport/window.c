/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Parts of windows. */
#include "transport/window.h"

#include "common/reason.h"
#include "common/size.h"

gboolean rm_parse_pinned(const char *text, uint64_t *ret_bytes, GError **error)
{
    uint64_t bytes = 0;
    if (!rm_parse_size(text, &bytes, error)) {
        g_prefix_error(error, "--max-pinned: ");
        return FALSE;
    }
    if (bytes < RM_PINNED_CHANNEL_MIN)
        return rm_fail(error, RM_REASON_USAGE, "--max-pinned: %s is below 4M, which one data channel needs",
                       text);
    *ret_bytes = bytes;
    return TRUE;
}

static uint64_t total_size(const GPtrArray *blocks)
{
    uint64_t total = 0;
    for (guint i = 0; i < blocks->len; i++)
        total += ((const RmBlock *)blocks->pdata[i])->size;
    return total;
}

uint64_t rm_window_for_all(const GPtrArray *blocks, unsigned channels)
{
    return total_size(blocks) + channels * RM_PINNED_CHANNEL_MIN;
}

static uint64_t share(const GPtrArray *blocks, uint64_t chunk_size, unsigned channels, unsigned channel)
{
    uint64_t bytes = 0;
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = blocks->pdata[i];
        for (uint64_t chunk = 0; chunk < rm_chunk_count(block, chunk_size); chunk++)
            if (rm_chunk_channel(i, chunk, channels) == channel)
                bytes += rm_chunk_length(block, chunk_size, chunk);
    }
    return bytes;
}

uint64_t rm_window_part(uint64_t window, const GPtrArray *blocks, uint64_t chunk_size, unsigned channels,
                        unsigned channel)
{
    g_assert(window >= channels * RM_WINDOW_CHANNEL_MIN);
    unsigned __int128 rest = window - channels * RM_WINDOW_CHANNEL_MIN;
    return RM_WINDOW_CHANNEL_MIN +
           (uint64_t)(rest * share(blocks, chunk_size, channels, channel) / total_size(blocks));
}

gboolean rm_window_check(uint64_t max_pinned, const GPtrArray *blocks, unsigned channels, gboolean all,
                         GError **error)
{
    uint64_t least = channels * RM_PINNED_CHANNEL_MIN,
             need = all ? rm_window_for_all(blocks, channels) : least;
    if (max_pinned >= need)
        return TRUE;
    g_autofree char *have = rm_format_size(max_pinned), *want = rm_format_size(need);
    if (max_pinned < least)
        return rm_fail(
            error, RM_REASON_PRIVILEGE,
            "%s of registered memory are allowed (--max-pinned, or the limit of locked memory), and %u data "
            "channels need %s at least",
            have, channels, want);
    g_autofree char *ram = rm_format_size(total_size(blocks));
    return rm_fail(
        error, RM_REASON_PRIVILEGE,
        "%s of registered memory are allowed (--max-pinned, or the limit of locked memory), and --pin all "
        "needs %s for the guest's %s; use --pin lazy",
        have, want, ram);
}
