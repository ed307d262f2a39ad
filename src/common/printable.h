/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Text of unknown origin made fit for a terminal or a log line. */
#pragma once

#include <glib.h>

/* Copies `text` with everything that is not a printable character escaped (\n, \x1b, \u202e), so that a peer
 * or a guest can neither move the operator's cursor nor forge a line; over `max` bytes it is cut and ends in
 * "...". NULL gives "". */
char *rm_printable(const char *text, gsize max);
