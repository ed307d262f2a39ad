/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The sender's threads.
 *
 * Ownership: a chunk belongs to one channel, so its parts of `sent` and `asked` have one writer. Bitmap words
 * are never shared between chunks: a chunk is at least 256 pages, four words. Lock order: none is taken while
 * another is held.
 *
 * Registration is asked for by granules of RM_CHUNK_MIN, each once, and only where something is written: a
 * chunk of zeroes is never registered, and a sparse one only in part.
 */
#include "source/sender.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "memory/chunk.h"
#include "memory/zero.h"

#include <errno.h>

/* One batch of chunks is planned, asked for, and written while the next one is planned. Large enough that the
 * answer is there before its turn comes, small enough that the far end's populated-but-unwritten memory stays
 * bounded. */
#define BATCH_BYTES (UINT64_C(64) << 20)
#define BATCH_CHUNKS 64
#define ASK_TIMEOUT_MS 120000 /* of a peer that is alive: a batch may be populated page by page */
#define EXTENTS_PER_CHUNK 128 /* BATCH_CHUNKS * this stays under RM_REGISTER_EXTENTS_MAX */

typedef enum { WORK_CHUNK, WORK_ROUND_END, WORK_QUIT } WorkKind;

typedef struct {
    WorkKind kind;
    uint32_t block;
    uint64_t chunk; /* or the round's number */
    const RmBitmap *pages;
} Work;

/* A chunk looked at: what is to be written. */
typedef struct {
    uint32_t block;
    uint64_t chunk;
    GArray *runs;    /* RmRun */
    GArray *extents; /* RmExtent: what is not writable at the far end yet, if any */
} Plan;

/* A request that is not answered yet. */
typedef struct {
    uint64_t id;
    uint32_t block;
} Ask;

typedef enum { UNASKED, ASKING /* by the plan being made */, ASKED } Asked;

typedef struct {
    GPtrArray *plans;
    uint64_t bytes;
    GArray *asks; /* Ask */
} Batch;

typedef struct {
    RmSender *sender;
    unsigned channel;
    GThread *thread;
    GAsyncQueue *queue; /* of Work */
    /* owned by the thread; the session reads them after flush() */
    Batch *current;
    GQueue ready; /* of Batch*, asked for */
    GArray *zeroes;
} Worker;

typedef struct {
    RmBlock *block;
    RmBitmap *sent; /* one bit a page */
    uint8_t *asked; /* one Asked a granule; NULL: all is writable */
} BlockState;

struct RmSender {
    RmSenderParams params; /* immutable */
    GPtrArray *states;     /* BlockState*; grows only between rounds */
    Worker *workers;

    GMutex lock; /* all below */
    GCond ended;
    unsigned rounds_pending; /* channels that have not ended the round yet */
    GError *error;           /* the first failure */
    int64_t next_free_us;    /* bandwidth cap: when the wire is free again */
    RmSenderCounts counts;
    gint failed;            /* atomic: the data path has ended */
    GCancellable *stopping; /* ends waits for the far end's answers */
};

/* ---- failure and accounting ---- */

static void fail(RmSender *sender, GError *problem)
{
    g_mutex_lock(&sender->lock);
    if (sender->error == NULL)
        sender->error = problem;
    else
        g_error_free(problem);
    g_atomic_int_set(&sender->failed, 1);
    g_cond_broadcast(&sender->ended);
    g_mutex_unlock(&sender->lock);
}

static void fail_transport(RmSender *sender, int status)
{
    GError *problem = NULL;
    if (sender->params.tx->ops->error(sender->params.tx, &problem))
        rm_set_errno(&problem, RM_REASON_TRANSPORT, -status, "writing to the destination");
    fail(sender, problem);
}

static void count(RmSender *sender, uint64_t bytes, uint64_t zero_pages, uint64_t registrations)
{
    g_mutex_lock(&sender->lock);
    sender->counts.sent_bytes += bytes;
    sender->counts.zero_pages += zero_pages;
    sender->counts.registrations += registrations;
    g_mutex_unlock(&sender->lock);
}

