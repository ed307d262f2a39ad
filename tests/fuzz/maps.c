/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* /proc/PID/maps: mappings in order, each of which is found by its addresses. */
#include "fuzz.h"

#include "common/mappings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = fuzz_text(data, size);
    g_autoptr(GArray) mappings = rm_mappings_parse(text);
    uint64_t end = 0;
    for (guint i = 0; i < mappings->len; i++) {
        const RmMapping *mapping = &g_array_index(mappings, RmMapping, i);
        g_assert_true(mapping->start >= end && mapping->start < mapping->end && mapping->path != NULL);
        g_assert_true(rm_mappings_find(mappings, mapping->start) == mapping);
        g_assert_true(rm_mappings_find(mappings, mapping->end - 1) == mapping);
        g_assert_true(rm_mappings_find(mappings, mapping->end) != mapping);
        end = mapping->end;
    }
    return 0;
}
