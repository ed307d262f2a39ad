/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Posting, credits and completions at the source. */
#include "transport/verbs/writer.h"

#include "transport/verbs/mark.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING_BYTES (UINT64_C(4) << 20) /* if the device can register that much at once */
/* One copied request: small enough that the first is under way while the next is copied, and at most half
 * of the ring: then what is skipped at its end and the piece itself fit into an empty one. */
#define RING_PIECE_MAX (UINT64_C(256) << 10)
#define POLL_BATCH 16
#define SPIN_MAX_US 20u
#define SPIN_MIN_US 1u
#define SLEEP_MS 1000 /* at most: the time-out is looked at in between */

/* ---- failure ---- */

/* What `format` gives must not depend on who came first: the first keeps its text. */
int rm_verbs_shared_fail(RmVerbsShared *shared, int code, RmReason reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    code = rm_failure_set(&shared->failure, code, reason, "%s", text);
    uint64_t one = 1;
    (void)!write(shared->wake_fd, &one, sizeof one); /* fails only when it is readable anyway */
    return code;
}

typedef struct {
    enum ibv_wc_status status;
    int code;
    RmReason reason;
    const char *advice;
} Meaning;

static const Meaning meanings[] = {
    {IBV_WC_RETRY_EXC_ERR, -ETIMEDOUT, RM_REASON_PEER_TIMEOUT,
     "the destination's card does not answer: look at its host, the cable, and for RoCE at MTU and flow "
     "control"},
    {IBV_WC_RNR_RETRY_EXC_ERR, -EPIPE, RM_REASON_TRANSPORT,
     "the destination is not ready to receive; its log may say why"},
    {IBV_WC_REM_ACCESS_ERR, -EACCES, RM_REASON_TRANSPORT,
     "the destination's card refused the key: the session has ended there, or the memory is no longer "
     "registered; its log says "
     "why"},
    {IBV_WC_REM_INV_REQ_ERR, -EPROTO, RM_REASON_TRANSPORT,
     "the destination's card refused the request as malformed"},
    {IBV_WC_REM_OP_ERR, -EREMOTEIO, RM_REASON_TRANSPORT,
     "the destination's card could not do it; look at its kernel log"},
    {IBV_WC_LOC_PROT_ERR, -EFAULT, RM_REASON_TRANSPORT,
     "this host's card cannot read the memory: it is not registered any more"},
    {IBV_WC_FATAL_ERR, -EIO, RM_REASON_TRANSPORT, "this host's card has failed; look at its kernel log"},
};

/* The status of the first request that failed. Those behind it are flushed, which says nothing: the first
 * failure stays. */
static int completion_failed(RmVerbsWriter *writer, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_WR_FLUSH_ERR)
        return rm_verbs_shared_fail(
            writer->shared, -EPIPE, RM_REASON_PEER_LOST,
            "data channel %u: the connection was ended; the destination's log says why", writer->index);
    for (unsigned i = 0; i < G_N_ELEMENTS(meanings); i++)
        if (meanings[i].status == wc->status)
            return rm_verbs_shared_fail(writer->shared, meanings[i].code, meanings[i].reason,
                                        "data channel %u: %s: %s", writer->index,
                                        ibv_wc_status_str(wc->status), meanings[i].advice);
    return rm_verbs_shared_fail(writer->shared, -EIO, RM_REASON_TRANSPORT,
                                "data channel %u: %s (vendor error %#x); look at both hosts' kernel logs",
                                writer->index, ibv_wc_status_str(wc->status), wc->vendor_err);
}

/* ---- completions ---- */

/* Number of completions, or a negative errno. */
static int reap(RmVerbsWriter *writer)
{
    struct ibv_wc wc[POLL_BATCH];
    int n = ibv_poll_cq(writer->qp.cq, POLL_BATCH, wc);
    if (n < 0)
        return rm_verbs_shared_fail(
            writer->shared, -EIO, RM_REASON_TRANSPORT,
            "data channel %u: the completion queue cannot be read; look at the kernel log", writer->index);
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS)
            return completion_failed(writer, &wc[i]);
        writer->done = wc[i].wr_id + 1;
        writer->ring_tail = writer->ring_ends[wc[i].wr_id % writer->qp.send_depth];
    }
    if (n > 0)
        writer->progress_us = g_get_monotonic_time();
    return n;
}

int rm_verbs_writer_reap(RmVerbsWriter *writer)
{
    int n;
    do {
        n = reap(writer);
    } while (n == POLL_BATCH);
    return MIN(n, 0);
}

/* Polls for as long as it has lately been worth it: on a fast network the next completion is a few
 * microseconds away, and a system call would take longer; on a slow one the core is better left to others. */
static int spin(RmVerbsWriter *writer)
{
    gint64 end = g_get_monotonic_time() + writer->spin_us;
    int n;
    do {
        n = reap(writer);
    } while (n == 0 && g_get_monotonic_time() < end);
    if (n > 0)
        writer->spin_us = MIN(writer->spin_us * 2, SPIN_MAX_US);
    else if (n == 0)
        writer->spin_us = MAX(writer->spin_us / 2, SPIN_MIN_US);
    return n;
}

