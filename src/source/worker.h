/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One channel of the sender: its thread, from pages to posted writes, and its parts of the windows.
 *
 * Ownership: a chunk belongs to one channel, so each part of a block's state (plan.h) has one writer. Lock
 * order: none is taken while another is held.
 *
 * Registration is asked for by granules of RM_CHUNK_MIN, each once, and only where something is written: a
 * chunk of zeroes is never registered, and a sparse one only in part.
 *
 * Windows: where the destination or this end bounds what it has registered, a channel has a fixed part of it
 * (transport/window.h), and a batch touches at most half of that: so the batch that is being written and the
 * one that is being registered fit in together, and everything older may go to make room for them. What has
 * to go is forgotten first, so that its keys can't be used, then a mark is posted behind its writes, then the
 * destination is asked to end the registrations once that mark is there; meanwhile the next batch is written.
 * Nothing is asked for in its place before the answer.
 */
#pragma once

#include "source/holdings.h"
#include "source/sender.h"

#define RM_BATCH_CHUNKS 64       /* plans in a batch, chunks in a request */
#define RM_ASK_TIMEOUT_MS 120000 /* of a peer that is alive: a batch may be populated page by page */

typedef struct RmPin RmPin; /* pin.h */

/* What the channels of one sender share. */
typedef struct {
    RmSenderParams params;  /* immutable */
    GPtrArray *states;      /* RmSendState*; grows only between rounds */
    GCancellable *stopping; /* ends waits for the far end's answers */
    gint failed;            /* atomic: the data path has ended */
    RmPin *pin;             /* set before the first push; NULL without --pin all */

    GMutex lock; /* all below */
    GCond ended;
    unsigned rounds_pending; /* channels that have not ended the round yet */
    GError *error;           /* the first failure */
    int64_t next_free_us;    /* bandwidth cap: when the wire is free again */
    RmSenderCounts counts;
} RmSending;

/* Keeps the first; takes `problem`. */
void rm_sending_fail(RmSending *sending, GError *problem);
/* The transport's own error, or `status`. */
void rm_sending_fail_transport(RmSending *sending, int status);
void rm_sending_count(RmSending *sending, uint64_t bytes, uint64_t zero_pages, uint64_t registrations);

/* What was waited for since `begin_us` (registration_us). */
void rm_sending_count_wait(RmSending *sending, int64_t begin_us);

/* A `register` that is not answered yet. */
typedef struct {
    uint64_t id;
    uint32_t block;
} RmAsk;
/* Takes the answer in. */
gboolean rm_sending_finish_ask(RmSending *sending, const RmAsk *asked, GError **error);

typedef struct RmSendBatch RmSendBatch;

typedef struct {
    RmSending *sender;
    unsigned channel;
    GThread *thread;
    GAsyncQueue *queue; /* what to do */
    /* owned by the thread; the session's before the first push, and once a round has ended */
    RmSendBatch *current;
    GQueue ready; /* of RmSendBatch*, asked for */
    uint32_t n_batches;
    gboolean pinned;       /* a round has ended: with --pin all, everything is registered */
    uint64_t batch_bytes;  /* that close the current one */
    uint64_t most_touched; /* bytes of granules in a batch, and in a plan */
    RmHoldings holdings;
    GArray *zeroes; /* RmZeroRange: found in this round */
} RmSendWorker;

void rm_send_worker_start(RmSendWorker *worker, RmSending *sending, unsigned channel);
/* Once sending->failed is set; joins and clears. */
void rm_send_worker_end(RmSendWorker *worker);

void rm_send_worker_push(RmSendWorker *worker, uint32_t block, uint64_t chunk, const RmBitmap *pages);
void rm_send_worker_post(RmSendWorker *worker); /* all that was pushed, without waiting for more */
void rm_send_worker_end_round(RmSendWorker *worker, uint32_t round);
