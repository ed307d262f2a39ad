/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Registering everything at both ends (--pin all), from before the tracker's arming until the end of the
 * first round at the latest: a thread asks the destination, several requests at a time, and a pool of threads
 * prepares this end's memory. The channels write what is registered meanwhile.
 *
 * A failure is the sending's (rm_sending_fail()), so that the first flush returns it.
 */
#pragma once

#include "source/worker.h"

/* Before the first push. */
RmPin *rm_pin_begin(RmSending *sending, RmSendWorker *workers);
/* The channels' threads: wait until a chunk, or everything, is registered at both ends. FALSE if the data
 * path has ended. */
gboolean rm_pin_wait(RmPin *pin, uint32_t block, uint64_t chunk);
gboolean rm_pin_wait_all(RmPin *pin);
/* Once all is done, or sending->failed is set; joins. NULL is fine. */
void rm_pin_free(RmPin *pin);
