/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The session's side of the sender. */
#include "source/sender.h"

#include "memory/chunk.h"
#include "source/pin.h"

struct RmSender {
    RmSending shared;
    RmSendWorker *workers;
};

RmSender *rm_sender_new(const RmSenderParams *params)
{
    RmSender *sender = g_new0(RmSender, 1);
    sender->shared.params = *params;
    g_mutex_init(&sender->shared.lock);
    g_cond_init(&sender->shared.ended);
    sender->shared.stopping = g_cancellable_new();
    sender->shared.states = g_ptr_array_new_with_free_func(rm_send_state_free);
    for (guint i = 0; i < params->blocks->len; i++)
        g_ptr_array_add(sender->shared.states,
                        rm_send_state_new(params->blocks->pdata[i], TRUE, params->window != 0,
                                          params->watches != NULL ? params->watches->pdata[i] : NULL));
    sender->workers = g_new0(RmSendWorker, params->channels);
    for (unsigned i = 0; i < params->channels; i++)
        rm_send_worker_start(&sender->workers[i], &sender->shared, i);
    return sender;
}

void rm_sender_free(RmSender *sender)
{
    if (sender == NULL)
        return;
    g_atomic_int_set(&sender->shared.failed, 1);
    g_cancellable_cancel(sender->shared.stopping);
    for (unsigned i = 0; i < sender->shared.params.channels; i++)
        rm_send_worker_end(&sender->workers[i]);
    rm_pin_free(sender->shared.pin);
    g_free(sender->workers);
    g_ptr_array_unref(sender->shared.states);
    g_clear_error(&sender->shared.error);
    g_object_unref(sender->shared.stopping);
    g_mutex_clear(&sender->shared.lock);
    g_cond_clear(&sender->shared.ended);
    g_free(sender);
}

uint32_t rm_sender_add_block(RmSender *sender, RmBlock *block, const GArray *regions)
{
    RmTx *tx = sender->shared.params.tx;
    uint32_t index = sender->shared.states->len;
    gboolean asks = sender->shared.params.window != 0 && regions->len == 0;
    g_ptr_array_add(sender->shared.states, rm_send_state_new(block, asks, asks, NULL));
    tx->ops->add_block(tx, block);
    int status = tx->ops->registered(tx, index, (const RmRegion *)(const void *)regions->data, regions->len);
    if (status != 0)
        rm_sending_fail_transport(&sender->shared, status); /* seen by the next flush */
    return index;
}

void rm_sender_pin_all(RmSender *sender)
{
    sender->shared.pin = rm_pin_begin(&sender->shared, sender->workers);
}

void rm_sender_push(RmSender *sender, uint32_t block, uint64_t chunk, const RmBitmap *pages)
{
    unsigned channel = rm_chunk_channel(block, chunk, sender->shared.params.channels);
    rm_send_worker_push(&sender->workers[channel], block, chunk, pages);
}

void rm_sender_post(RmSender *sender)
{
    for (unsigned i = 0; i < sender->shared.params.channels; i++)
        rm_send_worker_post(&sender->workers[i]);
}

gboolean rm_sender_flush(RmSender *sender, uint32_t round, gboolean (*tick)(gpointer data, GError **error),
                         gpointer data, GError **error)
{
    g_mutex_lock(&sender->shared.lock);
    sender->shared.rounds_pending = sender->shared.params.channels;
    g_mutex_unlock(&sender->shared.lock);
    for (unsigned i = 0; i < sender->shared.params.channels; i++)
        rm_send_worker_end_round(&sender->workers[i], round);

    g_mutex_lock(&sender->shared.lock);
    while (sender->shared.rounds_pending > 0 && sender->shared.error == NULL) {
        if (g_cond_wait_until(&sender->shared.ended, &sender->shared.lock,
                              g_get_monotonic_time() + 100 * G_TIME_SPAN_MILLISECOND))
            continue;
        g_mutex_unlock(&sender->shared.lock);
        if (!tick(data, error)) {
            g_atomic_int_set(&sender->shared.failed, 1);
            sender->shared.params.tx->ops->abort(sender->shared.params.tx);
            return FALSE;
        }
        g_mutex_lock(&sender->shared.lock);
    }
    GError *problem = sender->shared.error != NULL ? g_error_copy(sender->shared.error) : NULL;
    g_mutex_unlock(&sender->shared.lock);
    if (problem == NULL)
        return TRUE;
    sender->shared.params.tx->ops->abort(sender->shared.params.tx);
    g_propagate_error(error, problem);
    return FALSE;
}

void rm_sender_take_zeroes(RmSender *sender, GArray *zeroes)
{
    for (unsigned i = 0; i < sender->shared.params.channels; i++) {
        GArray *found = sender->workers[i].zeroes;
        g_array_append_vals(zeroes, found->data, found->len);
        g_array_set_size(found, 0);
    }
}

RmBitmap *rm_sender_sent(RmSender *sender, uint32_t block)
{
    return ((RmSendState *)sender->shared.states->pdata[block])->sent;
}

RmSenderCounts rm_sender_counts(RmSender *sender)
{
    g_mutex_lock(&sender->shared.lock);
    RmSenderCounts counts = sender->shared.counts;
    g_mutex_unlock(&sender->shared.lock);
    return counts;
}
