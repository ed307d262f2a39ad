/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fake transport. The two ends share a Link, which lives as long as either; it is found by token in a
 * registry, the one mutable global here, since tx_new() and rx_new() take no argument by which a test could
 * join them.
 *
 * One lock for everything: a test wants a true record more than speed.
 */
#include "transport/fake.h"

#include "memory/chunk.h"
#include "transport/block-table.h"
#include "transport/failure.h"

#include <errno.h>
#include <string.h>

typedef struct {
    gatomicrefcount references;
    uint8_t token[RM_TOKEN_BYTES];
    RmFailure failure;
    GMutex lock;
    GCond changed;
    RmBlockTable *blocks; /* the destination's */
    unsigned channels;
    uint64_t chunk_size;
    uint32_t reached[RM_CHANNELS_MAX]; /* lock */
    uint64_t bytes;                    /* lock */
    gboolean stopped;                  /* lock: nothing is written any more */
} Link;

typedef struct {
    RmTx base;
    Link *link; /* NULL until connected */
    RmFailure failure;
    RmBlockTable *blocks;
    GMutex lock;
    GArray *posts; /* lock; RmFakePost */
    int fail_in;   /* lock; posts until one fails, -1: none */
    int fail_code; /* lock */
} FakeTx;

typedef struct {
    RmRx base;
    Link *link; /* NULL until started */
} FakeRx;

static GMutex registry_lock;
static GSList *registry; /* Link*, borrowed: of destinations that have been started and not freed */

static FakeTx *tx_of(RmTx *tx)
{
    return (FakeTx *)((uint8_t *)tx - G_STRUCT_OFFSET(FakeTx, base));
}

static FakeRx *rx_of(RmRx *rx)
{
    return (FakeRx *)((uint8_t *)rx - G_STRUCT_OFFSET(FakeRx, base));
}

static void link_unref(Link *link)
{
    if (link == NULL || !g_atomic_ref_count_dec(&link->references))
        return;
    rm_block_table_free(link->blocks);
    rm_failure_clear(&link->failure);
    g_mutex_clear(&link->lock);
    g_cond_clear(&link->changed);
    g_free(link);
}

static Link *find_link(const uint8_t token[RM_TOKEN_BYTES])
{
    Link *found = NULL;
    g_mutex_lock(&registry_lock);
    for (GSList *item = registry; item != NULL && found == NULL; item = item->next)
        if (rm_token_equal(((Link *)item->data)->token, token))
            found = item->data;
    if (found != NULL)
        g_atomic_ref_count_inc(&found->references);
    g_mutex_unlock(&registry_lock);
    return found;
}

/* ---- source ---- */

static gboolean fake_connect(RmTx *base, const RmTxParams *params, GCancellable *cancellable, GError **error)
{
    FakeTx *tx = tx_of(base);
    g_assert(tx->link == NULL);
    g_autoptr(GError) problem = NULL;
    if (g_cancellable_set_error_if_cancelled(cancellable, &problem))
        return rm_fail(error, RM_REASON_CANCELLED, "%s", problem->message);
    if (!rm_failure_get(&tx->failure, error))
        return FALSE;
    tx->link = find_link(params->token);
    if (tx->link == NULL)
        return rm_fail(error, RM_REASON_TOKEN, "no fake destination was started with this token");
    if (tx->link->channels != params->channels || tx->link->chunk_size != params->chunk_size)
        return rm_fail(error, RM_REASON_PROTOCOL, "the two ends differ in channels or chunk size");
    tx->blocks = rm_block_table_new(params->blocks);
    return TRUE;
}

static void fake_tx_add_block(RmTx *tx, RmBlock *block)
{
    rm_block_table_add(tx_of(tx)->blocks, block);
}

static int fake_registered(RmTx *tx, uint32_t block, const RmRegion *regions, unsigned n)
{
    return 0;
}