/* Until at least one more request has completed. All must have been handed over. */
static int wait_completion(RmVerbsWriter *writer)
{
    RmVerbsShared *shared = writer->shared;
    writer->progress_us = g_get_monotonic_time();
    int n = spin(writer);
    while (n == 0) {
        int code = rm_failure_code(&shared->failure);
        if (code < 0)
            return code;
        if (g_get_monotonic_time() - writer->progress_us > (gint64)shared->timeout_ms * 1000)
            return rm_verbs_shared_fail(shared, -ETIMEDOUT, RM_REASON_PEER_TIMEOUT,
                                        "data channel %u: the destination took no data for %u ms",
                                        writer->index, shared->timeout_ms);
        code = rm_verbs_qp_sleep(&writer->qp, shared->wake_fd, (int)MIN(shared->timeout_ms, SLEEP_MS));
        if (code < 0)
            return rm_verbs_shared_fail(shared, code, RM_REASON_TRANSPORT,
                                        "data channel %u: cannot wait for completions: %s", writer->index,
                                        g_strerror(-code));
        n = reap(writer);
    }
    return MIN(n, 0);
}

/* ---- posting ---- */

int rm_verbs_writer_flush(RmVerbsWriter *writer)
{
    struct ibv_send_wr *bad;
    unsigned n = writer->n_pending;
    int code = rm_failure_code(&writer->shared->failure);
    if (n == 0 || code < 0)
        return code;
    writer->requests[n - 1].next = NULL;
    writer->requests[n - 1].send_flags = IBV_SEND_SIGNALED;
    code = ibv_post_send(writer->qp.id->qp, writer->requests, &bad);
    if (code != 0)
        return rm_verbs_shared_fail(writer->shared, -code, RM_REASON_TRANSPORT,
                                    "data channel %u: cannot post %u requests, %u outstanding of %u: %s",
                                    writer->index, n, (unsigned)(writer->posted - writer->done),
                                    writer->qp.send_depth, g_strerror(code));
    writer->posted += n;
    writer->n_pending = 0;
    return 0;
}

/* The next request of the list, once there is credit for it: numbered, linked, with one piece. */
static int next_request(RmVerbsWriter *writer, struct ibv_send_wr **ret_request)
{
    int code = 0;
    if (writer->n_pending == RM_VERBS_LIST_MAX)
        code = rm_verbs_writer_flush(writer);
    while (code == 0 && rm_verbs_writer_number(writer) - writer->done >= writer->qp.send_depth) {
        code = rm_verbs_writer_flush(writer);
        if (code == 0)
            code = wait_completion(writer);
    }
    if (code < 0)
        return code;
    unsigned i = writer->n_pending++;
    uint64_t number = writer->posted + i;
    writer->requests[i] = (struct ibv_send_wr){.wr_id = number, .sg_list = &writer->pieces[i], .num_sge = 1};
    if (i > 0)
        writer->requests[i - 1].next = &writer->requests[i];
    writer->ring_ends[number % writer->qp.send_depth] = writer->ring_head;
    *ret_request = &writer->requests[i];
    return 0;
}

static int write_piece(RmVerbsWriter *writer, const uint8_t *local, uint32_t lkey, uint64_t remote,
                       uint32_t rkey, uint32_t length)
{
    struct ibv_send_wr *request;
    int code = next_request(writer, &request);
    if (code < 0)
        return code;
    *request->sg_list = (struct ibv_sge){(uintptr_t)local, length, lkey};
    request->opcode = IBV_WR_RDMA_WRITE;
    request->wr.rdma.remote_addr = remote;
    request->wr.rdma.rkey = rkey;
    writer->payload += length;
    /* Computed, for the card does not tell: the payload, and the headers of its packets. */
    uint64_t packets = (length + writer->mtu - 1) / writer->mtu;
    __atomic_fetch_add(&writer->shared->wire_bytes, length + packets * writer->overhead, __ATOMIC_RELAXED);
    return 0;
}

int rm_verbs_writer_write(RmVerbsWriter *writer, const uint8_t *local, uint32_t lkey, uint64_t remote,
                          uint32_t rkey, uint64_t length)
{
    int code = 0;
    while (length > 0 && code == 0) {
        uint32_t piece = (uint32_t)MIN(length, writer->qp.limits.max_msg_sz);
        code = write_piece(writer, local, lkey, remote, rkey, piece);
        local += piece;
        remote += piece;
        length -= piece;
    }
    return code;
}

/* ---- copies ---- */

