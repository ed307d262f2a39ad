/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A guest without a VMM, for unit tests of sessions: RAM in memfds of this process, run states as in QEMU,
 * every call recorded, any call made to fail.
 *
 * It is strict where a real VMM is: save() needs a paused guest, load() a waiting one, activate() a loaded
 * one.
 */
#pragma once

#include "guest/guest.h"

#include "common/reason.h"

/* What prepare_save() and prepare_load() hand to the note. */
#define RM_GUEST_FAKE_NOTE "{\"found\":\"something\"}"

/* `n` blocks. `run` is RUNNING or PAUSED for a source, WAITING for a destination. Reason internal; NULL then.
 */
RmGuest *rm_guest_fake_new(RmGuestRun run, const char *const *names, const uint64_t *sizes, unsigned n,
                           GError **error);

/* The guest's own view of block `index`, in the order of creation: what a test writes here, "the guest"
 * wrote. */
uint8_t *rm_guest_fake_memory(RmGuest *guest, unsigned index);

/* Overrides what describe() says; strings are copied. */
void rm_guest_fake_set_identity(RmGuest *guest, const char *name, const char *uuid);
void rm_guest_fake_set_trait(RmGuest *guest, const char *trait, const char *value);

/* The next call of the operation `op` ("save", "load", …) fails with `reason`, and only that. Replaces an
 * earlier order. */
void rm_guest_fake_fail(RmGuest *guest, const char *op, RmReason reason);

/* Called at the start of every operation, on the thread that makes it; NULL for none. For example: dirty RAM
 * in "save". */
typedef void (*RmGuestFakeHook)(RmGuest *guest, const char *op, gpointer data);
void rm_guest_fake_set_hook(RmGuest *guest, RmGuestFakeHook hook, gpointer data);

/* The names of the operations called so far, separated by spaces, poll and run_state left out; owned by the
 * guest. */
const char *rm_guest_fake_calls(RmGuest *guest);

RmGuestRun rm_guest_fake_run(RmGuest *guest);
gboolean rm_guest_fake_has_quit(RmGuest *guest);
