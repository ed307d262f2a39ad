/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guardian at the source: started and told by the session, settling by settle.h. */
#pragma once

#include "source/session.h"

/* After the journal, before anything is registered, or done to the guest. Reason internal. */
gboolean rm_guard_source_start(RmSession *session, GError **error);

/* The guardian's main(). */
int rm_guard_source_main(int argc, char **argv);
