/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Registering everything at once (--pin all), at both ends, ahead of the first round. The session's thread
 * asks the destination, several requests at a time, and a pool of threads prepares this end's memory
 * meanwhile.
 */
#pragma once

#include "source/worker.h"

/* rm_sender_pin_all(). */
gboolean rm_pin_all(RmSending *sending, RmSendWorker *workers,
                    gboolean (*tick)(gpointer data, GError **error), gpointer data, GError **error);
