/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination's half of the rdma transport. */
#pragma once

#include "transport/transport.h"

RmRx *rm_verbs_destination_new(void);