/* Holds the caller back until `bytes` fit under the bandwidth cap. */
static void throttle(RmSender *sender, uint64_t bytes)
{
    uint64_t rate = sender->params.max_bandwidth;
    if (rate == 0)
        return;
    g_mutex_lock(&sender->lock);
    int64_t start = MAX(g_get_monotonic_time(), sender->next_free_us);
    sender->next_free_us = start + (int64_t)((double)bytes * 1e6 / (double)rate);
    g_mutex_unlock(&sender->lock);
    for (int64_t left = start - g_get_monotonic_time(); left > 0 && !g_atomic_int_get(&sender->failed);
         left = start - g_get_monotonic_time())
        g_usleep(MIN(left, 50000));
}

/* ---- planning: zero test and coalescing ---- */

static void append_zero(GArray *zeroes, uint64_t block, uint64_t page)
{
    if (zeroes->len > 0) {
        RmZeroRange *last = &g_array_index(zeroes, RmZeroRange, zeroes->len - 1);
        if (last->block == block && last->page + last->count == page) {
            last->count++;
            return;
        }
    }
    RmZeroRange range = {block, page, 1};
    g_array_append_val(zeroes, range);
}

static void append_page(GArray *runs, uint64_t page, uint64_t max_bytes)
{
    uint64_t offset = page << RM_PAGE_SHIFT;
    if (runs->len > 0) {
        RmRun *last = &g_array_index(runs, RmRun, runs->len - 1);
        if (last->offset + last->length == offset && last->length + RM_PAGE <= max_bytes) {
            last->length += RM_PAGE;
            return;
        }
    }
    RmRun run = {offset, RM_PAGE};
    g_array_append_val(runs, run);
}

/* Largest post: under a bandwidth cap a twentieth of a second's worth, so that the rate is even. */
static uint64_t post_limit(const RmSender *sender)
{
    uint64_t rate = sender->params.max_bandwidth;
    uint64_t limit = rate == 0 ? RM_POST_BYTES_MAX : MIN(RM_POST_BYTES_MAX, rate / 20);
    return MAX(limit & ~(uint64_t)(RM_PAGE - 1), RM_PAGE);
}

