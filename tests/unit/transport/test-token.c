/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tokens. */
#include "transport/token.h"

#include <string.h>

static void test_new(void)
{
    g_autoptr(GError) error = NULL;
    uint8_t first[RM_TOKEN_BYTES] = {0}, second[RM_TOKEN_BYTES] = {0};
    g_assert_true(rm_token_new(first, &error) && rm_token_new(second, &error));
    g_assert_false(rm_token_equal(first, second));
    g_assert_true(rm_token_equal(first, first));
}

static void test_text(void)
{
    uint8_t token[RM_TOKEN_BYTES], back[RM_TOKEN_BYTES];
    for (unsigned i = 0; i < RM_TOKEN_BYTES; i++)
        token[i] = (uint8_t)(0xf8 + i);
    g_autofree char *text = rm_token_format(token);
    g_assert_cmpstr(text, ==, "f8f9fafbfcfdfeff000102030405060708090a0b0c0d0e0f1011121314151617");
    g_autofree char *upper = g_ascii_strup(text, -1);
    g_assert_true(rm_token_parse(text, back) && rm_token_equal(token, back));
    memset(back, 0, sizeof back);
    g_assert_true(rm_token_parse(upper, back) && rm_token_equal(token, back));
}

static void test_malformed(void)
{
    uint8_t token[RM_TOKEN_BYTES];
    g_autofree char *good = g_strnfill(2 * RM_TOKEN_BYTES, 'a'), *longer = g_strconcat(good, "aa", NULL);
    g_assert_true(rm_token_parse(good, token));
    g_assert_false(rm_token_parse("", token));
    g_assert_false(rm_token_parse(longer, token));
    g_assert_false(rm_token_parse(good + 1, token));
    for (unsigned i = 0; i < 2 * RM_TOKEN_BYTES; i++) {
        g_autofree char *bad = g_strdup(good);
        bad[i] = "gG x-\xff"[i % 6];
        g_assert_false(rm_token_parse(bad, token));
    }
}

/* A difference in any byte, of any bit. */
static void test_equal(void)
{
    uint8_t token[RM_TOKEN_BYTES] = {0}, other[RM_TOKEN_BYTES] = {0};
    g_assert_true(rm_token_equal(token, other));
    for (unsigned bit = 0; bit < 8 * RM_TOKEN_BYTES; bit++) {
        other[bit / 8] ^= (uint8_t)(1u << bit % 8);
        g_assert_false(rm_token_equal(token, other));
        other[bit / 8] = 0;
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/token/new", test_new);
    g_test_add_func("/token/text", test_text);
    g_test_add_func("/token/malformed", test_malformed);
    g_test_add_func("/token/equal", test_equal);
    return g_test_run();
}
