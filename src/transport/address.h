/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where the source's data channels go, and where they come from. */
#pragma once

#include "transport/transport.h"

/* The destination's offer {"host", "port"}; without "host", where the control channel went. NULL: reason
 * protocol. */
GSocketConnectable *rm_address_target(const RmTxParams *params, GError **error);

/* The local address that --data-source names; *ret_address is NULL if there is none. Reason usage. */
gboolean rm_address_source(const RmTxParams *params, GSocketAddress **ret_address, GError **error);