/* What is wrong with a post, or NULL. */
static const char *post_problem(FakeTx *tx, unsigned channel, uint32_t index, const RmRun *runs, unsigned n)
{
    const Link *link = tx->link;
    const RmBlock *from = rm_block_table_get(tx->blocks, index),
                  *to = rm_block_table_get(link->blocks, index);
    if (channel >= link->channels || n == 0 || n > RM_RUNS_MAX)
        return "channel or number of runs";
    if (from == NULL || to == NULL || from->size != to->size)
        return "block unknown or unlike at the two ends";
    uint64_t chunk = runs[0].offset / link->chunk_size, total = 0;
    for (unsigned i = 0; i < n; i++) {
        uint64_t offset = runs[i].offset, length = runs[i].length;
        if (offset % RM_PAGE != 0 || length % RM_PAGE != 0 || length == 0)
            return "run empty or not page-aligned";
        if (offset >= from->size || length > from->size - offset)
            return "run past the block's end";
        if (offset / link->chunk_size != chunk || (offset + length - 1) / link->chunk_size != chunk)
            return "runs of more than one chunk";
        total += length;
    }
    if (total > RM_POST_BYTES_MAX)
        return "more bytes than a post may have";
    return rm_chunk_channel(index, chunk, link->channels) == channel ? NULL : "chunk of another channel";
}

/* Records and writes; under both locks. */
static void write_runs(FakeTx *tx, unsigned channel, uint32_t index, const RmRun *runs, unsigned n)
{
    Link *link = tx->link;
    const RmBlock *from = rm_block_table_get(tx->blocks, index),
                  *to = rm_block_table_get(link->blocks, index);
    for (unsigned i = 0; i < n; i++) {
        RmFakePost post = {index, runs[i].offset, runs[i].length, channel, link->reached[channel] + 1};
        g_array_append_val(tx->posts, post);
        memcpy(to->map + runs[i].offset, from->map + runs[i].offset, runs[i].length);
        link->bytes += runs[i].length;
    }
}

static int fake_post(RmTx *base, unsigned channel, uint32_t index, const RmRun *runs, unsigned n)
{
    FakeTx *tx = tx_of(base);
    Link *link = tx->link;
    int code = rm_failure_code(&tx->failure);
    if (code < 0)
        return code;
    const char *problem = post_problem(tx, channel, index, runs, n);
    if (problem != NULL)
        return rm_failure_set(&tx->failure, -EINVAL, RM_REASON_INTERNAL, "bad post: %s", problem);

    g_mutex_lock(&tx->lock);
    gboolean fails = tx->fail_in >= 0 && tx->fail_in-- == 0;
    code = tx->fail_code;
    g_mutex_lock(&link->lock);
    gboolean stopped = link->stopped;
    if (!fails && !stopped)
        write_runs(tx, channel, index, runs, n);
    g_mutex_unlock(&link->lock);
    g_mutex_unlock(&tx->lock);
    if (fails)
        return rm_failure_set(&tx->failure, code, RM_REASON_TRANSPORT, "a test made this post fail");
    if (stopped)
        return rm_failure_set(&tx->failure, -EPIPE, RM_REASON_PEER_LOST, "the destination has stopped");
    return 0;
}

static int fake_end_round(RmTx *base, unsigned channel, uint32_t round)
{
    FakeTx *tx = tx_of(base);
    Link *link = tx->link;
    int code = rm_failure_code(&tx->failure);
    if (code < 0)
        return code;
    g_mutex_lock(&link->lock);
    gboolean next = channel < link->channels && round == link->reached[channel] + 1;
    if (next)
        link->reached[channel] = round;
    g_cond_broadcast(&link->changed);
    g_mutex_unlock(&link->lock);
    return next ? 0
                : rm_failure_set(&tx->failure, -EINVAL, RM_REASON_INTERNAL,
                                 "end of another round than the current one");
}

static void fake_tx_abort(RmTx *base)
{
    rm_failure_set(&tx_of(base)->failure, -ECANCELED, RM_REASON_CANCELLED, "the fake source was shut down");
}

static gboolean fake_error(RmTx *base, GError **error)
{
    return rm_failure_get(&tx_of(base)->failure, error);
}

static uint64_t fake_wire_bytes(RmTx *base)
{
    FakeTx *tx = tx_of(base);
    uint64_t bytes = 0;
    g_mutex_lock(&tx->lock);
    for (unsigned i = 0; i < tx->posts->len; i++)
        bytes += g_array_index(tx->posts, RmFakePost, i).length;
    g_mutex_unlock(&tx->lock);
    return bytes;
}

static void fake_tx_free(RmTx *base)
{
    FakeTx *tx = tx_of(base);
    /* A real source's sockets close: whoever still waits for a round hears of it. */
    if (tx->link != NULL) {
        rm_failure_set(&tx->link->failure, -ENODATA, RM_REASON_PEER_LOST, "the fake source has gone");
        g_mutex_lock(&tx->link->lock);
        g_cond_broadcast(&tx->link->changed);
        g_mutex_unlock(&tx->link->lock);
    }
    link_unref(tx->link);
    rm_block_table_free(tx->blocks);
    rm_failure_clear(&tx->failure);
    g_mutex_clear(&tx->lock);
    g_array_unref(tx->posts);
    g_free(tx);
}

