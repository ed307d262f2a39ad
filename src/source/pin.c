/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Registering everything.
 *
 * What a channel's thread finds done here, it may use: each chunk's state at either end is written by one of
 * our threads before the chunk is counted under the lock, and read by the channel's thread only after it saw
 * that count.
 */
#include "source/pin.h"

#include "common/reason.h"
#include "common/size.h"
#include "memory/chunk.h"

#include <string.h>

#define PIN_THREADS_MAX 8
#define PIN_ASKS_IN_FLIGHT 8               /* each is one thread's work at the far end */
#define PIN_ASK_BYTES (UINT64_C(64) << 20) /* small enough that all of them have some */
#define WAIT_PIECE_MS 100                  /* between two looks at the session while waiting */
#define TELL_EVERY_US (5 * G_USEC_PER_SEC)

enum { HERE = 1, THERE = 2, BOTH = 3 };

struct RmPin {
    RmSending *sender;
    RmSendWorker *workers;
    GThread *thread;   /* asks the destination */
    GThreadPool *pool; /* prepares what is here */
    uint64_t *first;   /* of each block: the number of its first chunk */
    uint64_t n_chunks;
    uint64_t total; /* bytes of guest RAM */

    GMutex lock; /* all below */
    GCond changed;
    uint8_t *done; /* by chunk: HERE, THERE */
    uint64_t here, there, n_done;
    int64_t told_us;
};

static uint64_t chunk_length(const RmPin *pin, uint32_t block, uint64_t chunk)
{
    const RmSendState *state = pin->sender->states->pdata[block];
    return rm_chunk_length(state->block, pin->sender->params.chunk_size, chunk);
}

/* Chunks [chunk, chunk + n) of a block are registered at an end. */
static void count_done(RmPin *pin, uint32_t block, uint64_t chunk, uint64_t n, uint8_t end)
{
    g_autofree char *told = NULL;
    g_mutex_lock(&pin->lock);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *done = &pin->done[pin->first[block] + chunk + i];
        *(end == HERE ? &pin->here : &pin->there) += chunk_length(pin, block, chunk + i);
        *done |= end;
        pin->n_done += *done == BOTH;
    }
    int64_t now = g_get_monotonic_time();
    if (now - pin->told_us > TELL_EVERY_US) {
        g_autofree char *all = rm_format_size(pin->total), *there = rm_format_size(pin->there);
        g_autofree char *here = rm_format_size(pin->here);
        told = g_strdup_printf("registering %s: %s at the destination, %s here", all, there, here);
        pin->told_us = now;
    }
    g_cond_broadcast(&pin->changed);
    g_mutex_unlock(&pin->lock);
    if (told != NULL)
        g_message("%s", told);
}

/* ---- at the destination ---- */

typedef struct {
    RmAsk ask;
    uint64_t chunk, n;
} Asked;

/* Whole chunks of block number `index` from *chunk on, as many as go into a message. */
static RmRegister *whole_chunks(const RmPin *pin, uint32_t index, uint64_t *chunk)
{
    const RmSendState *state = pin->sender->states->pdata[index];
    uint64_t chunk_size = pin->sender->params.chunk_size, bytes = 0;
    RmRegister *request = rm_register_new(index);
    for (; *chunk < rm_chunk_count(state->block, chunk_size) && request->chunks->len < RM_BATCH_CHUNKS &&
           bytes < PIN_ASK_BYTES;
         (*chunk)++) {
        uint64_t start = *chunk * chunk_size;
        RmExtent extent = {start, start + chunk_length(pin, index, *chunk)};
        g_array_append_val(rm_register_add(request, *chunk)->extents, extent);
        bytes += extent.end - extent.start;
    }
    return request;
}

/* FALSE if the data path has ended; a failure is told. */
static gboolean take_oldest(RmPin *pin, GQueue *asked)
{
    g_autofree Asked *oldest = g_queue_pop_head(asked);
    int64_t deadline = g_get_monotonic_time() + RM_ASK_TIMEOUT_MS * 1000;
    GError *problem = NULL;
    /* Registering a batch may take a while: the end of the data path is not to wait for it. */
    while (!rm_control_wait(pin->sender->params.control, oldest->ask.id, WAIT_PIECE_MS) &&
           g_get_monotonic_time() < deadline) {
        if (g_atomic_int_get(&pin->sender->failed))
            return FALSE;
    }
    if (!rm_sending_finish_ask(pin->sender, &oldest->ask, &problem)) {
        rm_sending_fail(pin->sender, problem);
        return FALSE;
    }
    count_done(pin, oldest->ask.block, oldest->chunk, oldest->n, THERE);
    return TRUE;
}

static gboolean ask_block(RmPin *pin, uint32_t index, GQueue *asked)
{
    const RmSenderParams *params = &pin->sender->params;
    const RmSendState *state = pin->sender->states->pdata[index];
    for (uint64_t chunk = 0; chunk < rm_chunk_count(state->block, params->chunk_size);) {
        uint64_t first = chunk;
        g_autoptr(RmRegister) request = whole_chunks(pin, index, &chunk);
        GError *problem = NULL;
        uint64_t id = rm_control_begin(params->control, rm_register_encode(request), &problem);
        if (id == 0) {
            rm_sending_fail(pin->sender, problem);
            return FALSE;
        }
        Asked *ask = g_new(Asked, 1);
        *ask = (Asked){{id, index}, first, chunk - first};
        g_queue_push_tail(asked, ask);
        rm_sending_count(pin->sender, 0, 0, request->chunks->len);
        if (asked->length >= PIN_ASKS_IN_FLIGHT && !take_oldest(pin, asked))
            return FALSE;
    }
    return TRUE;
}

