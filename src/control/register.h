/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the control channel says about registration: `register`, `registered`, `release`. A part of
 * control/message.h. */
#pragma once

#include "transport/transport.h"

#include <json-c/json.h>

#define RM_REGISTER_CHUNKS_MAX 256    /* chunks in one register */
#define RM_REGISTER_EXTENTS_MAX 16384 /* extents in one register */

typedef struct {
    uint64_t chunk;
    GArray *extents; /* RmExtent, in bytes from the block's start */
} RmRegisterChunk;

typedef struct {
    uint64_t block;
    GPtrArray *chunks; /* RmRegisterChunk* */
} RmRegister;

RmRegister *rm_register_new(uint64_t block);
RmRegisterChunk *rm_register_add(RmRegister *request, uint64_t chunk);
void rm_register_free(RmRegister *request);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmRegister, rm_register_free)

/* Encoders return a message to send (caller owns); decoders NULL with reason protocol. */
json_object *rm_register_encode(const RmRegister *request);
RmRegister *rm_register_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, GError **error);
/* `register`'s contents, as they were asked for, and the mark behind their writes. */
json_object *rm_release_encode(const RmRegister *request, uint32_t mark);
RmRegister *rm_release_decode(json_object *message, GPtrArray *blocks, uint64_t chunk_size, unsigned channels,
                              uint32_t *ret_mark, GError **error);
/* Answer to `register`, with regions (of RmRegion) of its block. */
json_object *rm_registered_encode(const GArray *regions);
GArray *rm_registered_decode(json_object *message, const RmBlock *block, uint64_t chunk_size, GError **error);

/* Whether there is such a block, or chunk of it; reason protocol. */
gboolean rm_message_check_block(uint64_t index, const GPtrArray *blocks, GError **error);
gboolean rm_message_check_chunk(uint64_t chunk, const RmBlock *block, uint64_t chunk_size, GError **error);
