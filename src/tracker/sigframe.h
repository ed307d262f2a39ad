/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A signal frame as the x86-64 kernel would push it: whatever runs on a thread that returns into it gets
 * back, through rt_sigreturn, the registers, vector state and signal mask written there. It is our will, in
 * case we die.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <sys/user.h>

typedef struct {
    uint64_t address; /* where it belongs in the thread; the stack pointer to return through it */
    uint8_t *bytes;
    size_t length; /* ends at or below the red zone of the context */
} RmSigframe;

void rm_sigframe_clear(RmSigframe *frame);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmSigframe, rm_sigframe_clear)

/* Builds the frame that returns to `context` with `sigmask`. `xstate` is what NT_X86_XSTATE said; `restorer`
 * the address of code that calls rt_sigreturn. Reason attach if this CPU's state is not understood. */
gboolean rm_sigframe_build(const struct user_regs_struct *context, uint64_t sigmask, const uint8_t *xstate,
                           size_t xstate_length, uint64_t restorer, RmSigframe *ret_frame, GError **error);
