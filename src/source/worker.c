/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A channel's thread. */
#include "source/worker.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "memory/chunk.h"
#include "source/pin.h"
#include "transport/window.h"

#include <errno.h>

/* One batch of chunks is planned, asked for, and written while the next one is planned. Large enough that the
 * answer is there before its turn comes, small enough that the far end's populated-but-unwritten memory stays
 * bounded. The first ones are small, since nothing is written until the very first one has been answered:
 * each doubles the one before. */
#define BATCH_BYTES_FIRST (UINT64_C(4) << 20)
#define BATCH_BYTES_MOST (UINT64_C(64) << 20)
G_STATIC_ASSERT(RM_BATCH_CHUNKS *RM_PLAN_EXTENTS_MAX <= RM_REGISTER_EXTENTS_MAX);

typedef enum { WORK_CHUNK, WORK_POST, WORK_ROUND_END, WORK_QUIT } WorkKind;

typedef struct {
    WorkKind kind;
    uint32_t block;
    uint64_t chunk; /* or the round's number */
    const RmBitmap *pages;
} Work;

struct RmSendBatch {
    uint32_t number; /* from 1, for each channel */
    GPtrArray *plans;
    uint64_t bytes;
    uint64_t touched; /* bytes of granules */
    GArray *asks;     /* RmAsk */
};

/* ---- failure and accounting ---- */

void rm_sending_fail(RmSending *sender, GError *problem)
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

void rm_sending_fail_transport(RmSending *sender, int status)
{
    GError *problem = NULL;
    if (sender->params.tx->ops->error(sender->params.tx, &problem))
        rm_set_errno(&problem, RM_REASON_TRANSPORT, -status, "writing to the destination");
    rm_sending_fail(sender, problem);
}

void rm_sending_count_wait(RmSending *sender, int64_t begin_us)
{
    g_mutex_lock(&sender->lock);
    sender->counts.registration_us += g_get_monotonic_time() - begin_us;
    g_mutex_unlock(&sender->lock);
}

void rm_sending_count(RmSending *sender, uint64_t bytes, uint64_t zero_pages, uint64_t registrations)
{
    g_mutex_lock(&sender->lock);
    sender->counts.sent_bytes += bytes;
    sender->counts.zero_pages += zero_pages;
    sender->counts.registrations += registrations;
    g_mutex_unlock(&sender->lock);
}

/* Holds the caller back until `bytes` fit under the bandwidth cap. */
static void throttle(RmSending *sender, uint64_t bytes)
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
static uint64_t post_limit(const RmSending *sender)
{
    uint64_t rate = sender->params.max_bandwidth;
    uint64_t limit = rate == 0 ? RM_POST_BYTES_MAX : MIN(RM_POST_BYTES_MAX, rate / 20);
    return MAX(limit & ~(uint64_t)(RM_PAGE - 1), RM_PAGE);
}

/* ---- batches: registration ahead of the writes ---- */

static RmSendBatch *batch_new(uint32_t number)
{
    RmSendBatch *batch = g_new0(RmSendBatch, 1);
    batch->number = number;
    batch->plans = g_ptr_array_new_with_free_func(rm_plan_free);
    batch->asks = g_array_new(FALSE, FALSE, sizeof(RmAsk));
    return batch;
}

static void batch_free(gpointer data)
{
    RmSendBatch *batch = data;
    if (batch == NULL)
        return;
    g_ptr_array_unref(batch->plans);
    g_array_unref(batch->asks);
    g_free(batch);
}

static gboolean send_ask(RmSending *sender, RmSendBatch *batch, RmRegister *request)
{
    GError *problem = NULL;
    uint64_t id = rm_control_begin(sender->params.control, rm_register_encode(request), &problem);
    if (id == 0) {
        rm_sending_fail(sender, problem);
        return FALSE;
    }
    RmAsk asked = {id, (uint32_t)request->block};
    g_array_append_val(batch->asks, asked);
    return TRUE;
}

static gboolean ask(RmSending *sender, RmSendBatch *batch)
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

/* While the answers are on their way. With everything pinned that is the pinning's, until it has ended. */
static gboolean prepare(RmSendWorker *worker, const RmSendBatch *batch)
{
    RmSending *sender = worker->sender;
    RmTx *tx = sender->params.tx;
    int status = 0;
    if (sender->pin != NULL && !worker->pinned)
        return TRUE;
    for (guint i = 0; i < batch->plans->len && status == 0; i++) {
        const RmPlan *plan = batch->plans->pdata[i];
        status = tx->ops->prepare(tx, worker->channel, plan->block,
                                  (const RmExtent *)(const void *)plan->granules->data, plan->granules->len);
    }
    if (status < 0)
        rm_sending_fail_transport(sender, status);
    return status == 0;
}

