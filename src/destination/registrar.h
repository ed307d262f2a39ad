/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Answers `register` and `release`, by a pool of threads: registering takes long, for it populates, and
 * releasing waits for what is under way. Requests are answered in any order; the source asks for nothing that
 * depends on an answer which it has not had.
 */
#pragma once

#include "control/channel.h"
#include "control/message.h"
#include "destination/metrics.h"

typedef struct RmRegistrar RmRegistrar;

/* `control`, `rx` and `metrics` are borrowed; `blocks` (RmBlock*) is copied. */
RmRegistrar *rm_registrar_new(RmControl *control, RmRx *rx, const GPtrArray *blocks, uint64_t chunk_size,
                              unsigned channels, RmDaemonMetrics *metrics);
/* The device state, once `rx` has it: its index is the next free one. */
void rm_registrar_add_block(RmRegistrar *registrar, RmBlock *block);

/* Each checks a request and hands it to the pool, which answers it. FALSE with reason protocol. */
gboolean rm_registrar_register(RmRegistrar *registrar, json_object *message, GError **error);
gboolean rm_registrar_release(RmRegistrar *registrar, json_object *message, GError **error);

/* Answers what is left, and waits for that; `rx` must be stopped, for else it may take long. Accepts NULL. */
void rm_registrar_free(RmRegistrar *registrar);
