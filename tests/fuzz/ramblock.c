/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU prints about its RAM: a name or an address that is not in the text is never found. */
#include "fuzz.h"

#include "guest/qemu/ramblock-text.h"

#include <string.h>

/* `number` stands in the text, in hexadecimal digits. */
static void assert_printed(const char *text, uint64_t number)
{
    g_autofree char *digits = g_strdup_printf("%" G_GINT64_MODIFIER "x", number);
    g_assert_nonnull(strstr(text, digits));
}

static void check_blocks(const char *text)
{
    g_autoptr(GArray) lines = NULL;
    g_autoptr(GError) error = NULL;
    if (!rm_ram_parse_blocks(text, &lines, &error)) {
        g_assert_nonnull(error);
        return;
    }
    for (guint i = 0; i < lines->len; i++) {
        const RmRamLine *line = &g_array_index(lines, RmRamLine, i);
        g_assert_nonnull(strstr(text, line->name));
        assert_printed(text, line->used);
        if (line->hva != 0)
            assert_printed(text, line->hva);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"ram0", "/objects/ram0", "pc.ram"};
    g_autofree char *text = fuzz_text(data, size);
    check_blocks(text);
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        uint64_t gpa = 0, offset = 0, hva = 0;
        if (rm_ram_find_address(text, names[i], &gpa, &offset)) {
            g_assert_nonnull(strstr(text, names[i]));
            assert_printed(text, gpa);
            g_assert_true(offset == 0 || strchr(text, '@') != NULL);
        }
        if (rm_ram_parse_hva(text, names[i], &hva, NULL)) {
            g_assert_nonnull(strstr(text, names[i]));
            assert_printed(text, hva);
        }
    }
    return 0;
}
