/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination's half of the tcp transport. */
#pragma once

#include "transport/transport.h"

RmRx *rm_tcp_destination_new(void);
