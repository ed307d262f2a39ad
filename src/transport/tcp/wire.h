/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What travels on a data connection, and the checks of it. All integers are little-endian.
 *
 * - Source to destination, once: the preamble, 48 bytes: "RMDATA1\n", token[32], channel u32, reserved u32 =
 * 0.
 * - Destination to source, once: RM_TCP_ACK when the channel has been adopted; closed if it was rejected.
 * - Source to destination, from then on: frames: header, `n` runs of {offset u64, length u64}, and the runs'
 * bytes in order.
 *
 * The preamble's first byte, 'R', tells a data connection from a control connection, whose first byte is '{',
 * so that both live on one port. All of this may be inside TLS, whose first byte is 0x16. Nothing but the ACK
 * ever goes back: barriers are answered on the control channel.
 */
#pragma once

#include "transport/block-table.h"
#include "transport/transport.h"

#define RM_TCP_MAGIC "RMDATA1\n"
#define RM_TCP_PREAMBLE_BYTES 48
#define RM_TCP_ACK 0x06

typedef struct {
    uint8_t token[RM_TOKEN_BYTES];
    uint32_t channel;
} RmTcpPreamble;

void rm_tcp_preamble_format(const RmTcpPreamble *preamble, uint8_t bytes[RM_TCP_PREAMBLE_BYTES]);

/* FALSE if it is not one. The channel number and the token are the caller's to check. */
gboolean rm_tcp_preamble_parse(const uint8_t bytes[RM_TCP_PREAMBLE_BYTES], RmTcpPreamble *ret_preamble);

/* Reads a preamble off a fresh connection, in clear or inside TLS, within timeout_ms altogether; `first` is
 * its first byte if that was read already, else '\0'. Reasons protocol (not a preamble), peer-lost,
 * peer-timeout, cancelled. Reads not a byte more. */
gboolean rm_tcp_preamble_receive(GIOStream *stream, char first, unsigned timeout_ms,
                                 GCancellable *cancellable, RmTcpPreamble *ret_preamble, GError **error);

typedef enum {
    RM_TCP_OP_WRITE = 0x52574d52,     /* "RMWR": n runs of one chunk of `block`, `total` bytes in all */
    RM_TCP_OP_ROUND_END = 0x45524d52, /* "RMRE": round `round` is complete on this channel; the rest is 0 */
} RmTcpOp;

typedef struct {
    uint32_t op;
    uint32_t block;
    uint32_t n;
    uint32_t total;
    uint32_t round;
    uint32_t reserved; /* 0 */
} RmTcpHeader;
G_STATIC_ASSERT(sizeof(RmTcpHeader) == 24);
G_STATIC_ASSERT(sizeof(RmRun) == 16);

/* Between the wire's order and the host's, in place. */
void rm_tcp_header_swap(RmTcpHeader *header);
void rm_tcp_runs_swap(RmRun *runs, unsigned n);

/* What a frame on one channel may say. */
typedef struct {
    const RmBlockTable *blocks;
    uint64_t chunk_size;
    unsigned channels;
    unsigned channel;
    uint32_t next_round; /* the only round whose end may come now */
} RmTcpLimits;

/* Check a header (host order), and once its runs have been read, the runs; in this order. Each returns NULL
 * if all is well, else what is wrong, a static text. What passes both may be written without a further look.
 */
const char *rm_tcp_header_check(const RmTcpHeader *header, const RmTcpLimits *limits);
const char *rm_tcp_runs_check(const RmTcpHeader *header, const RmRun *runs, const RmTcpLimits *limits);

/* The header of a write that this end is going to post, checked, with its runs, as the far end would: a
 * mistake of ours is found where it was made. On either transport. */
const char *rm_tcp_post_check(uint32_t block, const RmRun *runs, unsigned n, const RmTcpLimits *limits,
                              RmTcpHeader *ret_header);
