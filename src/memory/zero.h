/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Is this memory all zeroes? Vectorised, with the widest unit of this CPU chosen once at run time. */
#pragma once

#include <glib.h>
#include <stddef.h>

/* `data` is 64-byte aligned and `length` a multiple of 256 (a page is). The memory may change while it is
 * read. */
gboolean rm_is_zero(const void *data, size_t length);

/* The implementations that this CPU can run, widest first, for the tests; NULL past the last. */
typedef gboolean (*RmZeroFunc)(const void *data, size_t length);
RmZeroFunc rm_zero_variant(unsigned index);
