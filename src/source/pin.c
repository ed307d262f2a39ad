/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Registering everything at once. */
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

typedef struct {
    RmSending *sender;
    RmSendWorker *workers;
    gboolean (*tick)(gpointer data, GError **error);
    gpointer data;
    uint64_t total; /* bytes of guest RAM */
    uint64_t there; /* of these, asked for and answered */
    uint64_t here;  /* atomic: looked at and prepared */
    int64_t told_us;
} Pinning;

/* Between two waits: whether to go on. Tells how far it is now and then. */
static gboolean go_on(Pinning *pinning, GError **error)
{
    int64_t now = g_get_monotonic_time();
    if (now - pinning->told_us > TELL_EVERY_US) {
        g_autofree char *all = rm_format_size(pinning->total), *there = rm_format_size(pinning->there);
        g_autofree char *here = rm_format_size(__atomic_load_n(&pinning->here, __ATOMIC_RELAXED));
        g_message("registering %s: %s at the destination, %s here", all, there, here);
        pinning->told_us = now;
    }
    return pinning->tick(pinning->data, error);
}

/* ---- at the destination ---- */

typedef struct {
    RmAsk ask;
    uint64_t bytes;
} Asked;

/* Whole chunks of `block` from *chunk on, as many as go into a message: marked as asked for, and kept. */
static RmRegister *whole_chunks(Pinning *pinning, uint32_t index, uint64_t *chunk, uint64_t *ret_bytes)
{
    const RmSenderParams *params = &pinning->sender->params;
    const RmBlock *block = ((RmSendState *)pinning->sender->states->pdata[index])->block;
    RmRegister *request = rm_register_new(index);
    *ret_bytes = 0;
    for (; *chunk < rm_chunk_count(block, params->chunk_size) && request->chunks->len < RM_BATCH_CHUNKS &&
           *ret_bytes < PIN_ASK_BYTES;
         (*chunk)++) {
        uint64_t start = *chunk * params->chunk_size;
        RmExtent extent = {start, start + rm_chunk_length(block, params->chunk_size, *chunk)};
        GArray *extents = rm_register_add(request, *chunk)->extents;
        g_array_append_val(extents, extent);
        unsigned channel = rm_chunk_channel(index, *chunk, params->channels);
        rm_holdings_add(&pinning->workers[channel].holdings, index, *chunk, extents);
        *ret_bytes += extent.end - extent.start;
    }
    return request;
}

static gboolean take_oldest(Pinning *pinning, GQueue *asked, GError **error)
{
    g_autofree Asked *oldest = g_queue_pop_head(asked);
    int64_t deadline = g_get_monotonic_time() + RM_ASK_TIMEOUT_MS * 1000;
    /* Registering a batch may take a while: a cancel, or the guest's end, is not to wait for it. */
    while (!rm_control_wait(pinning->sender->params.control, oldest->ask.id, WAIT_PIECE_MS) &&
           g_get_monotonic_time() < deadline) {
        if (!go_on(pinning, error))
            return FALSE;
    }
    pinning->there += oldest->bytes;
    return rm_sending_finish_ask(pinning->sender, &oldest->ask, error);
}

static gboolean pin_block(Pinning *pinning, uint32_t index, GQueue *asked, GError **error)
{
    RmSending *sender = pinning->sender;
    RmSendState *state = sender->states->pdata[index];
    memset(state->asked, TRUE, rm_chunk_count(state->block, RM_CHUNK_MIN));
    for (uint64_t chunk = 0; chunk < rm_chunk_count(state->block, sender->params.chunk_size);) {
        uint64_t bytes;
        g_autoptr(RmRegister) request = whole_chunks(pinning, index, &chunk, &bytes);
        uint64_t id = rm_control_begin(sender->params.control, rm_register_encode(request), error);
        if (id == 0)
            return FALSE;
        Asked *ask = g_new(Asked, 1);
        *ask = (Asked){{id, index}, bytes};
        g_queue_push_tail(asked, ask);
        rm_sending_count(sender, 0, 0, request->chunks->len);
        if (!go_on(pinning, error) ||
            (asked->length >= PIN_ASKS_IN_FLIGHT && !take_oldest(pinning, asked, error)))
            return FALSE;
    }
    return TRUE;
}

