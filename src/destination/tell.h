/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The lines of a session that its operator waits for, or is warned of (common/log-event.h); refusals
 * are told by the gate (gate.h). */
#pragma once

#include "control/message.h"

/* Let in; once more if it goes on over another transport. `path`: of its QEMU's QMP socket;
 * `stream`: the control connection. */
void rm_tell_accepted(const RmHello *hello, const RmAccept *accept, const char *path, const char *peer,
                      GIOStream *stream);
/* Its end without the guest, before `commit`. */
void rm_tell_ended(const char *session, const GError *problem);
void rm_tell_moved(const char *session, const char *guest, gboolean runs);
/* The guest is here, and was to run. */
void rm_tell_stuck(const char *session, const GError *problem);
