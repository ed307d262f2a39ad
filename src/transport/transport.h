/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Transports: one-sided writes from the source's RAM into the destination's.
 *
 * The source (RmTx) names a block, an offset and a length; the bytes appear there at the destination (RmRx),
 * which takes part only in registration and in the barriers. Writes on one channel land in order of nothing:
 * the only ordering is the round's end. end_round() on every channel, and the destination's wait_round(),
 * together say: every byte posted before has landed, at the receiver, and none of it will be written again. A
 * chunk belongs to one channel for the whole session (memory/chunk.h), so two versions of a page never race.
 *
 * Threads: connect(), add_block() and free() by the session; post() and end_round() of one channel by that
 * channel's sender thread only; abort() by anyone, at any time: it makes every blocked and later call fail
 * soon. Data-path calls return 0 or a negative errno; the first failure's text is kept and read with error().
 *
 * Registration: the session asks the far end over the control channel, many chunks in a message, ahead of the
 * cursor, naming the extents that it is going to write. The far end answers with the regions that are
 * writable now: at least those extents, each region inside one chunk, with its key. They are given to
 * registered() before the first post into them. tcp needs no keys: there registering is populating ahead, and
 * its answers are empty. The unit of asking is the granule (RM_CHUNK_MIN): what was asked for once is not
 * asked for again, until it has been released.
 *
 * Windows: either end may bound the guest memory that it has registered at a time (--max-pinned, or its limit
 * of locked memory). The source's own is its transport's to keep. The destination's is kept by the sender,
 * which has chunks released to make room: release() forgets their keys, mark() puts a mark behind all writes
 * of the channel so far, and the destination ends the registration once it has reaped that mark, for only
 * then no write into it can still be under way. The source's completions would not do: on iWARP a write
 * completes there before it is placed.
 */
#pragma once

#include "control/tls.h"
#include "memory/block.h"
#include "transport/token.h"

#include <gio/gio.h>
#include <json-c/json.h>

#define RM_CHANNELS_MAX 64
#define RM_RUNS_MAX 256 /* runs in one post() */
#define RM_POST_BYTES_MAX                                                                                    \
    (UINT64_C(4) << 20) /* sum of lengths in one post(), so that back-pressure acts often */

typedef struct {
    uint64_t offset; /* in the block, bytes, page-aligned */
    uint64_t length; /* bytes, a multiple of RM_PAGE, > 0 */
} RmRun;

/* A part of a block that may be written with `key`. */
typedef struct {
    uint64_t offset; /* in the block, bytes, page-aligned */
    uint64_t length; /* bytes */
    uint32_t key;
} RmRegion;

/* A number that the operator may have named; all zero: the default holds. */
typedef struct {
    gboolean given;
    uint8_t value;
} RmChoice;

/* How the data channels' packets are marked and repeated. All zero: the defaults. */
typedef struct {
    RmChoice tos;         /* the IP header's TOS or traffic class byte; the DSCP is its upper six bits */
    RmChoice retries;     /* rdma: of a packet that was not acknowledged, 0..RM_RETRIES_MAX; the source's */
    RmChoice ack_timeout; /* rdma: exponent n of the wait for an acknowledgement, 4.096 us * 2^n, 1..31 */
} RmPacketOptions;

/* The field has room for 7, which rdma_rxe takes for "for ever": a dead link would never be told. */
#define RM_RETRIES_MAX 6

/* ---- source ---- */

typedef struct RmTx RmTx;

