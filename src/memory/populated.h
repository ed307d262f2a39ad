/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What of a block is populated, kept from one look to the next.
 *
 * Asking the kernel about a populated page costs it some 30 ns (SEEK_HOLE goes through the page cache page by page): half a
 * second for 64 GiB, and that with the guest stopped. So after the first look only the gaps are searched for pages that
 * appeared, which costs next to nothing while there are none; and pages that went away are noticed by the file's own
 * count of what is allocated: if it is what the extents add up to, none has. If it isn't, all is asked anew.
 *
 * With the VMM stopped (`still`) the answer is exact. While it runs a page that goes as another comes can hide for a round:
 * it is found at the latest when the VMM is stopped, and until then only looks populated.
 */
#pragma once

#include "memory/block.h"

typedef struct {
    GArray *extents; /* RmExtent, sorted, not touching */
    uint64_t bytes;  /* their sum */
    gboolean asked;  /* at least once */
} RmPopulated;

RmPopulated *rm_populated_new(void);
void rm_populated_free(RmPopulated *populated);

/* Brings the extents up to date. hugetlbfs has no holes to seek: there the whole block counts as populated from the second
 * look on; the first is rm_block_populated()'s, by content. Reason internal. */
gboolean rm_populated_refresh(RmPopulated *populated, const RmBlock *block, gboolean still, GError **error);
