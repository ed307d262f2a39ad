/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A fake verbs provider: the functions of libibverbs and librdmacm that rdmamig uses, for one device inside
 * one process. Linked into a test they take the place of the libraries'.
 *
 * It keeps to what the specifications promise, and to no more: the bytes of a write are read and land at some
 * time between its posting and its completion (with `iwarp`: land at any time before the receive of a later
 * SEND completes), in pieces, and the writes of one queue pair in any order; a SEND's receive completes after
 * the writes before it have landed; completions of a send queue come in its order, and only if asked for or
 * failed. Keys, ranges, rights and domains are checked as hardware does, at the moment that a piece lands.
 *
 * Registering populates, as pinning does.
 *
 * What hardware would punish in ways that a test can't see is a violation: a full send queue posted to, a
 * completion queue overrun, a region freed under a write that reads it or goes into it, objects destroyed in
 * the wrong order. The first is kept.
 */
#pragma once

#include <glib.h>
#include <infiniband/verbs.h>

/* Set between tests, or at any time under fake_verbs_lock(). */
typedef struct {
    int max_qp_wr, max_cqe, max_mr;
    uint64_t max_mr_size;
    uint32_t max_msg_sz;
    gboolean no_device;
    gboolean iwarp;            /* writes complete at the source before they have landed */
    gboolean stalled;          /* nothing moves on the network */
    gboolean deaf;             /* nobody answers a connection request */
    gboolean no_disconnects;   /* that a connection has ended reaches nobody */
    gboolean garble_sends;     /* what a SEND carries is not what was sent */
    gboolean keep_queue_pairs; /* destroying one fails */
    gboolean no_options;       /* rdma_set_option() fails */
    uint64_t chunk_size;       /* for chunk_most; 0: not looked at */
    unsigned fail_in;          /* the Nth request from now on fails with fail_status; 0: none */
    enum ibv_wc_status fail_status;
    unsigned register_fail_in; /* the Nth registration from now on fails with register_errno; 0: none */
    int register_errno;
    unsigned register_delay_us;
} FakeVerbsKnobs;

typedef struct {
    unsigned contexts, ids, channels, pds, mrs, cqs, qps; /* alive */
    unsigned mrs_most;                                    /* at one time */
    unsigned in_flight_most;                              /* requests in one send queue */
    unsigned chunk_most;    /* writes on one queue pair into one chunk that were not completed */
    uint64_t writes, sends; /* requests that have landed */
    uint64_t longest;       /* bytes in one write */
    uint64_t longest_mr;
    uint64_t local_bytes,
        local_most; /* in regions without any right, alive and at one time: what is read from */
    uint64_t remote_bytes, remote_most; /* in those that may be written from afar */
    uint64_t unsignalled;               /* requests posted that asked for no completion */
} FakeVerbsCounts;

/* What a connection was set to; -1: not set. */
typedef struct {
    int retries;          /* in the request */
    int tos, ack_timeout; /* of who asked for it */
    int listener_tos;     /* of who was asked, as is the next */
    int accepted_ack_timeout;
} FakeVerbsSettings;

extern FakeVerbsKnobs fake_verbs_knobs;

/* Back to a large and healthy device; counts of what is alive stay. */
void fake_verbs_reset(void);
void fake_verbs_lock(void);
void fake_verbs_unlock(void); /* lets the network look at the knobs again */
FakeVerbsCounts fake_verbs_counts(void);
/* Of the connection that was accepted last. */
FakeVerbsSettings fake_verbs_settings(void);
/* The first violation, NULL if there was none. */
const char *fake_verbs_violation(void);
/* Whether any byte of the range has been registered since the reset; if `access` is not 0, with one of these
 * rights. */
gboolean fake_verbs_was_registered(const void *address, uint64_t length, int access);
