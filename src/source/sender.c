/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The sender's threads.
 *
 * Ownership: a chunk belongs to one channel, so each part of a block's state (plan.h) has one writer. Lock
 * order: none is taken while another is held.
 *
 * Registration is asked for by granules of RM_CHUNK_MIN, each once, and only where something is written: a
 * chunk of zeroes is never registered, and a sparse one only in part.
 */
#include "source/sender.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "memory/chunk.h"
#include "source/plan.h"

#include <errno.h>

/* One batch of chunks is planned, asked for, and written while the next one is planned. Large enough that the
 * answer is there before its turn comes, small enough that the far end's populated-but-unwritten memory stays
 * bounded. */
#define BATCH_BYTES (UINT64_C(64) << 20)
#define BATCH_CHUNKS 64
#define PIN_ASKS_IN_FLIGHT 8  /* keeps the far end's registration threads busy */
#define ASK_TIMEOUT_MS 120000 /* of a peer that is alive: a batch may be populated page by page */
G_STATIC_ASSERT(BATCH_CHUNKS *RM_PLAN_EXTENTS_MAX <= RM_REGISTER_EXTENTS_MAX);

typedef enum { WORK_CHUNK, WORK_ROUND_END, WORK_QUIT } WorkKind;

typedef struct {
    WorkKind kind;
    uint32_t block;
    uint64_t chunk; /* or the round's number */
    const RmBitmap *pages;
} Work;

/* A request that is not answered yet. */
typedef struct {
    uint64_t id;
    uint32_t block;
} Ask;

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

