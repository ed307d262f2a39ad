/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fake transport, for tests: both ends in one process. A post is a memcpy into the destination's blocks,
 * and is recorded, so that a test can ask what went when.
 *
 * connect() joins the source with the destination that was started with the same token.
 */
#pragma once

#include "transport/transport.h"

typedef struct {
    uint32_t block;
    uint64_t offset; /* bytes */
    uint64_t length;
    unsigned channel;
    uint32_t round; /* the channel's round that this run belongs to, from 1 */
} RmFakePost;

/* A copy of what has been posted, of RmFakePost, one element a run, in order; caller unrefs. */
GArray *rm_fake_posts(RmTx *tx);

/* The barrier's promise: no page goes twice between two ends of a round, and a page always goes by its
 * chunk's channel. FALSE with `error` naming block, page and round. */
gboolean rm_fake_check(RmTx *tx, GError **error);

/* The post number `nth` from now (0: the next one) fails with `code`, a negative errno, and writes nothing.
 */
void rm_fake_fail_post(RmTx *tx, unsigned nth, int code);
