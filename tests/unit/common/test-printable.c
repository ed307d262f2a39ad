/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Nothing that a terminal acts on gets through, and nothing grows without bound. */
#include "common/printable.h"

#include <string.h>

static void test_escapes(void)
{
    static const struct {
        const char *text, *printable;
    } cases[] = {
        {NULL, ""},
        {"", ""},
        {"plain text", "plain text"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"a\nb\tc\rd", "a\\nb\\tc\\rd"},
        {"\x1b[2J\x07\x7f", "\\x1b[2J\\x07\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\u009b31m"}, /* the one-character form of ESC [ */
        {"\xe2\x80\xae"
         "txt",
         "\\u202etxt"},                      /* right-to-left override */
        {"\xff\xc3", "\\xff\\xc3"},          /* not UTF-8 */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* a lone surrogate */
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *printable = rm_printable(cases[i].text, 1000);
        g_assert_cmpstr(printable, ==, cases[i].printable);
    }
}

static void test_cut(void)
{
    g_autofree char *fits = rm_printable("0123456789", 10);
    g_assert_cmpstr(fits, ==, "0123456789");
    g_autofree char *cut = rm_printable("0123456789a", 10);
    g_assert_cmpstr(cut, ==, "0123456...");
    /* an escape or a character is kept whole or left out */
    g_autofree char *escape = rm_printable("01234\x1b"
                                           "5678",
                                           10);
    g_assert_cmpstr(escape, ==, "01234...");
    g_autofree char *wide = rm_printable("012345\xc3\xbc\xc3\xbc\xc3\xbc", 10);
    g_assert_cmpstr(wide, ==, "012345...");
    for (gsize max = 0; max < 8; max++) {
        g_autofree char *small = rm_printable("\x1b\x1b\x1b\x1b", max);
        g_assert_cmpuint(strlen(small), <=, max);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/printable/escapes", test_escapes);
    g_test_add_func("/printable/cut", test_cut);
    return g_test_run();
}
