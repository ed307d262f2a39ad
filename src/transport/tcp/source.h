/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source's half of the tcp transport. */
#pragma once

#include "transport/transport.h"

RmTx *rm_tcp_source_new(void);
