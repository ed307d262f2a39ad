/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Encoding, decoding and checking what travels on a data connection. */
#include "transport/tcp/wire.h"

#include "common/reason.h"
#include "memory/chunk.h"
#include "transport/tcp/socket.h"

#include <string.h>

#define MAGIC_BYTES (sizeof RM_TCP_MAGIC - 1)
#define CHANNEL_AT (MAGIC_BYTES + RM_TOKEN_BYTES)
#define RESERVED_AT (CHANNEL_AT + sizeof(uint32_t))
G_STATIC_ASSERT(RESERVED_AT + sizeof(uint32_t) == RM_TCP_PREAMBLE_BYTES);

void rm_tcp_preamble_format(const RmTcpPreamble *preamble, uint8_t bytes[RM_TCP_PREAMBLE_BYTES])
{
    uint32_t channel = GUINT32_TO_LE(preamble->channel);
    memset(bytes, 0, RM_TCP_PREAMBLE_BYTES);
    memcpy(bytes, RM_TCP_MAGIC, MAGIC_BYTES);
    memcpy(bytes + MAGIC_BYTES, preamble->token, RM_TOKEN_BYTES);
    memcpy(bytes + CHANNEL_AT, &channel, sizeof channel);
}

gboolean rm_tcp_preamble_parse(const uint8_t bytes[RM_TCP_PREAMBLE_BYTES], RmTcpPreamble *ret_preamble)
{
    uint32_t channel, reserved;
    memcpy(&channel, bytes + CHANNEL_AT, sizeof channel);
    memcpy(&reserved, bytes + RESERVED_AT, sizeof reserved);
    if (memcmp(bytes, RM_TCP_MAGIC, MAGIC_BYTES) != 0 || reserved != 0)
        return FALSE;
    memcpy(ret_preamble->token, bytes + MAGIC_BYTES, RM_TOKEN_BYTES);
    ret_preamble->channel = GUINT32_FROM_LE(channel);
    return TRUE;
}

gboolean rm_tcp_preamble_receive(GIOStream *stream, char first, unsigned timeout_ms,
                                 GCancellable *cancellable, RmTcpPreamble *ret_preamble, GError **error)
{
    uint8_t bytes[RM_TCP_PREAMBLE_BYTES] = {(uint8_t)first};
    gsize have = first != '\0' ? 1 : 0;
    g_autoptr(GError) problem = NULL;
    /* The deadline is for all of it: a peer that sends a byte now and then must not hold its place for ever.
     */
    gint64 deadline = g_get_monotonic_time() + (gint64)timeout_ms * 1000;
    if (!rm_tcp_read(stream, bytes + have, sizeof bytes - have, deadline, cancellable, &problem)) {
        RmReason reason = RM_REASON_PEER_LOST;
        if (g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_TIMED_OUT))
            reason = RM_REASON_PEER_TIMEOUT;
        else if (g_error_matches(problem, G_IO_ERROR, G_IO_ERROR_CANCELLED))
            reason = RM_REASON_CANCELLED;
        return rm_fail(error, reason, "a data connection did not introduce itself: %s", problem->message);
    }
    if (!rm_tcp_preamble_parse(bytes, ret_preamble))
        return rm_fail(error, RM_REASON_PROTOCOL,
                       "a data connection began with something else than rdmamig's preamble, version 1");
    return TRUE;
}

void rm_tcp_header_swap(RmTcpHeader *header)
{
    header->op = GUINT32_FROM_LE(header->op);
    header->block = GUINT32_FROM_LE(header->block);
    header->n = GUINT32_FROM_LE(header->n);
    header->total = GUINT32_FROM_LE(header->total);
    header->round = GUINT32_FROM_LE(header->round);
    header->reserved = GUINT32_FROM_LE(header->reserved);
}

void rm_tcp_runs_swap(RmRun *runs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        runs[i].offset = GUINT64_FROM_LE(runs[i].offset);
        runs[i].length = GUINT64_FROM_LE(runs[i].length);
    }
}

const char *rm_tcp_header_check(const RmTcpHeader *header, const RmTcpLimits *limits)
{
    if (header->reserved != 0)
        return "reserved field is not 0";
    if (header->op == RM_TCP_OP_ROUND_END) {
        if (header->block != 0 || header->n != 0 || header->total != 0)
            return "end of a round with fields of a write";
        return header->round == limits->next_round ? NULL : "end of another round than the current one";
    }
    if (header->op != RM_TCP_OP_WRITE)
        return "unknown operation";
    if (header->round != 0)
        return "write with a round number";
    if (header->n == 0 || header->n > RM_RUNS_MAX)
        return "number of runs out of range";
    if (header->total == 0 || header->total > RM_POST_BYTES_MAX)
        return "total length out of range";
    if (rm_block_table_get(limits->blocks, header->block) == NULL)
        return "no such block";
    return NULL;
}

const char *rm_tcp_runs_check(const RmTcpHeader *header, const RmRun *runs, const RmTcpLimits *limits)
{
    const RmBlock *block = rm_block_table_get(limits->blocks, header->block);
    uint64_t chunk = runs[0].offset / limits->chunk_size, total = 0;
    for (unsigned i = 0; i < header->n; i++) {
        const RmRun *run = &runs[i];
        if (run->offset % RM_PAGE != 0 || run->length % RM_PAGE != 0 || run->length == 0)
            return "run that is empty or not page-aligned";
        /* In this order, so that nothing can overflow. */
        if (run->offset >= block->size || run->length > block->size - run->offset)
            return "run past the end of its block";
        if (run->offset / limits->chunk_size != chunk ||
            (run->offset + run->length - 1) / limits->chunk_size != chunk)
            return "runs of more than one chunk";
        total +=
            run->length; /* cannot wrap: it was within the bound below, and a block is smaller than 2^63 */
        if (total > RM_POST_BYTES_MAX)
            return "runs longer than a write may be";
    }
    if (total != header->total)
        return "total length is not the sum of the runs";
    if (rm_chunk_channel(header->block, chunk, limits->channels) != limits->channel)
        return "chunk of another channel";
    return NULL;
}

const char *rm_tcp_post_check(uint32_t block, const RmRun *runs, unsigned n, const RmTcpLimits *limits,
                              RmTcpHeader *ret_header)
{
    uint64_t total = 0;
    for (unsigned i = 0; i < n && total <= RM_POST_BYTES_MAX; i++)
        total += runs[i].length;
    *ret_header = (RmTcpHeader){
        .op = RM_TCP_OP_WRITE, .block = block, .n = n, .total = (uint32_t)MIN(total, G_MAXUINT32)};
    const char *problem = rm_tcp_header_check(ret_header, limits);
    return problem != NULL ? problem : rm_tcp_runs_check(ret_header, runs, limits);
}
