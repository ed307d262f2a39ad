/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The messages of the control channel: names, maxima, and one encoder and one decoder for each that has
 * contents. docs/protocol.md is the table in prose. Decoders check every count, index and length before
 * anybody uses it, against the session's blocks and chunk size where those decide.
 */
#pragma once

#include "control/register.h"
#include "memory/block.h"
#include "memory/digest.h"
#include "transport/transport.h"

#include <gio/gio.h>
#include <json-c/json.h>

#define RM_PORT 24780     /* TCP, and the same number for rdma_cm */
#define RM_PROTOCOL 1     /* what this build speaks */
#define RM_PROTOCOL_MIN 1 /* the oldest it still speaks */

#define RM_BLOCKS_MAX 1024                    /* RAM blocks of a guest */
#define RM_TRAITS_MAX 64                      /* facts compared at both ends */
#define RM_NAME_MAX 255                       /* bytes in a name */
#define RM_ZERO_RANGES_MAX 8192               /* zero ranges in one page of round-end */
#define RM_VERIFY_MAX 4096                    /* digests in one verify */
#define RM_STATE_MAX (UINT64_C(1) << 30)      /* bytes of device state */
#define RM_BLOCK_SIZE_MAX (UINT64_C(1) << 46) /* 64 TiB: no RAM block is larger */

/* Registrations can be released, and a destination registers just the granules that it was asked for. */
#define RM_FEATURE_RELEASE "release"
/* Data channels over tcp go in clear, though the control channel is inside TLS: the operators of both ends
 * have said so. */
#define RM_FEATURE_PLAIN_DATA "plain-data"

#define RM_MSG_HELLO "hello"
#define RM_MSG_ACCEPT "accept"
#define RM_MSG_REFUSE "refuse"
#define RM_MSG_TRANSPORT "transport"
#define RM_MSG_REGISTER "register"
#define RM_MSG_REGISTERED "registered"
#define RM_MSG_RELEASE "release"
#define RM_MSG_RELEASED "released"
#define RM_MSG_ROUND_END "round-end"
#define RM_MSG_ROUND_END_OK "round-end-ok"
#define RM_MSG_VERIFY "verify"
#define RM_MSG_VERIFIED "verified"
#define RM_MSG_STATE "state"
#define RM_MSG_STATE_OK "state-ok"
#define RM_MSG_LOAD "load"
#define RM_MSG_PREPARED "prepared"
#define RM_MSG_COMMIT "commit"
#define RM_MSG_RUNNING "running"
#define RM_MSG_QUERY "query"
#define RM_MSG_FATE "fate"
#define RM_MSG_FAILED "failed"
#define RM_MSG_CANCEL "cancel"
#define RM_MSG_BYE "bye"
#define RM_MSG_ERROR "error"

typedef struct {
    char *name;
    uint64_t size, page_size;
    char *backing; /* "BOOT-ID:DEV:INO" of the RAM file: equal at both ends means one and the same memory */
} RmHelloBlock;

typedef struct {
    uint64_t protocol, protocol_min;
    char *session; /* UUID */
    char *guest_name, *guest_uuid, *vmm;
    GHashTable *traits; /* char* -> char* */
    GPtrArray *blocks;  /* RmHelloBlock* */
    uint64_t populated; /* bytes of RAM that will need memory at the destination */
    uint64_t chunk_size, channels;
    GPtrArray *transports; /* char*, best first */
    GPtrArray *features;   /* char*: what is used only if both ends have it */
    gboolean pin_all;      /* all of RAM is to be registered before the first round */
    gboolean dry_run;
} RmHello;

typedef struct {
    uint64_t protocol, chunk_size, channels;
    char *transport;
    char *token; /* hexadecimal */
    char *boot;  /* instance of the daemon, for its log and the source's */
    json_object *address;
    GPtrArray *available; /* char*: transports that the destination could use, whatever was chosen */
    GPtrArray *features;  /* char*: of the source's, those that the destination has, too */
    uint64_t window;      /* bytes of guest memory that can be registered there at a time; 0: no bound */
} RmAccept;

typedef struct {
    uint64_t block, page, count;
} RmZeroRange;

typedef struct {
    uint64_t round;
    gboolean more;  /* further pages of this round follow */
    GArray *zeroes; /* RmZeroRange */
} RmRoundEnd;

typedef struct {
    uint64_t block, chunk;
    RmDigest digest;
} RmVerifyItem;

typedef enum { RM_FATE_UNKNOWN, RM_FATE_ABORTED, RM_FATE_COMMITTED } RmFate;
const char *rm_fate_name(RmFate fate);

void rm_hello_free(RmHello *hello);
RmAccept *rm_accept_new(void);
void rm_accept_free(RmAccept *accept);
void rm_round_end_free(RmRoundEnd *end);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmHello, rm_hello_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmAccept, rm_accept_free)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmRoundEnd, rm_round_end_free)

RmHello *rm_hello_new(void);
RmHelloBlock *rm_hello_add_block(RmHello *hello, const char *name, uint64_t size, uint64_t page_size,
                                 const char *backing);

/* Encoders return a message to send (caller owns); decoders NULL with reason protocol. */
json_object *rm_hello_encode(const RmHello *hello);
RmHello *rm_hello_decode(json_object *message, GError **error);
json_object *rm_accept_encode(const RmAccept *accept);
RmAccept *rm_accept_decode(json_object *message, GError **error);
json_object *rm_round_end_encode(uint64_t round, const RmZeroRange *ranges, unsigned n, gboolean more);
RmRoundEnd *rm_round_end_decode(json_object *message, GPtrArray *blocks, GError **error);
json_object *rm_verify_encode(const RmVerifyItem *items, unsigned n);
GArray *rm_verify_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, GError **error);

gboolean rm_has_name(const GPtrArray *names, const char *name);

/* The type of `message`; "" if it has none. Borrowed. */
const char *rm_message_type(json_object *message);
/* Checks that a reply has this type; reason protocol. */
gboolean rm_message_expect(json_object *reply, const char *type, GError **error);

/* "BOOT-ID:DEV:INO" of a block's file; caller frees. */
char *rm_backing_id(const RmBlock *block);