gboolean rm_sending_finish_ask(RmSending *sender, const RmAsk *asked, GError **error)
{
    const RmSendState *state = sender->states->pdata[asked->block];
    RmTx *tx = sender->params.tx;
    rm_autojson reply = NULL;
    if (!rm_control_finish(sender->params.control, asked->id, RM_ASK_TIMEOUT_MS, sender->stopping, &reply,
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
static gboolean finish_asks(RmSending *sender, RmSendBatch *batch)
{
    int64_t begin = g_get_monotonic_time();
    for (guint i = 0; i < batch->asks->len; i++) {
        GError *problem = NULL;
        if (!rm_sending_finish_ask(sender, &g_array_index(batch->asks, RmAsk, i), &problem)) {
            rm_sending_fail(sender, problem);
            return FALSE;
        }
    }
    g_array_set_size(batch->asks, 0);
    rm_sending_count_wait(sender, begin);
    return TRUE;
}

/* ---- posting ---- */

static gboolean post_plan(RmSendWorker *worker, const RmPlan *plan)
{
    RmSending *sender = worker->sender;
    if (sender->pin != NULL && !worker->pinned && !rm_pin_wait(sender->pin, plan->block, plan->chunk))
        return FALSE;
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
            rm_sending_fail_transport(sender, status);
            return FALSE;
        }
        rm_sending_count(sender, bytes, 0, 0);
        i += n;
    }
    return TRUE;
}

/* Writes the oldest batch. Its requests are finished first, so that a refusal (no memory) is known before the
 * round ends, and no more than two batches are populated ahead. */
static gboolean post_oldest(RmSendWorker *worker)
{
    RmSendBatch *batch = g_queue_pop_head(&worker->ready);
    gboolean ok = finish_asks(worker->sender, batch);
    for (guint i = 0; i < batch->plans->len && ok; i++)
        ok = post_plan(worker, batch->plans->pdata[i]);
    batch_free(batch);
    return ok;
}

/* ---- room in the destination's window ---- */

static uint64_t need_of(const RmSendWorker *worker, const RmSendBatch *batch)
{
    uint64_t need = 0;
    for (guint i = 0; i < batch->plans->len; i++) {
        const RmPlan *plan = batch->plans->pdata[i];
        need += rm_plan_need(plan, worker->sender->states->pdata[plan->block]);
    }
    return need;
}

/* Takes out holdings that no batch from number `first` on writes into, oldest first, until the batch fits or
 * there is none left. */
static GPtrArray *evict(RmSendWorker *worker, const RmSendBatch *batch, uint32_t first)
{
    RmHoldings *holdings = &worker->holdings;
    GPtrArray *evicted = g_ptr_array_new_with_free_func(rm_holding_free);
    RmHolding *holding;
    while (holdings->used + need_of(worker, batch) > holdings->limit &&
           (holding = rm_holdings_evict(holdings, worker->sender->states, first)) != NULL)
        g_ptr_array_add(evicted, holding);
    return evicted;
}

static gboolean forget(RmSendWorker *worker, const GPtrArray *evicted, uint32_t *ret_mark)
{
    RmTx *tx = worker->sender->params.tx;
    int status = 0;
    for (guint i = 0; i < evicted->len && status == 0; i++) {
        const RmHolding *holding = evicted->pdata[i];
        status =
            tx->ops->release(tx, worker->channel, holding->block,
                             (const RmExtent *)(const void *)holding->granules->data, holding->granules->len);
    }
    if (status == 0)
        status = tx->ops->mark(tx, worker->channel, ret_mark);
    if (status < 0)
        rm_sending_fail_transport(worker->sender, status);
    return status == 0;
}

/* Asks for the end of these registrations, as many of one block as fit in a message at a time. */
static gboolean ask_release(RmSendWorker *worker, const GPtrArray *evicted, uint32_t mark, GArray *ids)
{
    RmSending *sender = worker->sender;
    for (guint i = 0; i < evicted->len;) {
        const RmHolding *first = evicted->pdata[i];
        g_autoptr(RmRegister) request = rm_register_new(first->block);
        for (guint n = 0; i < evicted->len && n < RM_BATCH_CHUNKS; i++, n++) {
            const RmHolding *holding = evicted->pdata[i];
            if (holding->block != first->block)
                break;
            g_array_append_vals(rm_register_add(request, holding->chunk)->extents, holding->granules->data,
                                holding->granules->len);
        }
        GError *problem = NULL;
        uint64_t id = rm_control_begin(sender->params.control, rm_release_encode(request, mark), &problem);
        if (id == 0) {
            rm_sending_fail(sender, problem);
            return FALSE;
        }
        g_array_append_val(ids, id);
    }
    return TRUE;
}

static gboolean finish_release(RmSending *sender, const GArray *ids)
{
    int64_t begin = g_get_monotonic_time();
    for (guint i = 0; i < ids->len; i++) {
        GError *problem = NULL;
        rm_autojson reply = NULL;
        if (!rm_control_finish(sender->params.control, g_array_index(ids, uint64_t, i), RM_ASK_TIMEOUT_MS,
                               sender->stopping, &reply, &problem) ||
            !rm_message_expect(reply, RM_MSG_RELEASED, &problem)) {
            rm_sending_fail(sender, problem);
            return FALSE;
        }
    }
    rm_sending_count_wait(sender, begin);
    return TRUE;
}

static gboolean release(RmSendWorker *worker, const GPtrArray *evicted)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    uint32_t mark;
    return evicted->len == 0 ||
           (forget(worker, evicted, &mark) && ask_release(worker, evicted, mark, ids) &&
            (worker->ready.length == 0 || post_oldest(worker)) && finish_release(worker->sender, ids));
}