struct RmSender {
    RmSenderParams params; /* immutable */
    GPtrArray *states;     /* RmSendState*; grows only between rounds */
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

/* What was waited for since `begin_us`. */
static void count_wait(RmSender *sender, int64_t begin_us)
{
    g_mutex_lock(&sender->lock);
    sender->counts.registration_us += g_get_monotonic_time() - begin_us;
    g_mutex_unlock(&sender->lock);
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

/* Largest post: under a bandwidth cap a twentieth of a second's worth, so that the rate is even. */
static uint64_t post_limit(const RmSender *sender)
{
    uint64_t rate = sender->params.max_bandwidth;
    uint64_t limit = rate == 0 ? RM_POST_BYTES_MAX : MIN(RM_POST_BYTES_MAX, rate / 20);
    return MAX(limit & ~(uint64_t)(RM_PAGE - 1), RM_PAGE);
}

/* ---- batches: registration ahead of the writes ---- */

static Batch *batch_new(void)
{
    Batch *batch = g_new0(Batch, 1);
    batch->plans = g_ptr_array_new_with_free_func(rm_plan_free);
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
        const RmPlan *plan = batch->plans->pdata[i];
        if (plan->extents->len == 0)
            continue;
        if (request != NULL && request->block != plan->block) {
            ok = send_ask(sender, batch, request);
            g_clear_pointer(&request, rm_register_free);
        }
        if (request == NULL)
            request = rm_register_new(plan->block);
        g_array_append_vals(rm_register_add(request, plan->chunk)->extents, plan->extents->data,
                            plan->extents->len);
    }
    if (request != NULL && ok)
        ok = send_ask(sender, batch, request);
    rm_register_free(request);
    return ok;
}

static gboolean finish_ask(RmSender *sender, const Ask *asked, GError **error)
{
    const RmSendState *state = sender->states->pdata[asked->block];
    RmTx *tx = sender->params.tx;
    rm_autojson reply = NULL;
    if (!rm_control_finish(sender->params.control, asked->id, ASK_TIMEOUT_MS, sender->stopping, &reply,
                           error) ||
        !rm_message_expect(reply, RM_MSG_REGISTERED, error))
        return FALSE;
    g_autoptr(GArray) regions = rm_registered_decode(reply, state->block, sender->params.chunk_size, error);
    if (regions == NULL)
        return FALSE;
    int status =
        tx->ops->registered(tx, asked->block, (const RmRegion *)(const void *)regions->data, regions->len);
    return status == 0 || rm_set_errno(error, RM_REASON_TRANSPORT, -status, "taking in a registration");
}

/* Takes the answers to a batch's requests in. */
static gboolean finish_asks(RmSender *sender, Batch *batch)
{
    int64_t begin = g_get_monotonic_time();
    for (guint i = 0; i < batch->asks->len; i++) {
        GError *problem = NULL;
        if (!finish_ask(sender, &g_array_index(batch->asks, Ask, i), &problem)) {
            fail(sender, problem);
            return FALSE;
        }
    }
    g_array_set_size(batch->asks, 0);
    count_wait(sender, begin);
    return TRUE;
}

/* ---- posting ---- */

static gboolean post_plan(Worker *worker, const RmPlan *plan)
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
    RmSender *sender = worker->sender;
    if (worker->current == NULL)
        worker->current = batch_new();
    Batch *batch = worker->current;
    RmPlan *plan = rm_plan_new(sender->states->pdata[work->block], work->block, work->chunk,
                               sender->params.chunk_size, work->pages, post_limit(sender), worker->zeroes);
    count(sender, 0, plan->zero_pages, plan->extents->len > 0);
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

RmSender *rm_sender_new(const RmSenderParams *params)
{
    RmSender *sender = g_new0(RmSender, 1);
    sender->params = *params;
    g_mutex_init(&sender->lock);
    g_cond_init(&sender->ended);
    sender->stopping = g_cancellable_new();
    sender->states = g_ptr_array_new_with_free_func(rm_send_state_free);
    for (guint i = 0; i < params->blocks->len; i++)
        g_ptr_array_add(sender->states,
                        rm_send_state_new(params->blocks->pdata[i], TRUE,
                                          params->watches != NULL ? params->watches->pdata[i] : NULL));
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
    g_ptr_array_add(sender->states, rm_send_state_new(block, FALSE, NULL));
    tx->ops->add_block(tx, block);
    int status = tx->ops->registered(tx, index, (const RmRegion *)(const void *)regions->data, regions->len);
    if (status != 0)
        fail_transport(sender, status); /* seen by the next flush */
    return index;
}

/* Whole chunks of `block` from *chunk on, as many as fit in a message. */
static RmRegister *whole_chunks(const RmSender *sender, uint32_t index, const RmBlock *block, uint64_t *chunk)
{
    uint64_t chunk_size = sender->params.chunk_size;
    RmRegister *request = rm_register_new(index);
    for (; *chunk < rm_chunk_count(block, chunk_size) && request->chunks->len < BATCH_CHUNKS; (*chunk)++) {
        uint64_t start = *chunk * chunk_size;
        RmExtent extent = {start, start + rm_chunk_length(block, chunk_size, *chunk)};
        g_array_append_val(rm_register_add(request, *chunk)->extents, extent);
    }
    return request;
}

static gboolean take_oldest(RmSender *sender, GQueue *asked, GError **error)
{
    g_autofree Ask *oldest = g_queue_pop_head(asked);
    return finish_ask(sender, oldest, error);
}

gboolean rm_sender_pin_all(RmSender *sender, gboolean (*tick)(gpointer data, GError **error), gpointer data,
                           GError **error)
{
    GQueue asked = G_QUEUE_INIT;
    int64_t begin = g_get_monotonic_time();
    gboolean ok = TRUE;
    for (uint32_t i = 0; ok && i < sender->states->len; i++) {
        RmSendState *state = sender->states->pdata[i];
        rm_send_state_asked(state);
        for (uint64_t chunk = 0; ok && chunk < rm_chunk_count(state->block, sender->params.chunk_size);) {
            g_autoptr(RmRegister) request = whole_chunks(sender, i, state->block, &chunk);
            uint64_t id = rm_control_begin(sender->params.control, rm_register_encode(request), error);
            ok = id != 0 && tick(data, error);
            if (id != 0) {
                Ask *ask = g_new(Ask, 1);
                *ask = (Ask){id, i};
                g_queue_push_tail(&asked, ask);
                count(sender, 0, 0, request->chunks->len);
            }
            if (ok && asked.length >= PIN_ASKS_IN_FLIGHT)
                ok = take_oldest(sender, &asked, error);
        }
    }
    while (ok && asked.length > 0)
        ok = take_oldest(sender, &asked, error) && tick(data, error);
    g_queue_clear_full(&asked, g_free);
    count_wait(sender, begin);
    return ok;
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
    return ((RmSendState *)sender->states->pdata[block])->sent;
}

RmSenderCounts rm_sender_counts(RmSender *sender)
{
    g_mutex_lock(&sender->lock);
    RmSenderCounts counts = sender->counts;
    g_mutex_unlock(&sender->lock);
    return counts;
}
