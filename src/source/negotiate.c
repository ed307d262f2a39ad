/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reaching the destination: connect, hello, accept. */
#include "common/autoptr.h"
#include "common/fault.h"
#include "common/reason.h"
#include "control/json.h"
#include "memory/chunk.h"
#include "source/connect.h"
#include "source/session.h"
#include "transport/window.h"

#include <string.h>

#define HELLO_TIMEOUT_MS 120000 /* the destination may start a QEMU and empty its RAM first */
#define DATA_TIMEOUT_MS 10000

static void on_lost(GCancellable *lost, RmSession *session)
{
    g_cancellable_cancel(session->cancel);
}

RmTarget rm_negotiate_target(const RmSession *session)
{
    const RmSendOptions *options = session->options;
    return (RmTarget){options->host, options->port, session->tls, options->tls_host};
}

gboolean rm_negotiate_connect(RmSession *session, GError **error)
{
    const char *creds = session->options->common.tls_creds;
    if (creds != NULL && (session->tls = rm_tls_load(creds, RM_TLS_SOURCE, error)) == NULL)
        return FALSE;
    RmTarget target = rm_negotiate_target(session);
    session->control = rm_connect_control(&target, session->cancel, error);
    if (session->control == NULL)
        return FALSE;
    session->lost_handler =
        g_cancellable_connect(rm_control_lost(session->control), G_CALLBACK(on_lost), session, NULL);
    return TRUE;
}

static gboolean fill_hello(RmSession *session, RmHello *hello, GError **error)
{
    const RmSendOptions *options = session->options;
    hello->protocol = RM_PROTOCOL;
    hello->protocol_min = RM_PROTOCOL_MIN;
    hello->session = g_strdup(session->id);
    hello->guest_name = g_strdup(session->info->name);
    hello->guest_uuid = g_strdup(session->info->uuid);
    hello->vmm = g_strdup(session->info->vmm);
    hello->chunk_size = options->chunk_size;
    hello->channels = options->channels;
    hello->dry_run = options->dry_run;
    hello->pin_all = options->pin_all;
    g_ptr_array_add(hello->features, g_strdup(RM_FEATURE_RELEASE));
    if (options->common.plain_data)
        g_ptr_array_add(hello->features, g_strdup(RM_FEATURE_PLAIN_DATA));
    g_hash_table_unref(hello->traits);
    hello->traits = g_hash_table_ref(session->info->traits);
    for (guint i = 0; i < session->blocks->len; i++) {
        RmBlock *block = session->blocks->pdata[i];
        g_autofree char *backing = rm_backing_id(block);
        uint64_t allocated = 0;
        rm_hello_add_block(hello, block->name, block->size, block->page_size, backing);
        if (!rm_block_allocated(block, &allocated, error))
            return FALSE;
        hello->populated += options->pin_all ? block->size : MIN(allocated, block->size);
    }
    for (guint i = 0; rm_transports[i] != NULL; i++) {
        g_autofree char *why = NULL;
        if (!rm_transport_is_wished(rm_transports[i], options->transport))
            continue;
        if (rm_transports[i]->available(&why))
            g_ptr_array_add(hello->transports, g_strdup(rm_transports[i]->name));
        else
            g_info("transport %s is not offered: %s", rm_transports[i]->name, why);
    }
    if (hello->transports->len == 0)
        return rm_fail(error, RM_REASON_TRANSPORT_UNAVAILABLE,
                       "transport %s is not available on this host; --transport tcp works everywhere",
                       options->transport);
    /* Two options that contradict each other: another transport is not what was meant. */
    return !options->pin_all || options->max_pinned == 0 || !rm_has_name(hello->transports, "rdma") ||
           rm_window_check(options->max_pinned, session->blocks, MAX(options->channels, 1), TRUE, error);
}

static gboolean check_accept(RmSession *session, const RmHello *hello, GError **error)
{
    const RmAccept *accept = session->accept;
    if (accept->protocol < RM_PROTOCOL_MIN || accept->protocol > RM_PROTOCOL)
        return rm_fail(error, RM_REASON_VERSION,
                       "the destination chose protocol %" G_GUINT64_FORMAT ", this end speaks %d to %d",
                       accept->protocol, RM_PROTOCOL_MIN, RM_PROTOCOL);
    if (!rm_chunk_size_valid(accept->chunk_size) || accept->chunk_size > hello->chunk_size)
        return rm_fail(error, RM_REASON_PROTOCOL, "the destination chose the chunk size %" G_GUINT64_FORMAT,
                       accept->chunk_size);
    if (accept->channels == 0 || accept->channels > RM_CHANNELS_MAX)
        return rm_fail(error, RM_REASON_PROTOCOL, "the destination chose %" G_GUINT64_FORMAT " channels",
                       accept->channels);
    if (!rm_has_name(hello->transports, accept->transport))
        return rm_fail(error, RM_REASON_PROTOCOL,
                       "the destination chose the transport `%s`, which was not offered", accept->transport);
    if (accept->window != 0 && (accept->window < accept->channels * RM_WINDOW_CHANNEL_MIN ||
                                !rm_has_name(accept->features, RM_FEATURE_RELEASE)))
        return rm_fail(error, RM_REASON_PROTOCOL,
                       "the destination chose a window of %" G_GUINT64_FORMAT " bytes for %" G_GUINT64_FORMAT
                       " channels",
                       accept->window, accept->channels);
    session->transport = rm_transport_find(accept->transport);
    return TRUE;
}