static gpointer pin_there(gpointer data)
{
    RmPin *pin = data;
    GQueue asked = G_QUEUE_INIT;
    gboolean ok = TRUE;
    for (uint32_t i = 0; ok && i < pin->sender->states->len; i++)
        ok = ask_block(pin, i, &asked);
    while (ok && asked.length > 0)
        ok = take_oldest(pin, &asked);
    g_queue_clear_full(&asked, g_free);
    return NULL;
}

/* ---- here ---- */

typedef struct {
    uint32_t block;
    uint64_t chunk;
} Here;

/* Any thread of the pool: each chunk is one thread's. */
static void pin_here(gpointer item, gpointer data)
{
    g_autofree Here *here = item;
    RmPin *pin = data;
    RmTx *tx = pin->sender->params.tx;
    uint64_t start = here->chunk * pin->sender->params.chunk_size;
    RmExtent extent = {start, start + chunk_length(pin, here->block, here->chunk)};
    unsigned channel = rm_chunk_channel(here->block, here->chunk, pin->sender->params.channels);
    if (g_atomic_int_get(&pin->sender->failed))
        return;
    int status = tx->ops->prepare(tx, channel, here->block, &extent, 1);
    if (status < 0)
        rm_sending_fail_transport(pin->sender, status);
    else
        count_done(pin, here->block, here->chunk, 1, HERE);
}

/* ---- both ---- */

/* Before any thread of ours runs, and before the first push: nothing is left for the channels to ask for. */
static void mark_asked(RmPin *pin, uint32_t index)
{
    const RmSenderParams *params = &pin->sender->params;
    RmSendState *state = pin->sender->states->pdata[index];
    memset(state->asked, TRUE, rm_chunk_count(state->block, RM_CHUNK_MIN));
    for (uint64_t chunk = 0; chunk < rm_chunk_count(state->block, params->chunk_size); chunk++) {
        g_autoptr(GArray) extents = g_array_new(FALSE, FALSE, sizeof(RmExtent));
        uint64_t start = chunk * params->chunk_size;
        RmExtent extent = {start, start + chunk_length(pin, index, chunk)};
        g_array_append_val(extents, extent);
        rm_holdings_add(&pin->workers[rm_chunk_channel(index, chunk, params->channels)].holdings, index,
                        chunk, extents);
    }
}

static void begin_here(RmPin *pin)
{
    int threads = (int)MIN(g_get_num_processors(), PIN_THREADS_MAX);
    pin->pool = g_thread_pool_new(pin_here, pin, threads, FALSE, NULL);
    for (uint32_t i = 0; i < pin->sender->states->len; i++) {
        const RmSendState *state = pin->sender->states->pdata[i];
        for (uint64_t chunk = 0; chunk < rm_chunk_count(state->block, pin->sender->params.chunk_size);
             chunk++) {
            Here *here = g_new(Here, 1);
            *here = (Here){i, chunk};
            g_thread_pool_push(pin->pool, here, NULL);
        }
    }
}

RmPin *rm_pin_begin(RmSending *sending, RmSendWorker *workers)
{
    RmPin *pin = g_new0(RmPin, 1);
    pin->sender = sending;
    pin->workers = workers;
    g_mutex_init(&pin->lock);
    g_cond_init(&pin->changed);
    pin->told_us = g_get_monotonic_time();
    pin->first = g_new0(uint64_t, sending->states->len);
    for (uint32_t i = 0; i < sending->states->len; i++) {
        const RmBlock *block = ((RmSendState *)sending->states->pdata[i])->block;
        pin->first[i] = pin->n_chunks;
        pin->n_chunks += rm_chunk_count(block, sending->params.chunk_size);
        pin->total += block->size;
        mark_asked(pin, i);
    }
    pin->done = g_new0(uint8_t, pin->n_chunks);
    begin_here(pin);
    pin->thread = g_thread_new("pin", pin_there, pin);
    return pin;
}

/* Waits until `what(pin, number)`, or the data path has ended, which nobody may tell us. */
static gboolean wait_until(RmPin *pin, gboolean (*what)(const RmPin *pin, uint64_t number), uint64_t number)
{
    int64_t begin = g_get_monotonic_time();
    gboolean waited = FALSE, ok;
    g_mutex_lock(&pin->lock);
    while (!(ok = what(pin, number)) && !g_atomic_int_get(&pin->sender->failed)) {
        waited = TRUE;
        g_cond_wait_until(&pin->changed, &pin->lock,
                          g_get_monotonic_time() + WAIT_PIECE_MS * G_TIME_SPAN_MILLISECOND);
    }
    g_mutex_unlock(&pin->lock);
    if (waited)
        rm_sending_count_wait(pin->sender, begin);
    return ok;
}

static gboolean is_done(const RmPin *pin, uint64_t number)
{
    return pin->done[number] == BOTH;
}

static gboolean are_done(const RmPin *pin, uint64_t number)
{
    return pin->n_done >= number;
}

gboolean rm_pin_wait(RmPin *pin, uint32_t block, uint64_t chunk)
{
    return wait_until(pin, is_done, pin->first[block] + chunk);
}

gboolean rm_pin_wait_all(RmPin *pin)
{
    return wait_until(pin, are_done, pin->n_chunks);
}

void rm_pin_free(RmPin *pin)
{
    if (pin == NULL)
        return;
    g_thread_join(pin->thread);
    g_thread_pool_free(pin->pool, FALSE, TRUE);
    g_cond_clear(&pin->changed);
    g_mutex_clear(&pin->lock);
    g_free(pin->first);
    g_free(pin->done);
    g_free(pin);
}