int rm_verbs_writer_make_ring(RmVerbsWriter *writer)
{
    uint64_t bytes = MIN(RING_BYTES, writer->qp.limits.max_mr_size);
    if (writer->ring_mr != NULL)
        return 0;
    if (writer->ring_most != 0)
        bytes = MIN(bytes, writer->ring_most);
    void *ring = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ring != MAP_FAILED) {
        madvise(ring, bytes, MADV_DONTDUMP);
        writer->ring = ring;
        writer->ring_bytes = bytes;
        writer->ring_mr = ibv_reg_mr(writer->qp.pd, ring, bytes, 0); /* read by our own card only */
    }
    if (writer->ring_mr != NULL)
        return 0;
    int code = errno;
    return rm_verbs_shared_fail(
        writer->shared, -code, RM_REASON_PRIVILEGE,
        "data channel %u: no %u KiB of registered memory to copy through: %s; raise the limit of locked "
        "memory (ulimit -l, LimitMEMLOCK= in the unit)",
        writer->index, (unsigned)(bytes >> 10), g_strerror(code));
}

/* `length` bytes of the ring in one piece, once they are free. */
static int reserve(RmVerbsWriter *writer, uint64_t length, uint8_t **ret_space)
{
    uint64_t size = writer->ring_bytes, place = writer->ring_head % size;
    uint64_t start = writer->ring_head + (place + length > size ? size - place : 0);
    int code = 0;
    while (code == 0 && start + length - writer->ring_tail > size) {
        code = rm_verbs_writer_flush(writer);
        if (code == 0)
            code = wait_completion(writer);
    }
    writer->ring_head = start + length;
    *ret_space = writer->ring + start % size;
    return code;
}

int rm_verbs_writer_copy(RmVerbsWriter *writer, const RmBlock *block, uint64_t offset, uint32_t rkey,
                         uint64_t length)
{
    int code = rm_verbs_writer_make_ring(writer);
    uint64_t limit = MIN(MIN(RING_PIECE_MAX, writer->qp.limits.max_msg_sz), writer->ring_bytes / 2);
    while (length > 0 && code == 0) {
        uint64_t piece = MIN(length, limit);
        uint8_t *space;
        code = reserve(writer, piece, &space);
        if (code < 0)
            return code;
        code = rm_block_read(block, offset, space, piece);
        if (code < 0)
            return rm_verbs_shared_fail(writer->shared, code, RM_REASON_TRANSPORT,
                                        "data channel %u: RAM block %s cannot be read: %s", writer->index,
                                        block->name, g_strerror(-code));
        code = write_piece(writer, space, writer->ring_mr->lkey, offset, rkey, (uint32_t)piece);
        offset += piece;
        length -= piece;
    }
    return code;
}

/* ---- marks ---- */

int rm_verbs_writer_wait(RmVerbsWriter *writer, uint64_t number)
{
    if (writer->done >= number)
        return 0;
    int code = rm_verbs_writer_flush(writer);
    while (code == 0 && writer->done < number)
        code = wait_completion(writer);
    return code;
}

/* Sends a mark from `slot` of the page for messages, which no request in flight reads. */
static int send_mark(RmVerbsWriter *writer, unsigned slot, uint32_t magic, uint32_t number)
{
    struct ibv_send_wr *request;
    RmVerbsMark *mark = (RmVerbsMark *)writer->qp.messages + slot;
    *mark = (RmVerbsMark){GUINT32_TO_LE(magic), GUINT32_TO_LE(number), GUINT64_TO_LE(writer->payload)};
    int code = next_request(writer, &request);
    if (code < 0)
        return code;
    *request->sg_list = (struct ibv_sge){(uintptr_t)mark, sizeof *mark, writer->qp.messages_mr->lkey};
    request->opcode = IBV_WR_SEND;
    __atomic_fetch_add(&writer->shared->wire_bytes, sizeof *mark + writer->overhead, __ATOMIC_RELAXED);
    return rm_verbs_writer_flush(writer);
}

int rm_verbs_writer_mark(RmVerbsWriter *writer, uint32_t *ret_mark)
{
    /* The destination's answer to the last mark may be here before our own completion of it. */
    int code = rm_verbs_writer_wait(writer, writer->mark_request);
    if (code == 0)
        code = send_mark(writer, 1, RM_VERBS_MARK_WITHIN, writer->marks + 1);
    if (code < 0)
        return code;
    writer->mark_request = writer->posted;
    *ret_mark = ++writer->marks;
    return 0;
}

int rm_verbs_writer_end_round(RmVerbsWriter *writer, uint32_t round)
{
    /* One such mark is in flight at a time: the wait below has seen the last one off. */
    int code = send_mark(writer, 0, RM_VERBS_MARK_ROUND, round);
    return code == 0 ? rm_verbs_writer_wait(writer, writer->posted) : code;
}

/* ---- life ---- */

void rm_verbs_writer_init(RmVerbsWriter *writer, RmVerbsShared *shared, unsigned index)
{
    writer->shared = shared;
    writer->index = index;
    writer->ring_ends = g_new0(uint64_t, writer->qp.send_depth);
    writer->spin_us = SPIN_MAX_US;
}

void rm_verbs_writer_clear(RmVerbsWriter *writer)
{
    if (writer->ring_mr != NULL)
        ibv_dereg_mr(writer->ring_mr);
    if (writer->ring != NULL)
        munmap(writer->ring, writer->ring_bytes);
    writer->ring_mr = NULL;
    writer->ring = NULL;
    g_clear_pointer(&writer->ring_ends, g_free);
}