static const RmTxOps tx_ops = {
    .name = "fake",
    .connect = fake_connect,
    .add_block = fake_tx_add_block,
    .registered = fake_registered,
    .prepare = rm_tx_prepare_nothing,
    .window = rm_tx_no_window,
    .release = rm_tx_release_nothing,
    .mark = rm_tx_no_mark,
    .post = fake_post,
    .end_round = fake_end_round,
    .abort = fake_tx_abort,
    .error = fake_error,
    .wire_bytes = fake_wire_bytes,
    .free = fake_tx_free,
};

static RmTx *fake_tx_new(void)
{
    FakeTx *tx = g_new0(FakeTx, 1);
    tx->base.ops = &tx_ops;
    tx->posts = g_array_new(FALSE, FALSE, sizeof(RmFakePost));
    tx->fail_in = -1;
    rm_failure_init(&tx->failure);
    g_mutex_init(&tx->lock);
    return &tx->base;
}

/* ---- destination ---- */

static gboolean fake_start(RmRx *base, const RmRxParams *params, GError **error)
{
    FakeRx *rx = rx_of(base);
    g_assert(rx->link == NULL && params->channels >= 1 && params->channels <= RM_CHANNELS_MAX);
    Link *link = g_new0(Link, 1);
    g_atomic_ref_count_init(&link->references);
    memcpy(link->token, params->token, RM_TOKEN_BYTES);
    rm_failure_init(&link->failure);
    g_mutex_init(&link->lock);
    g_cond_init(&link->changed);
    link->blocks = rm_block_table_new(params->blocks);
    link->channels = params->channels;
    link->chunk_size = params->chunk_size;
    rx->link = link;
    g_mutex_lock(&registry_lock);
    registry = g_slist_prepend(registry, link);
    g_mutex_unlock(&registry_lock);
    return TRUE;
}

static json_object *fake_offer(RmRx *rx)
{
    return NULL;
}

static gboolean fake_adopt(RmRx *rx, GIOStream *stream, unsigned channel, GError **error)
{
    g_io_stream_close(stream, NULL, NULL);
    return rm_fail(error, RM_REASON_PROTOCOL, "the fake transport takes no connections");
}

static void fake_rx_add_block(RmRx *rx, RmBlock *block)
{
    rm_block_table_add(rx_of(rx)->link->blocks, block);
}

static gboolean fake_register_chunk(RmRx *rx, uint32_t index, uint64_t chunk, const RmExtent *extents,
                                    unsigned n, GArray *regions, GError **error)
{
    RmBlock *block = rm_block_table_get(rx_of(rx)->link->blocks, index);
    if (block == NULL || chunk >= rm_chunk_count(block, rx_of(rx)->link->chunk_size))
        return rm_fail(error, RM_REASON_PROTOCOL, "no such chunk");
    for (unsigned i = 0; i < n; i++)
        if (!rm_block_populate(block, extents[i].start, extents[i].end - extents[i].start, error))
            return FALSE;
    return TRUE;
}

static gboolean all_reached(const Link *link, uint32_t round)
{
    for (unsigned i = 0; i < link->channels; i++)
        if (link->reached[i] < round)
            return FALSE;
    return TRUE;
}

static gboolean fake_wait_round(RmRx *base, uint32_t round, GCancellable *cancellable, GError **error)
{
    Link *link = rx_of(base)->link;
    gboolean reached, cancelled = FALSE;
    g_mutex_lock(&link->lock);
    /* Looks at the cancellable now and then instead of being told: this is a fake. */
    while (!(reached = all_reached(link, round)) && !link->stopped && rm_failure_code(&link->failure) == 0 &&
           !(cancelled = g_cancellable_is_cancelled(cancellable)))
        g_cond_wait_until(&link->changed, &link->lock, g_get_monotonic_time() + 10 * G_TIME_SPAN_MILLISECOND);
    g_mutex_unlock(&link->lock);
    if (reached)
        return TRUE;
    if (cancelled)
        return rm_fail(error, RM_REASON_CANCELLED, "cancelled while round %u was being received", round);
    if (!rm_failure_get(&link->failure, error))
        return FALSE;
    return rm_fail(error, RM_REASON_TRANSPORT, "stopped before round %u ended", round);
}

