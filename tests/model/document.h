/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tables of docs/handover.md, made from the program's. */
#pragma once

#include <glib.h>

char *document_tables(void); /* markdown; caller frees */
/* Whether the file holds exactly these, between its two markers. */
gboolean document_check(const char *path);
