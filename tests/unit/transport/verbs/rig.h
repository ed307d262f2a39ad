/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A source and a destination of the rdma transport in one process, with the sender's part in between: it asks
 * for what it is going to write. Over the fake provider, or a real device: then RDMAMIG_TEST_ADDRESS is its
 * address.
 */
#pragma once

#include "../blocks.h"

#include "common/reason.h"
#include "memory/chunk.h"
#include "transport/transport.h"

#include <errno.h>
#include <json-c/json.h>

typedef struct {
    unsigned channels;
    uint64_t chunk_size;
    unsigned timeout_ms;
    gboolean copy;
    uint64_t max_pinned_from, max_pinned_to; /* 0: no bound */
    gboolean pin_all;
    gboolean no_release; /* a source that can't */
    gboolean sparse;     /* the source's blocks begin as holes */
    gboolean serialise;
    RmPacketOptions source, destination;
    const char *device; /* the source's wish */
    int gid_index;
    const char *from;  /* --data-source */
    const char *host;  /* NULL: the device's */
    uint64_t sizes[4]; /* of the blocks; ends with 0 */
} RigParams;

typedef struct {
    RigParams params;
    uint8_t token[RM_TOKEN_BYTES];
    GPtrArray *from, *to; /* RmBlock* */
    RmTx *tx;
    RmRx *rx;
} Rig;

/* ---- warnings: other threads log at the same time, so that g_test_expect_message() won't do ---- */

static GMutex rig_log_lock;
static GString *rig_warnings; /* rig_log_lock */

static void rig_log(const char *domain, GLogLevelFlags level, const char *message, gpointer data)
{
    if (!(level & (G_LOG_LEVEL_WARNING | G_LOG_LEVEL_CRITICAL | G_LOG_LEVEL_ERROR)))
        return;
    g_mutex_lock(&rig_log_lock);
    g_string_append_printf(rig_warnings, "%s\n", message);
    g_mutex_unlock(&rig_log_lock);
}

static inline void rig_log_init(void)
{
    rig_warnings = g_string_new(NULL);
    g_log_set_always_fatal(G_LOG_FATAL_MASK | G_LOG_LEVEL_CRITICAL);
    g_log_set_default_handler(rig_log, NULL);
}

/* The warnings since the last call match `pattern`; NULL: there were none. */
static inline void rig_assert_warned(const char *pattern)
{
    g_mutex_lock(&rig_log_lock);
    g_autofree char *text = g_strndup(rig_warnings->str, rig_warnings->len);
    g_string_truncate(rig_warnings, 0);
    g_mutex_unlock(&rig_log_lock);
    if (pattern == NULL)
        g_assert_cmpstr(text, ==, "");
    else if (!g_pattern_match_simple(pattern, text))
        g_assert_cmpstr(text, ==, pattern);
}

static inline const char *rig_address(void)
{
    return g_getenv("RDMAMIG_TEST_ADDRESS") ?: "10.0.0.1";
}

static inline Rig *rig_new(const RigParams *params)
{
    Rig *rig = g_new0(Rig, 1);
    rig->params = *params;
    if (rig->params.timeout_ms == 0)
        rig->params.timeout_ms = 20000;
    rig->from = blocks_new("from", params->sizes, !params->sparse);
    rig->to = blocks_new("to", params->sizes, FALSE);
    blocks_random(rig->token, sizeof rig->token);
    return rig;
}

static inline gboolean rig_start(Rig *rig, GError **error)
{
    RmRxParams params = {.channels = rig->params.channels,
                         .blocks = rig->to,
                         .chunk_size = rig->params.chunk_size,
                         .timeout_ms = rig->params.timeout_ms,
                         .packets = rig->params.destination,
                         .gid_index = -1,
                         .max_pinned = rig->params.max_pinned_to,
                         .pin_all = rig->params.pin_all,
                         .releases = !rig->params.no_release};
    memcpy(params.token, rig->token, sizeof params.token);
    rig->rx = rm_transport_rdma.rx_new();
    return rig->rx->ops->start(rig->rx, &params, error);
}

static inline gboolean rig_connect_as(Rig *rig, const uint8_t token[RM_TOKEN_BYTES], unsigned channels,
                                      GCancellable *cancellable, RmTx **ret_tx, GError **error)
{
    json_object *address = rig->rx->ops->offer(rig->rx);
    RmTxParams params = {.channels = channels,
                         .blocks = rig->from,
                         .chunk_size = rig->params.chunk_size,
                         .address = address,
                         .host = rig->params.host ?: rig_address(),
                         .source_address = rig->params.from,
                         .device = rig->params.device,
                         .gid_index = rig->params.device != NULL ? rig->params.gid_index : -1,
                         .packets = rig->params.source,
                         .serialise = rig->params.serialise,
                         .copy = rig->params.copy,
                         .timeout_ms = rig->params.timeout_ms,
                         .max_pinned = rig->params.max_pinned_from,
                         .pin_all = rig->params.pin_all};
    memcpy(params.token, token, sizeof params.token);
    *ret_tx = rm_transport_rdma.tx_new();
    gboolean ok = (*ret_tx)->ops->connect(*ret_tx, &params, cancellable, error);
    json_object_put(address);
    return ok;
}

static inline gboolean rig_connect(Rig *rig, GError **error)
{
    return rig_connect_as(rig, rig->token, rig->params.channels, NULL, &rig->tx, error);
}

/* The usual case: both ends up and joined. */
static inline Rig *rig_up(const RigParams *params)
{
    g_autoptr(GError) error = NULL;
    Rig *rig = rig_new(params);
    rig_start(rig, &error);
    g_assert_no_error(error);
    rig_connect(rig, &error);
    g_assert_no_error(error);
    return rig;
}