/* First with what no batch needs that has not been posted. If that won't do, for registrations end as a whole
 * and the batch may touch a little of many, everything may go: all other batches are posted then, and what
 * this one loses it asks for again. */
static gboolean make_room(RmSendWorker *worker, const RmSendBatch *batch)
{
    const RmSendBatch *oldest = worker->ready.length > 0 ? g_queue_peek_head(&worker->ready) : batch;
    if (worker->holdings.limit == 0)
        return TRUE;
    g_autoptr(GPtrArray) spare = evict(worker, batch, oldest->number);
    if (!release(worker, spare))
        return FALSE;
    if (worker->holdings.used + need_of(worker, batch) <= worker->holdings.limit)
        return TRUE;
    while (worker->ready.length > 0)
        if (!post_oldest(worker))
            return FALSE;
    g_autoptr(GPtrArray) rest = evict(worker, batch, G_MAXUINT32);
    return release(worker, rest);
}

/* ---- the stages of a batch ---- */

static void mark_asked(RmSendWorker *worker, RmSendBatch *batch)
{
    for (guint i = 0; i < batch->plans->len; i++) {
        RmPlan *plan = batch->plans->pdata[i];
        rm_plan_ask(plan, worker->sender->states->pdata[plan->block]);
        rm_holdings_add(&worker->holdings, plan->block, plan->chunk, plan->asked);
        rm_sending_count(worker->sender, 0, 0, plan->extents->len > 0);
    }
}

static gboolean close_batch(RmSendWorker *worker)
{
    RmSendBatch *batch = g_steal_pointer(&worker->current);
    if (batch == NULL)
        return TRUE;
    if (!make_room(worker, batch)) {
        batch_free(batch);
        return FALSE;
    }
    mark_asked(worker, batch);
    g_queue_push_tail(&worker->ready, batch);
    worker->batch_bytes = MIN(worker->batch_bytes * 2, BATCH_BYTES_MOST);
    if (!ask(worker->sender, batch) || !prepare(worker, batch))
        return FALSE;
    return worker->ready.length < 2 || post_oldest(worker);
}

static gboolean do_range(RmSendWorker *worker, const Work *work, RmExtent range)
{
    RmSending *sender = worker->sender;
    RmSendState *state = sender->states->pdata[work->block];
    RmPlan *plan =
        rm_plan_new(state, work->block, work->chunk, range, work->pages, post_limit(sender), worker->zeroes);
    rm_sending_count(sender, 0, plan->zero_pages, 0);
    if (worker->current != NULL && worker->current->touched + plan->touched > worker->most_touched &&
        !close_batch(worker)) {
        rm_plan_free(plan);
        return FALSE;
    }
    if (worker->current == NULL)
        worker->current = batch_new(++worker->n_batches);
    RmSendBatch *batch = worker->current;
    g_ptr_array_add(batch->plans, plan);
    rm_holdings_use(&worker->holdings, state, plan, batch->number);
    batch->touched += plan->touched;
    for (guint i = 0; i < plan->runs->len; i++)
        batch->bytes += g_array_index(plan->runs, RmRun, i).length;
    return (batch->bytes < worker->batch_bytes && batch->plans->len < RM_BATCH_CHUNKS) || close_batch(worker);
}