/* tcp was taken, and one end could do better: say what would mend it. */
static void advise(RmSession *session)
{
    gboolean here = rm_has_name(session->hello->transports, "rdma");
    gboolean there = rm_has_name(session->accept->available, "rdma");
    if (strcmp(session->options->transport, "auto") != 0 || strcmp(session->transport->name, "tcp") != 0 ||
        here == there)
        return;
    g_autofree char *text = g_strdup_printf("RAM travels over tcp: the %s has an RDMA device, the %s none "
                                            "that is up; name one with --rdma-device there",
                                            here ? "source" : "destination", here ? "destination" : "source");
    rm_reporter_warning(session->reporter, RM_REASON_TRANSPORT_UNAVAILABLE, text);
}

gboolean rm_negotiate(RmSession *session, GError **error)
{
    RmHello *hello = session->hello = rm_hello_new();
    rm_autojson reply = NULL;
    if (!fill_hello(session, hello, error) ||
        !rm_control_request(session->control, rm_hello_encode(hello), HELLO_TIMEOUT_MS, session->cancel,
                            &reply, error))
        return FALSE;
    session->accept = rm_accept_decode(reply, error);
    if (session->accept == NULL || !check_accept(session, hello, error))
        return FALSE;
    advise(session);
    if (session->accept->chunk_size != session->options->chunk_size)
        g_message("chunk size %" G_GUINT64_FORMAT " MiB: the destination's maximum",
                  session->accept->chunk_size >> 20);
    return TRUE;
}

/* Both operators' word is needed: what the destination says alone leaves the guest's memory inside TLS. */
static gboolean is_data_in_clear(const RmSession *session)
{
    return session->tls == NULL || (session->options->common.plain_data &&
                                    rm_has_name(session->accept->features, RM_FEATURE_PLAIN_DATA));
}

static gboolean connect_tx(RmSession *session, GError **error)
{
    RmTxParams params = {
        .channels = (unsigned)session->accept->channels,
        .blocks = session->blocks,
        .chunk_size = session->accept->chunk_size,
        .address = session->accept->address,
        .host = session->options->host,
        .source_address = session->options->data_source,
        .timeout_ms = DATA_TIMEOUT_MS,
        .device = session->options->common.rdma_device,
        .gid_index = session->options->common.gid_index,
        .packets = session->options->common.packets,
        .tls = is_data_in_clear(session) ? NULL : session->tls,
        .tls_host = session->options->tls_host ?: session->options->host,
        .serialise = session->options->serialise_chunks,
        .copy = session->watches != NULL && !rm_fault("no-copy"),
        .max_pinned = session->options->max_pinned,
        .pin_all = session->options->pin_all,
    };
    if (!rm_token_parse(session->accept->token, params.token))
        return rm_fail(error, RM_REASON_PROTOCOL, "the destination's token is malformed");
    session->tx = session->transport->tx_new();
    if (session->tx->ops->connect(session->tx, &params, session->cancel, error))
        return TRUE;
    g_clear_pointer(&session->tx, rm_tx_free);
    return FALSE;
}

/* Asks for the next transport that both ends have, since the accepted one can't be reached from here. */
static gboolean next_transport(RmSession *session, const GError *problem, GError **error)
{
    rm_autojson reply = NULL;
    g_autofree char *text = NULL;
    if (!rm_control_request(session->control, rm_json_message(RM_MSG_TRANSPORT), HELLO_TIMEOUT_MS,
                            session->cancel, &reply, error))
        return FALSE;
    rm_accept_free(session->accept);
    session->accept = rm_accept_decode(reply, error);
    if (session->accept == NULL || !check_accept(session, session->hello, error))
        return FALSE;
    text = g_strdup_printf("RAM travels over %s: %s", session->transport->name, problem->message);
    rm_reporter_warning(session->reporter, rm_error_reason(problem), text);
    return TRUE;
}

/* Whoever asks for TLS may take it for more than it is, and who asks for less may not get it. */
static void tell_data_kind(RmSession *session)
{
    gboolean tcp = strcmp(session->transport->name, "tcp") == 0, clear = is_data_in_clear(session);
    g_message("%" G_GUINT64_FORMAT " data channels over %s, %s", session->accept->channels,
              session->transport->name, tcp && !clear ? "data inside TLS" : "data in clear");
    if (session->tls != NULL && !tcp)
        rm_reporter_warning(
            session->reporter, RM_REASON_TLS,
            "TLS covers the control connection only: the guest's memory travels over rdma, which is "
            "not encrypted; --transport tcp would be");
    if (session->options->common.plain_data && tcp && !clear)
        rm_reporter_warning(
            session->reporter, RM_REASON_TLS,
            "the guest's memory travels inside TLS all the same: rdmamigd there was not given "
            "--plain-data");
}

gboolean rm_negotiate_data(RmSession *session, GError **error)
{
    for (guint tries = session->hello->transports->len;; tries--) {
        g_autoptr(GError) problem = NULL;
        if (connect_tx(session, &problem))
            break;
        /* Without another one, or with the session at its end, the first problem is the one to tell. */
        if (tries <= 1 || g_cancellable_is_cancelled(session->cancel) ||
            !next_transport(session, problem, NULL)) {
            g_propagate_error(error, g_steal_pointer(&problem));
            return FALSE;
        }
    }
    tell_data_kind(session);
    RmSenderParams sender = {
        .tx = session->tx,
        .control = session->control,
        .blocks = session->blocks,
        .chunk_size = session->accept->chunk_size,
        .channels = (unsigned)session->accept->channels,
        .max_bandwidth = session->options->max_bandwidth,
        .window = session->accept->window,
        .watches = session->watches,
    };
    session->sender = rm_sender_new(&sender);
    return TRUE;
}
