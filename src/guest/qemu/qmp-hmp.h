/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lines for the human monitor, for what QMP has no command of its own. */
#pragma once

#include "guest/qemu/qmp.h"

/* *ret_text (caller frees) is what it prints. */
gboolean rm_qmp_hmp(RmQmp *qmp, const char *line, char **ret_text, GError **error);
