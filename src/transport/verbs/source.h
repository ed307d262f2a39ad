/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source's half of the rdma transport. */
#pragma once

#include "transport/transport.h"

RmTx *rm_verbs_source_new(void);