static gboolean pin_there(Pinning *pinning, GError **error)
{
    GQueue asked = G_QUEUE_INIT;
    gboolean ok = TRUE;
    for (uint32_t i = 0; ok && i < pinning->sender->states->len; i++)
        ok = pin_block(pinning, i, &asked, error);
    while (ok && asked.length > 0)
        ok = take_oldest(pinning, &asked, error) && go_on(pinning, error);
    g_queue_clear_full(&asked, g_free);
    return ok;
}

/* ---- here ---- */

typedef struct {
    uint32_t block;
    uint64_t chunk;
} Here;

/* Any thread of the pool: each chunk is one thread's. */
static void pin_here(gpointer item, gpointer data)
{
    g_autofree Here *pin = item;
    Pinning *pinning = data;
    RmSending *sender = pinning->sender;
    RmTx *tx = sender->params.tx;
    const RmBlock *block = ((RmSendState *)sender->states->pdata[pin->block])->block;
    uint64_t start = pin->chunk * sender->params.chunk_size;
    RmExtent extent = {start, start + rm_chunk_length(block, sender->params.chunk_size, pin->chunk)};
    unsigned channel = rm_chunk_channel(pin->block, pin->chunk, sender->params.channels);
    if (g_atomic_int_get(&sender->failed))
        return;
    int status = tx->ops->prepare(tx, channel, pin->block, &extent, 1);
    if (status < 0)
        rm_sending_fail_transport(sender, status);
    __atomic_fetch_add(&pinning->here, extent.end - extent.start, __ATOMIC_RELAXED);
}

static GThreadPool *begin_here(Pinning *pinning)
{
    int threads = (int)MIN(g_get_num_processors(), PIN_THREADS_MAX);
    GThreadPool *pool = g_thread_pool_new(pin_here, pinning, threads, FALSE, NULL);
    for (uint32_t i = 0; i < pinning->sender->states->len; i++) {
        const RmBlock *block = ((RmSendState *)pinning->sender->states->pdata[i])->block;
        pinning->total += block->size;
        for (uint64_t chunk = 0; chunk < rm_chunk_count(block, pinning->sender->params.chunk_size); chunk++) {
            Here *pin = g_new(Here, 1);
            *pin = (Here){i, chunk};
            g_thread_pool_push(pool, pin, NULL);
        }
    }
    return pool;
}

static gboolean wait_here(Pinning *pinning, GError **error)
{
    RmSending *sender = pinning->sender;
    while (!g_atomic_int_get(&sender->failed) &&
           __atomic_load_n(&pinning->here, __ATOMIC_ACQUIRE) < pinning->total) {
        if (!go_on(pinning, error))
            return FALSE;
        g_usleep(10000);
    }
    g_mutex_lock(&sender->lock);
    GError *problem = sender->error != NULL ? g_error_copy(sender->error) : NULL;
    g_mutex_unlock(&sender->lock);
    if (problem != NULL)
        g_propagate_error(error, problem);
    return problem == NULL;
}

gboolean rm_pin_all(RmSending *sending, RmSendWorker *workers,
                    gboolean (*tick)(gpointer data, GError **error), gpointer data, GError **error)
{
    int64_t begin = g_get_monotonic_time();
    Pinning pinning = {sending, workers, tick, data, .told_us = begin};
    GThreadPool *pool = begin_here(&pinning);
    gboolean ok = pin_there(&pinning, error) && wait_here(&pinning, error);
    if (!ok)
        g_atomic_int_set(&sending->failed, 1); /* the pool's threads find nothing more to do */
    g_thread_pool_free(pool, FALSE, TRUE);
    rm_sending_count_wait(sending, begin);
    return ok;
}