static gboolean do_chunk(RmSendWorker *worker, const Work *work)
{
    RmSending *sender = worker->sender;
    const RmSendState *state = sender->states->pdata[work->block];
    uint64_t at = work->chunk * sender->params.chunk_size;
    uint64_t end = at + rm_chunk_length(state->block, sender->params.chunk_size, work->chunk);
    while (at < end) {
        uint64_t to = MIN(at + MIN(MIN(worker->most_touched, RM_PLAN_BYTES_MAX), worker->batch_bytes), end);
        if (!do_range(worker, work, (RmExtent){at, to}))
            return FALSE;
        at = to;
    }
    return TRUE;
}

static gboolean post_all(RmSendWorker *worker)
{
    if (!close_batch(worker))
        return FALSE;
    while (worker->ready.length > 0) {
        if (!post_oldest(worker))
            return FALSE;
    }
    return TRUE;
}

static gboolean do_round_end(RmSendWorker *worker, const Work *work)
{
    RmSending *sender = worker->sender;
    if (!post_all(worker) || (sender->pin != NULL && !worker->pinned && !rm_pin_wait_all(sender->pin)))
        return FALSE;
    worker->pinned = TRUE;
    int status = sender->params.tx->ops->end_round(sender->params.tx, worker->channel, (uint32_t)work->chunk);
    if (status < 0) {
        rm_sending_fail_transport(sender, status);
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
    RmSendWorker *worker = data;
    for (;;) {
        g_autofree Work *work = g_async_queue_pop(worker->queue);
        if (work->kind == WORK_QUIT)
            return NULL;
        if (g_atomic_int_get(&worker->sender->failed))
            continue; /* the session sees the failure in flush() */
        if (work->kind == WORK_CHUNK)
            do_chunk(worker, work);
        else if (work->kind == WORK_POST)
            post_all(worker);
        else
            do_round_end(worker, work);
    }
}

/* ---- life ---- */

/* The channel's parts of the windows, and what a batch may touch of them. */
static void open_window(RmSendWorker *worker)
{
    const RmSenderParams *params = &worker->sender->params;
    uint64_t there = params->window == 0 ? 0
                                         : rm_window_part(params->window, params->blocks, params->chunk_size,
                                                          params->channels, worker->channel);
    uint64_t here = params->tx->ops->window(params->tx, worker->channel);
    rm_holdings_init(&worker->holdings, there);
    worker->most_touched = MIN(there != 0 ? there : UINT64_MAX, here != 0 ? here : UINT64_MAX) / 2;
    worker->most_touched -= worker->most_touched % RM_CHUNK_MIN;
}

void rm_send_worker_start(RmSendWorker *worker, RmSending *sending, unsigned channel)
{
    worker->sender = sending;
    worker->channel = channel;
    worker->queue = g_async_queue_new_full(g_free);
    worker->zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    g_queue_init(&worker->ready);
    worker->batch_bytes = BATCH_BYTES_FIRST;
    open_window(worker);
    g_autofree char *name = g_strdup_printf("send-%u", channel);
    worker->thread = g_thread_new(name, worker_main, worker);
}

static void push_work(RmSendWorker *worker, WorkKind kind, uint32_t block, uint64_t chunk,
                      const RmBitmap *pages)
{
    Work *work = g_new(Work, 1);
    *work = (Work){kind, block, chunk, pages};
    g_async_queue_push(worker->queue, work);
}

void rm_send_worker_push(RmSendWorker *worker, uint32_t block, uint64_t chunk, const RmBitmap *pages)
{
    push_work(worker, WORK_CHUNK, block, chunk, pages);
}

void rm_send_worker_post(RmSendWorker *worker)
{
    push_work(worker, WORK_POST, 0, 0, NULL);
}

void rm_send_worker_end_round(RmSendWorker *worker, uint32_t round)
{
    push_work(worker, WORK_ROUND_END, 0, round, NULL);
}

void rm_send_worker_end(RmSendWorker *worker)
{
    push_work(worker, WORK_QUIT, 0, 0, NULL);
    g_thread_join(worker->thread);
    g_async_queue_unref(worker->queue);
    g_array_unref(worker->zeroes);
    batch_free(worker->current);
    g_queue_clear_full(&worker->ready, batch_free);
    rm_holdings_clear(&worker->holdings);
}