typedef struct {
    unsigned channels; /* 1..RM_CHANNELS_MAX */
    GPtrArray *blocks; /* RmBlock*, borrowed; the device state is one more, added with add_block() */
    uint64_t chunk_size;
    uint8_t token[RM_TOKEN_BYTES];
    json_object *address;       /* what the destination's transport offered; borrowed during connect() */
    const char *host;           /* where the control channel went, for an offer without address */
    const char *source_address; /* --data-source, or NULL */
    const char *device;         /* --rdma-device DEV[:PORT], or NULL: rdma_cm chooses */
    int gid_index;              /* --gid-index, or -1 */
    RmPacketOptions packets;
    RmTls *tls; /* tcp: the channels go inside TLS, with these credentials; NULL: in clear. Borrowed */
    const char *tls_host; /* … and the name that the destination's certificate must have */
    gboolean serialise;   /* --serialise-chunks (rdma): a write waits for its chunk's earlier ones */
    gboolean copy;       /* the guest may punch holes: send copies, never through a registration of its RAM */
    unsigned timeout_ms; /* of connecting, and of a peer that takes nothing off the wire */
    uint64_t max_pinned; /* --max-pinned: bytes registered here at a time; 0: as many as the limits allow */
    gboolean pin_all;    /* --pin all: must fit at once */
} RmTxParams;

typedef struct {
    const char *name; /* as in --transport */

    gboolean (*connect)(RmTx *tx, const RmTxParams *params, GCancellable *cancellable, GError **error);
    /* Blocks known to both ends but not part of guest RAM (the device state): its index is the next free one.
     */
    void (*add_block)(RmTx *tx, RmBlock *block);
    /* The far end's answer to a request; checked by the caller to lie within the block. Any channel's thread.
     */
    int (*registered)(RmTx *tx, uint32_t block, const RmRegion *regions, unsigned n);
    /* Makes the source's own memory in these extents, all of one chunk, ready to be read by the card: ahead
     * of post(), which copies what is not. Holes are left alone: registering them would allocate them. The
     * channel's thread; before the first post any threads, each chunk by one of them. */
    int (*prepare)(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n);
    /* Bytes of guest memory that `channel` can have prepared at a time; 0: no bound. */
    uint64_t (*window)(RmTx *tx, unsigned channel);
    /* Forgets the far end's regions within these extents: a later post into them fails until they are
     * registered again. The channel's thread. */
    int (*release)(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n);
    /* Puts a mark behind all that was posted on the channel; *ret_mark is what the far end waits for. At most
     * one may be unanswered. */
    int (*mark)(RmTx *tx, unsigned channel, uint32_t *ret_mark);
    /* Posts writes of `n` runs of `block`, all of one chunk, up to RM_RUNS_MAX and RM_POST_BYTES_MAX. Blocks
     * while the channel's window is full. The source bytes are read at some time before the channel's next
     * end_round() returns. */
    int (*post)(RmTx *tx, unsigned channel, uint32_t block, const RmRun *runs, unsigned n);
    /* Marks the end of round `round` behind the channel's posts and waits until the source bytes are no
     * longer needed. */
    int (*end_round)(RmTx *tx, unsigned channel, uint32_t round);
    void (*abort)(RmTx *tx);
    /* The first failure on the data path: reason transport, privilege…; FALSE and `error` set, or TRUE if
     * there is none. */
    gboolean (*error)(RmTx *tx, GError **error);
    uint64_t (*wire_bytes)(RmTx *tx); /* sent so far, headers included */
    void (*free)(RmTx *tx);           /* aborts, joins, closes */
} RmTxOps;

struct RmTx {
    const RmTxOps *ops;
};

/* ---- destination ---- */

typedef struct RmRx RmRx;

typedef struct {
    unsigned channels;
    GPtrArray *blocks; /* RmBlock*, borrowed, mapped writable */
    uint64_t chunk_size;
    uint8_t token[RM_TOKEN_BYTES];
    unsigned timeout_ms;         /* for all channels to arrive */
    uint16_t port;               /* the daemon's; rdma_cm listens on the same number */
    char *const *data_addresses; /* --data-address, NULL-terminated, or NULL */
    const char *device;          /* --rdma-device, or NULL */
    int gid_index;               /* --gid-index, or -1 */
    RmPacketOptions packets;     /* the destination's own */
    uint64_t max_pinned; /* --max-pinned: bytes registered at a time; 0: as many as the limits allow */
    gboolean pin_all;    /* the source wants all of it registered at once */
    gboolean releases;   /* the source can release what is registered */
} RmRxParams;