static inline void rig_free(Rig *rig)
{
    rm_tx_free(rig->tx);
    rm_rx_free(rig->rx);
    g_ptr_array_unref(rig->from);
    g_ptr_array_unref(rig->to);
    g_free(rig);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Rig, rig_free)

static inline RmBlock *rig_from(Rig *rig, unsigned index)
{
    return g_ptr_array_index(rig->from, index);
}

static inline RmBlock *rig_to(Rig *rig, unsigned index)
{
    return g_ptr_array_index(rig->to, index);
}

static inline unsigned rig_channel(Rig *rig, uint32_t block, uint64_t offset)
{
    return rm_chunk_channel(block, offset / rig->params.chunk_size, rig->params.channels);
}

/* What the far side answers to a request for the runs; they lie in one chunk. */
static inline gboolean rig_ask(Rig *rig, uint32_t block, const RmRun *runs, unsigned n, GArray *answer,
                               GError **error)
{
    g_autofree RmExtent *extents = g_new(RmExtent, n);
    for (unsigned i = 0; i < n; i++)
        extents[i] = (RmExtent){runs[i].offset, runs[i].offset + runs[i].length};
    return rig->rx->ops->register_chunk(rig->rx, block, runs[0].offset / rig->params.chunk_size, extents, n,
                                        answer, error);
}

static inline gboolean rig_register(Rig *rig, uint32_t block, const RmRun *runs, unsigned n, GError **error)
{
    g_autoptr(GArray) answer = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    if (!rig_ask(rig, block, runs, n, answer, error))
        return FALSE;
    g_assert_cmpint(
        rig->tx->ops->registered(rig->tx, block, (const RmRegion *)(const void *)answer->data, answer->len),
        ==, 0);
    return TRUE;
}

static inline int rig_post(Rig *rig, uint32_t block, const RmRun *runs, unsigned n)
{
    return rig->tx->ops->post(rig->tx, rig_channel(rig, block, runs[0].offset), block, runs, n);
}

/* Prepares the source's memory, as the sender does: whole granules. */
static inline int rig_prepare(Rig *rig, uint32_t block, const RmRun *runs, unsigned n)
{
    g_autofree RmExtent *extents = g_new(RmExtent, n);
    for (unsigned i = 0; i < n; i++) {
        uint64_t end = runs[i].offset + runs[i].length + RM_CHUNK_MIN - 1;
        extents[i] = (RmExtent){runs[i].offset - runs[i].offset % RM_CHUNK_MIN,
                                MIN(end - end % RM_CHUNK_MIN, ((RmBlock *)rig->from->pdata[block])->size)};
    }
    return rig->tx->ops->prepare(rig->tx, rig_channel(rig, block, runs[0].offset), block, extents, n);
}

/* Registers at both ends and posts; all must do. */
static inline void rig_write(Rig *rig, uint32_t block, const RmRun *runs, unsigned n)
{
    g_autoptr(GError) error = NULL;
    rig_register(rig, block, runs, n, &error);
    g_assert_no_error(error);
    if (rig_prepare(rig, block, runs, n) < 0 || rig_post(rig, block, runs, n) < 0)
        rig->tx->ops->error(rig->tx, &error);
    g_assert_no_error(error);
}

static inline void rig_end_round(Rig *rig, uint32_t round)
{
    g_autoptr(GError) error = NULL;
    for (unsigned i = 0; i < rig->params.channels; i++)
        g_assert_cmpint(rig->tx->ops->end_round(rig->tx, i, round), ==, 0);
    rig->rx->ops->wait_round(rig->rx, round, NULL, &error);
    g_assert_no_error(error);
}

static inline uint64_t rig_allocated(const RmBlock *block)
{
    g_autoptr(GError) error = NULL;
    uint64_t bytes = 0;
    rm_block_allocated(block, &bytes, &error);
    g_assert_no_error(error);
    return bytes;
}

static inline void rig_assert_failed(Rig *rig, RmReason reason, const char *pattern)
{
    g_autoptr(GError) error = NULL;
    g_assert_false(rig->tx->ops->error(rig->tx, &error));
    g_assert_error(error, RM_ERROR, (gint)reason);
    if (!g_pattern_match_simple(pattern, error->message))
        g_assert_cmpstr(error->message, ==, pattern);
}

/* Changes random runs of a block and posts just these, a chunk at a time. Returns the bytes posted. */
static inline uint64_t rig_change(Rig *rig, uint32_t index)
{
    RmBlock *block = rig_from(rig, index);
    uint64_t posted = 0, chunk_size = rig->params.chunk_size;
    for (uint64_t chunk = 0; chunk < rm_chunk_count(block, chunk_size); chunk++) {
        uint64_t end = chunk * chunk_size + rm_chunk_length(block, chunk_size, chunk), total = 0;
        RmRun runs[RM_RUNS_MAX];
        unsigned n = 0;
        for (uint64_t at = chunk * chunk_size + PAGES(g_test_rand_int_range(0, 40));
             at < end && n < RM_RUNS_MAX;) {
            uint64_t wish = PAGES(g_test_rand_int_range(1, 12)), length = MIN(wish, end - at);
            if (total + length > RM_POST_BYTES_MAX)
                break;
            memset(block->map + at, g_test_rand_int_range(1, 256), length);
            memcpy(block->map + at, &at, sizeof at);
            runs[n++] = (RmRun){at, length};
            total += length;
            at += length + PAGES(g_test_rand_int_range(0, 30));
        }
        if (n > 0)
            rig_write(rig, index, runs, n);
        posted += total;
    }
    return posted;
}