/* Extents of the plan's runs that lie in granules which nobody has asked for yet. */
static void find_unasked(Plan *plan, uint8_t *asked)
{
    for (guint i = 0; i < plan->runs->len; i++) {
        const RmRun *run = &g_array_index(plan->runs, RmRun, i);
        uint64_t end = run->offset + run->length;
        for (uint64_t at = run->offset; at < end; at = MIN((at / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN, end)) {
            RmExtent extent = {at, MIN((at / RM_CHUNK_MIN + 1) * RM_CHUNK_MIN, end)};
            if (asked[at / RM_CHUNK_MIN] == ASKED)
                continue;
            asked[at / RM_CHUNK_MIN] = ASKING;
            g_array_append_val(plan->extents, extent);
        }
    }
    for (guint i = 0; i < plan->extents->len; i++)
        asked[g_array_index(plan->extents, RmExtent, i).start / RM_CHUNK_MIN] = ASKED;
}

static Plan *plan_chunk(Worker *worker, const Work *work)
{
    RmSender *sender = worker->sender;
    BlockState *state = sender->states->pdata[work->block];
    const RmBlock *block = state->block;
    uint64_t first = work->chunk * sender->params.chunk_size / RM_PAGE;
    uint64_t end = first + rm_chunk_length(block, sender->params.chunk_size, work->chunk) / RM_PAGE;
    uint64_t limit = post_limit(sender), zero_pages = 0;

    Plan *plan = g_new0(Plan, 1);
    plan->block = work->block;
    plan->chunk = work->chunk;
    plan->runs = g_array_new(FALSE, FALSE, sizeof(RmRun));
    plan->extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    rm_bitmap_foreach_run (work->pages, first, end, from, to) {
        for (uint64_t page = from; page < to; page++) {
            /* A page that changes after this look is reported by the tracker and comes again in a later
             * round. */
            if (!rm_is_zero(block->map + (page << RM_PAGE_SHIFT), RM_PAGE)) {
                append_page(plan->runs, page, limit);
                rm_bitmap_set(state->sent, page, 1);
                continue;
            }
            zero_pages++;
            if (rm_bitmap_test(state->sent, page)) {
                append_zero(worker->zeroes, work->block, page);
                rm_bitmap_clear(state->sent, page, 1);
            }
        }
    }
    if (state->asked != NULL)
        find_unasked(plan, state->asked);
    count(sender, 0, zero_pages, plan->extents->len > 0);
    return plan;
}

static void plan_free(gpointer data)
{
    Plan *plan = data;
    g_array_unref(plan->runs);
    g_array_unref(plan->extents);
    g_free(plan);
}

/* ---- batches: registration ahead of the writes ---- */

static Batch *batch_new(void)
{
    Batch *batch = g_new0(Batch, 1);
    batch->plans = g_ptr_array_new_with_free_func(plan_free);
    batch->asks = g_array_new(FALSE, FALSE, sizeof(Ask));
    return batch;
}

static void batch_free(gpointer data)
{
    Batch *batch = data;
    if (batch == NULL)
        return;
    g_ptr_array_unref(batch->plans);
    g_array_unref(batch->asks);
    g_free(batch);
}

/* At most EXTENTS_PER_CHUNK extents that cover a plan's: the gap that is closed is as small as that needs. */
static void fill_extents(const GArray *wanted, GArray *extents)
{
    for (uint64_t gap = 0;; gap = MAX(gap * 4, RM_PAGE)) {
        g_array_set_size(extents, 0);
        for (guint i = 0; i < wanted->len; i++) {
            RmExtent extent = g_array_index(wanted, RmExtent, i);
            RmExtent *last = extents->len > 0 ? &g_array_index(extents, RmExtent, extents->len - 1) : NULL;
            if (last != NULL && extent.start - last->end <= gap)
                last->end = extent.end;
            else
                g_array_append_val(extents, extent);
        }
        if (extents->len <= EXTENTS_PER_CHUNK)
            return;
    }
}

static gboolean send_ask(RmSender *sender, Batch *batch, RmRegister *request)
{
    GError *problem = NULL;
    uint64_t id = rm_control_begin(sender->params.control, rm_register_encode(request), &problem);
    if (id == 0) {
        fail(sender, problem);
        return FALSE;
    }
    Ask asked = {id, (uint32_t)request->block};
    g_array_append_val(batch->asks, asked);
    return TRUE;
}

static gboolean ask(RmSender *sender, Batch *batch)
{
    RmRegister *request = NULL;
    gboolean ok = TRUE;
    for (guint i = 0; i < batch->plans->len && ok; i++) {
        const Plan *plan = batch->plans->pdata[i];
        if (plan->extents->len == 0)
            continue;
        if (request != NULL && request->block != plan->block) {
            ok = send_ask(sender, batch, request);
            g_clear_pointer(&request, rm_register_free);
        }
        if (request == NULL)
            request = rm_register_new(plan->block);
        fill_extents(plan->extents, rm_register_add(request, plan->chunk)->extents);
    }
    if (request != NULL && ok)
        ok = send_ask(sender, batch, request);
    rm_register_free(request);
    return ok;
}

static gboolean finish_ask(RmSender *sender, const Ask *asked, GError **error)
{
    const BlockState *state = sender->states->pdata[asked->block];
    RmTx *tx = sender->params.tx;
    rm_autojson reply = NULL;
    if (!rm_control_finish(sender->params.control, asked->id, ASK_TIMEOUT_MS, sender->stopping, &reply, error) ||
        !rm_message_expect(reply, RM_MSG_REGISTERED, error))
        return FALSE;
    g_autoptr(GArray) regions = rm_registered_decode(reply, state->block, sender->params.chunk_size, error);
    if (regions == NULL)
        return FALSE;
    int status = tx->ops->registered(tx, asked->block, (const RmRegion *)(const void *)regions->data, regions->len);
    return status == 0 || rm_set_errno(error, RM_REASON_TRANSPORT, -status, "taking in a registration");
}

/* Takes the answers to a batch's requests in. */
static gboolean finish_asks(RmSender *sender, Batch *batch)
{
    for (guint i = 0; i < batch->asks->len; i++) {
        GError *problem = NULL;
        if (!finish_ask(sender, &g_array_index(batch->asks, Ask, i), &problem)) {
            fail(sender, problem);
            return FALSE;
        }
    }
    g_array_set_size(batch->asks, 0);
    return TRUE;
}

/* ---- posting ---- */

static gboolean post_plan(Worker *worker, const Plan *plan)
{
    RmSender *sender = worker->sender;
    RmTx *tx = sender->params.tx;
    const RmRun *runs = (const RmRun *)(const void *)plan->runs->data;
    uint64_t limit = post_limit(sender);
    for (guint i = 0; i < plan->runs->len;) {
        uint64_t bytes = runs[i].length;
        unsigned n = 1;
        while (i + n < plan->runs->len && n < RM_RUNS_MAX && bytes + runs[i + n].length <= limit)
            bytes += runs[i + n++].length;
        throttle(sender, bytes);
        int status = tx->ops->post(tx, worker->channel, plan->block, runs + i, n);
        if (status < 0) {
            fail_transport(sender, status);
            return FALSE;
        }
        count(sender, bytes, 0, 0);
        i += n;
    }
    return TRUE;
}

/* Writes the oldest batch. Its requests are finished first, so that a refusal (no memory) is known before the
 * round ends, and no more than two batches are populated ahead. */
static gboolean post_oldest(Worker *worker)
{
    Batch *batch = g_queue_pop_head(&worker->ready);
    gboolean ok = finish_asks(worker->sender, batch);
    for (guint i = 0; i < batch->plans->len && ok; i++)
        ok = post_plan(worker, batch->plans->pdata[i]);
    batch_free(batch);
    return ok;
}

static gboolean close_batch(Worker *worker)
{
    Batch *batch = g_steal_pointer(&worker->current);
    if (batch == NULL)
        return TRUE;
    g_queue_push_tail(&worker->ready, batch);
    return ask(worker->sender, batch);
}

static gboolean do_chunk(Worker *worker, const Work *work)
{
    if (worker->current == NULL)
        worker->current = batch_new();
    Batch *batch = worker->current;
    Plan *plan = plan_chunk(worker, work);
    g_ptr_array_add(batch->plans, plan);
    for (guint i = 0; i < plan->runs->len; i++)
        batch->bytes += g_array_index(plan->runs, RmRun, i).length;
    if (batch->bytes < BATCH_BYTES && batch->plans->len < BATCH_CHUNKS)
        return TRUE;
    if (!close_batch(worker))
        return FALSE;
    return worker->ready.length < 2 || post_oldest(worker);
}

static gboolean do_round_end(Worker *worker, const Work *work)
{
    RmSender *sender = worker->sender;
    if (!close_batch(worker))
        return FALSE;
    while (worker->ready.length > 0) {
        if (!post_oldest(worker))
            return FALSE;
    }
    int status = sender->params.tx->ops->end_round(sender->params.tx, worker->channel, (uint32_t)work->chunk);
    if (status < 0) {
        fail_transport(sender, status);
        return FALSE;
    }
    g_mutex_lock(&sender->lock);
    if (--sender->rounds_pending == 0)
        g_cond_broadcast(&sender->ended);
    g_mutex_unlock(&sender->lock);
    return TRUE;
}

static gpointer worker_main(gpointer data)
{
    Worker *worker = data;
    for (;;) {
        g_autofree Work *work = g_async_queue_pop(worker->queue);
        if (work->kind == WORK_QUIT)
            return NULL;
        if (g_atomic_int_get(&worker->sender->failed))
            continue; /* the session sees the failure in flush() */
        if (work->kind == WORK_CHUNK)
            do_chunk(worker, work);
        else
            do_round_end(worker, work);
    }
}

/* ---- the session's side ---- */

static void state_free(gpointer data)
{
    BlockState *state = data;
    rm_bitmap_free(state->sent);
    g_free(state->asked);
    g_free(state);
}

static BlockState *state_new(RmBlock *block, gboolean registers)
{
    BlockState *state = g_new0(BlockState, 1);
    state->block = block;
    state->sent = rm_bitmap_new(rm_block_pages(block));
    if (registers)
        state->asked = g_new0(uint8_t, rm_chunk_count(block, RM_CHUNK_MIN));
    return state;
}

RmSender *rm_sender_new(const RmSenderParams *params)
{
    RmSender *sender = g_new0(RmSender, 1);
    sender->params = *params;
    g_mutex_init(&sender->lock);
    g_cond_init(&sender->ended);
    sender->stopping = g_cancellable_new();
    sender->states = g_ptr_array_new_with_free_func(state_free);
    for (guint i = 0; i < params->blocks->len; i++)
        g_ptr_array_add(sender->states, state_new(params->blocks->pdata[i], TRUE));
    sender->workers = g_new0(Worker, params->channels);
    for (unsigned i = 0; i < params->channels; i++) {
        Worker *worker = &sender->workers[i];
        worker->sender = sender;
        worker->channel = i;
        worker->queue = g_async_queue_new_full(g_free);
        worker->zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
        g_queue_init(&worker->ready);
        g_autofree char *name = g_strdup_printf("send-%u", i);
        worker->thread = g_thread_new(name, worker_main, worker);
    }
    return sender;
}

static void push_work(Worker *worker, WorkKind kind, uint32_t block, uint64_t chunk, const RmBitmap *pages)
{
    Work *work = g_new(Work, 1);
    *work = (Work){kind, block, chunk, pages};
    g_async_queue_push(worker->queue, work);
}

void rm_sender_free(RmSender *sender)
{
    if (sender == NULL)
        return;
    g_atomic_int_set(&sender->failed, 1);
    g_cancellable_cancel(sender->stopping);
    for (unsigned i = 0; i < sender->params.channels; i++)
        push_work(&sender->workers[i], WORK_QUIT, 0, 0, NULL);
    for (unsigned i = 0; i < sender->params.channels; i++) {
        Worker *worker = &sender->workers[i];
        g_thread_join(worker->thread);
        g_async_queue_unref(worker->queue);
        g_array_unref(worker->zeroes);
        batch_free(worker->current);
        g_queue_clear_full(&worker->ready, batch_free);
    }
    g_free(sender->workers);
    g_ptr_array_unref(sender->states);
    g_clear_error(&sender->error);
    g_object_unref(sender->stopping);
    g_mutex_clear(&sender->lock);
    g_cond_clear(&sender->ended);
    g_free(sender);
}

uint32_t rm_sender_add_block(RmSender *sender, RmBlock *block, const GArray *regions)
{
    RmTx *tx = sender->params.tx;
    uint32_t index = sender->states->len;
    g_ptr_array_add(sender->states, state_new(block, FALSE));
    tx->ops->add_block(tx, block);
    int status = tx->ops->registered(tx, index, (const RmRegion *)(const void *)regions->data, regions->len);
    if (status != 0)
        fail_transport(sender, status); /* seen by the next flush */
    return index;
}

void rm_sender_push(RmSender *sender, uint32_t block, uint64_t chunk, const RmBitmap *pages)
{
    unsigned channel = rm_chunk_channel(block, chunk, sender->params.channels);
    push_work(&sender->workers[channel], WORK_CHUNK, block, chunk, pages);
}

gboolean rm_sender_flush(RmSender *sender, uint32_t round, gboolean (*tick)(gpointer data, GError **error),
                         gpointer data, GError **error)
{
    g_mutex_lock(&sender->lock);
    sender->rounds_pending = sender->params.channels;
    g_mutex_unlock(&sender->lock);
    for (unsigned i = 0; i < sender->params.channels; i++)
        push_work(&sender->workers[i], WORK_ROUND_END, 0, round, NULL);

    g_mutex_lock(&sender->lock);
    while (sender->rounds_pending > 0 && sender->error == NULL) {
        if (g_cond_wait_until(&sender->ended, &sender->lock,
                              g_get_monotonic_time() + 100 * G_TIME_SPAN_MILLISECOND))
            continue;
        g_mutex_unlock(&sender->lock);
        if (!tick(data, error)) {
            g_atomic_int_set(&sender->failed, 1);
            sender->params.tx->ops->abort(sender->params.tx);
            return FALSE;
        }
        g_mutex_lock(&sender->lock);
    }
    GError *problem = sender->error != NULL ? g_error_copy(sender->error) : NULL;
    g_mutex_unlock(&sender->lock);
    if (problem == NULL)
        return TRUE;
    sender->params.tx->ops->abort(sender->params.tx);
    g_propagate_error(error, problem);
    return FALSE;
}

void rm_sender_take_zeroes(RmSender *sender, GArray *zeroes)
{
    for (unsigned i = 0; i < sender->params.channels; i++) {
        GArray *found = sender->workers[i].zeroes;
        g_array_append_vals(zeroes, found->data, found->len);
        g_array_set_size(found, 0);
    }
}

RmBitmap *rm_sender_sent(RmSender *sender, uint32_t block)
{
    return ((BlockState *)sender->states->pdata[block])->sent;
}

RmSenderCounts rm_sender_counts(RmSender *sender)
{
    g_mutex_lock(&sender->lock);
    RmSenderCounts counts = sender->counts;
    g_mutex_unlock(&sender->lock);
    return counts;
}