typedef struct {
    const char *name;
    gboolean pins; /* chunks stay registered: their pages must not be punched */

    gboolean (*start)(RmRx *rx, const RmRxParams *params, GError **error);
    /* Where the source shall connect, for `accept`; caller owns. NULL: the control channel's own address. */
    json_object *(*offer)(RmRx *rx);
    /* A connection on the daemon's port proved the session's token for `channel`: takes `stream` over, a
     * GSocketConnection or a GTlsConnection over one. Any thread. */
    gboolean (*adopt)(RmRx *rx, GIOStream *stream, unsigned channel, GError **error);
    void (*add_block)(RmRx *rx, RmBlock *block); /* as at the source; before any write to it */
    /* Makes these extents of one chunk writable (populates, registers) and appends the regions to `regions`
     * (of RmRegion), which may be larger than the extents. What is writable already is answered again. Called
     * by the registration pool's threads, several at once. */
    gboolean (*register_chunk)(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents, unsigned n,
                               GArray *regions, GError **error);
    /* Ends the registration of what was registered within these extents of one chunk (whole granules, as they
     * were asked for), once its channel has reaped `mark`. Any threads; stop() and abort() end the wait. */
    gboolean (*release_chunk)(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents, unsigned n,
                              uint32_t mark, GError **error);
    /* Waits until every channel has reaped the end of `round`. Reasons transport, peer-timeout, cancelled. */
    gboolean (*wait_round)(RmRx *rx, uint32_t round, GCancellable *cancellable, GError **error);
    void (*abort)(RmRx *rx);
    uint64_t (*payload_bytes)(RmRx *rx);    /* landed so far. Any thread, and never waits, as the next one */
    uint64_t (*registered_bytes)(RmRx *rx); /* registered with a device now */
    /* Closes all channels and deregisters all chunks: once it has returned nothing of ours writes guest RAM.
     * Idempotent. */
    void (*stop)(RmRx *rx);
    void (*free)(RmRx *rx);
} RmRxOps;

struct RmRx {
    const RmRxOps *ops;
    uint64_t window; /* once started: bytes of guest memory that can be registered at a time; 0: no bound */
};

/* ---- backends ---- */

typedef struct {
    const char *name;
    RmTx *(*tx_new)(void);
    RmRx *(*rx_new)(void);
    /* Whether this host can use it now; if not, why, in a few words (caller frees). */
    gboolean (*available)(char **ret_why);
} RmTransport;

/* All backends built in, best first, NULL-terminated. */
extern const RmTransport *const rm_transports[];
const RmTransport *rm_transport_find(const char *name);

/* Whether `wish` ("auto" or a name) allows it. */
gboolean rm_transport_is_wished(const RmTransport *transport, const char *wish);

/* Asks each that is wished for whether this host can use it, and logs why not. The first time loads the
 * devices' libraries, which takes long: any thread may do that ahead, and who asks meanwhile waits for it. */
void rm_transports_probe(const char *wish);

extern const RmTransport rm_transport_rdma; /* with meson's `rdma` only */
extern const RmTransport rm_transport_tcp;
extern const RmTransport
    rm_transport_fake; /* tests only, not in the array: writes by memcpy, records each post */

/* For transports that register nothing at either end. */
int rm_tx_prepare_nothing(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n);
uint64_t rm_tx_no_window(RmTx *tx, unsigned channel);
int rm_tx_release_nothing(RmTx *tx, unsigned channel, uint32_t block, const RmExtent *extents, unsigned n);
int rm_tx_no_mark(RmTx *tx, unsigned channel, uint32_t *ret_mark);
uint64_t rm_rx_registers_nothing(RmRx *rx);
gboolean rm_rx_release_nothing(RmRx *rx, uint32_t block, uint64_t chunk, const RmExtent *extents, unsigned n,
                               uint32_t mark, GError **error);

static inline void rm_tx_free(RmTx *tx)
{
    if (tx != NULL)
        tx->ops->free(tx);
}

static inline void rm_rx_free(RmRx *rx)
{
    if (rx != NULL)
        rx->ops->free(rx);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmTx, rm_tx_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmRx, rm_rx_free)
