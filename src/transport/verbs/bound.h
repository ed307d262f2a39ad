/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How much guest memory may be registered at a time at either end, from --max-pinned and the limit of locked
 * memory: found out before a byte moves. Each warns if the limit makes a difference, and says how to raise
 * it.
 */
#pragma once

#include "transport/transport.h"

/* *ret_window: bytes of guest memory; 0: no bound. The limit of locked memory makes a window of what it
 * leaves. Reason privilege if that is too little for the channels, for all of RAM with --pin all, or for a
 * source that can't release.
 */
gboolean rm_verbs_bound_destination(const RmRxParams *params, uint64_t *ret_window, GError **error);

/* *ret_pinned: bytes, the channels' own buffers included; 0: no bound. *ret_copy: send copies, since the
 * guest does not fit in the limit of locked memory, or may punch holes. Reason privilege as above. */
gboolean rm_verbs_bound_source(const RmTxParams *params, uint64_t *ret_pinned, gboolean *ret_copy,
                               GError **error);
