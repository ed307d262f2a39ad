/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The commands that a QMP client has sent ahead (rm_qmp_ahead()), in the order in which QEMU answers them. */
#pragma once

#include <glib.h>

typedef struct {
    GQueue sent; /* of a private type */
} RmQmpAhead;

void rm_qmp_ahead_add(RmQmpAhead *ahead, const char *text, guint64 id);
/* The id that `text` was sent with, if it is the next to be answered. Else 0, and what was sent is forgotten.
 */
guint64 rm_qmp_ahead_take(RmQmpAhead *ahead, const char *text);
/* Their replies are nobody's from now on. Also frees what is held. */
void rm_qmp_ahead_forget(RmQmpAhead *ahead);
