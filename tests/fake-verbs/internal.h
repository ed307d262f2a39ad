/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the parts of the fake provider share. One lock for everything. */
#pragma once

#include "fake-verbs.h"

#include <rdma/rdma_cma.h>

typedef struct {
    struct ibv_mr mr;
    uint64_t iova;
    int access;
} FakeMr;

typedef struct {
    struct ibv_comp_channel channel;
    GQueue events; /* of FakeCq* */
} FakeCompChannel;

typedef struct {
    struct ibv_wc wc;
    struct FakeQp *qp;
    unsigned slots; /* of the send queue, given back when it is polled */
} FakeCompletion;

typedef struct {
    struct ibv_cq cq;
    GQueue completions; /* of FakeCompletion */
    gboolean armed;
    unsigned users; /* queue pairs */
} FakeCq;

typedef struct {
    struct ibv_send_wr request;
    struct ibv_sge piece;
    uint8_t *taken;  /* iwarp: the bytes as they were on completion */
    uint64_t landed; /* bytes */
    gboolean done;   /* all has landed */
    gboolean completed;
    enum ibv_wc_status status;
} FakeSend;

typedef struct FakeQp {
    struct ibv_qp qp;
    struct FakeQp *peer;
    gboolean connected, broken;
    GQueue sends;    /* of FakeSend, in the order posted */
    GQueue receives; /* of FakeReceive */
    unsigned max_send, max_receive;
    unsigned used;    /* send queue slots */
    unsigned unasked; /* completed requests since the last completion that was told */
} FakeQp;

typedef struct {
    struct ibv_recv_wr request;
    struct ibv_sge piece;
} FakeReceive;

typedef struct {
    GMutex lock;
    GCond changed;
    FakeVerbsCounts counts;
    char *violation;
    GHashTable *mrs;    /* key -> FakeMr* */
    GArray *registered; /* FakeMr, all since the reset */
    GPtrArray *qps;     /* FakeQp* */
    GThread *engine;
    GRand *rand;
    struct ibv_device device;
    struct ibv_context context;
} FakeFabric;

extern FakeFabric fake_fabric;

/* All under the lock, but for the first. */
void fake_fabric_start(void);
void fake_violation(const char *format, ...) G_GNUC_PRINTF(1, 2);
/* The region that `key` names in `pd` and that holds [at, at + length), with all of `access`; NULL if there
 * is none. */
FakeMr *fake_mr_find(struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t length, int access);
FakeQp *fake_qp_new(struct ibv_pd *pd, struct ibv_qp_init_attr *init);
void fake_qp_connect(FakeQp *a, FakeQp *b);
void fake_qp_break(FakeQp *qp); /* flushes */
int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad);
void fake_wake(int fd); /* an eventfd in semaphore mode */
