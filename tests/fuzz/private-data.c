/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a stranger says in rdma_cm's connection request, over the fake provider: it is let in with the token
 * only, for the channel that it names, and else rejected. */
#include "fuzz.h"

#include "common/reason.h"
#include "transport/tcp/wire.h"
#include "transport/verbs/listener.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#define PRIVATE_DATA_MAX 56

typedef struct {
    RmVerbsAcceptor base;
    gboolean taken;
    unsigned channel;
} Acceptor;

/* In the listener's thread, before the peer hears of it. */
static gboolean take(RmVerbsAcceptor *base, struct rdma_cm_id *id, unsigned channel, GError **error)
{
    Acceptor *acceptor = (Acceptor *)base;
    acceptor->taken = TRUE;
    acceptor->channel = channel;
    return rm_fail(error, RM_REASON_TRANSPORT, "one is enough");
}

static void left(RmVerbsAcceptor *base, struct rdma_cm_id *id)
{
}

static void wait_for(struct rdma_event_channel *events, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(events, &event) != 0)
        g_assert_cmpint(errno, ==, EINTR); /* libFuzzer's clock */
    g_assert_cmpint(event->event, ==, wanted);
    rdma_ack_cm_event(event);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static RmVerbsListener *listener;
    static struct rdma_event_channel *events;
    static Acceptor acceptor = {.base = {.take = take, .left = left}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(0x0a000001)}};
    struct rdma_cm_id *id;
    if (listener == NULL) {
        memset(acceptor.base.token, 'T', RM_TOKEN_BYTES);
        listener = rm_verbs_listener_join(0, NULL, (RmChoice){0}, &acceptor.base, NULL);
        events = rdma_create_event_channel();
        g_assert_true(listener != NULL && events != NULL);
    }
    struct rdma_conn_param parameters = {.private_data = data,
                                         .private_data_len = (uint8_t)MIN(size, PRIVATE_DATA_MAX)};
    acceptor.taken = FALSE;
    to.sin_port = g_htons(rm_verbs_listener_port(listener));
    g_assert_cmpint(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), ==, 0);
    rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000);
    wait_for(events, RDMA_CM_EVENT_ADDR_RESOLVED);
    g_assert_cmpint(rdma_connect(id, &parameters), ==, 0);
    wait_for(events, RDMA_CM_EVENT_REJECTED);
    rdma_destroy_id(id);

    uint8_t sent[PRIVATE_DATA_MAX] = {0}, expected[RM_TCP_PREAMBLE_BYTES];
    memcpy(sent, data, MIN(size, sizeof sent));
    RmTcpPreamble preamble = {.channel = acceptor.channel};
    memcpy(&preamble.token, acceptor.base.token, sizeof preamble.token);
    if (!acceptor.taken) /* what would have been right for the channel that it names */
        memcpy(&preamble.channel, sent + RM_TCP_PREAMBLE_BYTES - 8, sizeof preamble.channel);
    rm_tcp_preamble_format(&preamble, expected);
    g_assert_true(acceptor.taken == (memcmp(sent, expected, sizeof expected) == 0));
    return 0;
}