static void fake_rx_stop(RmRx *base)
{
    Link *link = rx_of(base)->link;
    if (link == NULL)
        return;
    g_mutex_lock(&link->lock);
    link->stopped = TRUE;
    g_cond_broadcast(&link->changed);
    g_mutex_unlock(&link->lock);
}

static void fake_rx_abort(RmRx *base)
{
    Link *link = rx_of(base)->link;
    if (link != NULL)
        rm_failure_set(&link->failure, -ECANCELED, RM_REASON_CANCELLED, "the fake destination was shut down");
    fake_rx_stop(base);
}

static uint64_t fake_payload_bytes(RmRx *base)
{
    Link *link = rx_of(base)->link;
    g_mutex_lock(&link->lock);
    uint64_t bytes = link->bytes;
    g_mutex_unlock(&link->lock);
    return bytes;
}

static void fake_rx_free(RmRx *base)
{
    FakeRx *rx = rx_of(base);
    fake_rx_stop(base);
    g_mutex_lock(&registry_lock);
    registry = g_slist_remove(registry, rx->link);
    g_mutex_unlock(&registry_lock);
    link_unref(rx->link);
    g_free(rx);
}

static const RmRxOps rx_ops = {
    .name = "fake",
    .pins = FALSE,
    .start = fake_start,
    .offer = fake_offer,
    .adopt = fake_adopt,
    .add_block = fake_rx_add_block,
    .register_chunk = fake_register_chunk,
    .release_chunk = rm_rx_release_nothing,
    .wait_round = fake_wait_round,
    .abort = fake_rx_abort,
    .payload_bytes = fake_payload_bytes,
    .registered_bytes = rm_rx_registers_nothing,
    .stop = fake_rx_stop,
    .free = fake_rx_free,
};

static RmRx *fake_rx_new(void)
{
    FakeRx *rx = g_new0(FakeRx, 1);
    rx->base.ops = &rx_ops;
    return &rx->base;
}

static gboolean fake_available(char **ret_why)
{
    return TRUE;
}

const RmTransport rm_transport_fake = {
    .name = "fake",
    .tx_new = fake_tx_new,
    .rx_new = fake_rx_new,
    .available = fake_available,
};

/* ---- what tests ask ---- */

GArray *rm_fake_posts(RmTx *base)
{
    FakeTx *tx = tx_of(base);
    g_mutex_lock(&tx->lock);
    GArray *copy = g_array_copy(tx->posts);
    g_mutex_unlock(&tx->lock);
    return copy;
}

gboolean rm_fake_check(RmTx *base, GError **error)
{
    FakeTx *tx = tx_of(base);
    g_autoptr(GArray) posts = rm_fake_posts(base);
    /* By "block page": the last round it went in. Rounds only rise, so the last is the one to compare with.
     */
    g_autoptr(GHashTable) last = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    for (unsigned i = 0; i < posts->len; i++) {
        const RmFakePost *post = &g_array_index(posts, RmFakePost, i);
        uint64_t chunk = post->offset / tx->link->chunk_size;
        if (rm_chunk_channel(post->block, chunk, tx->link->channels) != post->channel)
            return rm_fail(error, RM_REASON_INTERNAL,
                           "block %u, offset %" G_GUINT64_FORMAT ": went by channel %u", post->block,
                           post->offset, post->channel);
        for (uint64_t page = post->offset / RM_PAGE; page < (post->offset + post->length) / RM_PAGE; page++) {
            char *key = g_strdup_printf("%u %" G_GUINT64_FORMAT, post->block, page);
            if (GPOINTER_TO_UINT(g_hash_table_lookup(last, key)) == post->round) {
                g_free(key);
                return rm_fail(error, RM_REASON_INTERNAL,
                               "block %u, page %" G_GUINT64_FORMAT ": went twice in round %u", post->block,
                               page, post->round);
            }
            g_hash_table_replace(last, key, GUINT_TO_POINTER(post->round));
        }
    }
    return TRUE;
}

void rm_fake_fail_post(RmTx *base, unsigned nth, int code)
{
    FakeTx *tx = tx_of(base);
    g_assert(code < 0);
    g_mutex_lock(&tx->lock);
    tx->fail_in = (int)nth;
    tx->fail_code = code;
    g_mutex_unlock(&tx->lock);
}
