/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a guest is let in: terms (protocol, chunk size, transport), the guest itself, memory for it. */
#pragma once

#include "control/message.h"
#include "destination/options.h"
#include "guest/guest.h"
#include "transport/transport.h"

/* Fills protocol, chunk_size and available of `accept`. Reasons version-mismatch, chunk-size. */
gboolean rm_admit_terms(const RmListenOptions *options, const RmHello *hello, RmAccept *accept,
                        GError **error);

/* Fills features of `accept`: what both ends have. `control`: the control connection. */
void rm_admit_features(const RmListenOptions *options, const RmHello *hello, GIOStream *control,
                       RmAccept *accept);

/* Where the session's RAM will be readable on its way, for the log. */
const char *rm_admit_data_kind(GIOStream *control, const RmAccept *accept);

/* The next of the source's offers, from number *next on, that is available here: fills transport and channels
 * of `accept`
 * (`channels`: the source's wish, 0 for the default). FALSE if there is none. */
gboolean rm_admit_transport(const GPtrArray *offers, const GPtrArray *available, guint *next,
                            uint64_t channels, RmAccept *accept);

/* Compares machine, CPU and RAM blocks with those of the waiting VMM, block by block in order, and looks for
 * memory. Reasons guest-mismatch, same-memory, memory-short: each names the thing and both values. */
gboolean rm_admit_guest(const RmHello *hello, const RmGuestInfo *info, GPtrArray *blocks, GError **error);
