/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* JSON from a stranger: exact or refused. */
#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

#define DEPTH 4

static json_object *parse(const char *text, GError **error)
{
    return rm_json_parse(text, strlen(text), DEPTH, error);
}

static void assert_refused(const char *text, gsize length)
{
    g_autoptr(GError) error = NULL;
    json_object *object = rm_json_parse(text, length, DEPTH, &error);
    if (object != NULL)
        g_error("accepted: %s", text);
    g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
}

static void test_accepted(void)
{
    static const char *const texts[] = {
        "{}",
        " {\"a\" : [ ] }\r\n",
        "{\"a\":[[[1,2.5,-3,1e-3,true,false,null,\"x\"]]]}",
        "{\"a\":\"\\\"\\\\{[\\u00e9\\ud83d\\ude00 \xc3\xa9\"}",
        "{\"a\":-9223372036854775808,\"b\":18446744073709551615}",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autoptr(GError) error = NULL;
        rm_autojson object = parse(texts[i], &error);
        g_assert_no_error(error);
        g_assert_nonnull(object);
    }
}

static void test_refused(void)
{
    static const char *const texts[] = {
        "",
        " ",
        "[]",
        "1",
        "null",
        "\"a\"",
        "{",
        "}",
        "{}{}",
        "{} x",
        "{}]",
        "{\"a\":1,}",
        "{\"a\":[1,]}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":00}",
        "{\"a\":-}",
        "{\"a\":-0}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":+1}",
        "{\"a\":1e}",
        "{\"a\":0x10}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":-Infinity}",
        "{\"a\":True}",
        "{\"a\":nul}",
        "{\"a\":1}/* */",
        "{/**/\"a\":1}",
        "{\"a\":1",
        "{\"a\":\"x}",
        "{\"a\":\"\t\"}",
        "{\"a\":\"\\u0000\"}",
        "{\"a\\u0000b\":1}",
        "{\"a\":18446744073709551616}",
        "{\"a\":-9223372036854775809}",
        "{\"a\":99999999999999999999999999999999999999}",
        "{\"a\":[[[[1]]]]}",
        "{\"a\":[[[{}]]]}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\xc0\x80\"}",
        "{\"a\":\"\xed\xa0\x80\"}",
        "{\"a\":\"\xe2\x82\"}",
        "{\"a\" 1}",
        "{\"a\":1 2}",
        "{\"a\":1\"b\":2}",
        "{\"a\":\"\\x\"}",
        "{\"a\":truefalse}",
        "{\"a\":12true}",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
        assert_refused(texts[i], strlen(texts[i]));
    assert_refused("{\"a\":\"x\0y\"}", 11);
    assert_refused("{}\0", 3);
}

static void test_deep(void)
{
    g_autoptr(GString) text = g_string_new("{\"a\":");
    for (int i = 0; i < 100000; i++)
        g_string_append_c(text, '[');
    assert_refused(text->str, text->len);
}

static void test_uint(void)
{
    static const struct {
        const char *literal;
        gboolean ok;
        uint64_t value;
    } cases[] = {
        {"0", TRUE, 0},
        {"1", TRUE, 1},
        {"9007199254740993", TRUE, 9007199254740993},
        {"9223372036854775807", TRUE, INT64_MAX},
        {"9223372036854775808", TRUE, (uint64_t)INT64_MAX + 1},
        {"18446744073709551614", TRUE, UINT64_MAX - 1},
        {"18446744073709551615", TRUE, UINT64_MAX},
        {"-1", FALSE},
        {"-9223372036854775808", FALSE},
        {"1.0", FALSE},
        {"1e3", FALSE},
        {"1E0", FALSE},
        {"0.0", FALSE},
        {"\"1\"", FALSE},
        {"true", FALSE},
        {"null", FALSE},
        {"[1]", FALSE},
        {"{}", FALSE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text =
            g_strdup_printf("{\"n\":%s,\"list\":[%s]}", cases[i].literal, cases[i].literal);
        g_autoptr(GError) error = NULL, list_error = NULL, opt_error = NULL;
        rm_autojson object = parse(text, &error);
        g_assert_no_error(error);
        json_object *list = NULL;
        g_assert_true(rm_json_array(object, "list", &list, NULL));
        uint64_t value = 77, element = 77, optional = 77;
        g_assert_cmpint(rm_json_uint(object, "n", &value, &error), ==, cases[i].ok);
        g_assert_cmpint(rm_json_array_uint(list, 0, &element, &list_error), ==, cases[i].ok);
        g_assert_cmpint(rm_json_uint_opt(object, "n", &optional, &opt_error), ==, cases[i].ok);
        if (cases[i].ok) {
            g_assert_cmpuint(value, ==, cases[i].value);
        } else {
            g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
            g_assert_error(list_error, RM_ERROR, RM_REASON_PROTOCOL);
            g_assert_error(opt_error, RM_ERROR, RM_REASON_PROTOCOL);
            g_assert_nonnull(strstr(error->message, "\"n\""));
            g_assert_cmpuint(value, ==, 77);
        }
        g_assert_cmpuint(element, ==, value);
        g_assert_cmpuint(optional, ==, value);
    }
}

static void test_types(void)
{
    rm_autojson object = parse("{\"i\":1,\"s\":\"x\",\"b\":true,\"a\":[],\"o\":{},\"n\":null}", NULL);
    g_assert_nonnull(object);
    const char *string = NULL;
    gboolean flag = FALSE;
    json_object *member = NULL;
    for (const char *key = "isbaon"; *key != '\0'; key++) {
        char name[2] = {*key, '\0'};
        g_assert_cmpint(rm_json_string(object, name, &string, NULL), ==, *key == 's');
        g_assert_cmpint(rm_json_string_opt(object, name, &string, NULL), ==, *key == 's');
        g_assert_cmpint(rm_json_bool(object, name, &flag, NULL), ==, *key == 'b');
        g_assert_cmpint(rm_json_bool_opt(object, name, &flag, NULL), ==, *key == 'b');
        g_assert_cmpint(rm_json_array(object, name, &member, NULL), ==, *key == 'a');
        g_assert_cmpint(rm_json_object(object, name, &member, NULL), ==, *key == 'o');
    }
    g_assert_cmpstr(string, ==, "x");
    g_assert_true(flag);
}

static void test_absent(void)
{
    rm_autojson object = parse("{\"a\":[1]}", NULL);
    g_autoptr(GError) error = NULL;
    uint64_t value = 5;
    const char *string = "kept";
    gboolean flag = TRUE;
    g_assert_true(rm_json_uint_opt(object, "x", &value, NULL));
    g_assert_true(rm_json_string_opt(object, "x", &string, NULL));
    g_assert_true(rm_json_bool_opt(object, "x", &flag, NULL));
    g_assert_cmpuint(value, ==, 5);
    g_assert_cmpstr(string, ==, "kept");
    g_assert_true(flag);
    g_assert_false(rm_json_uint(object, "x", &value, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);

    json_object *array = NULL;
    g_assert_true(rm_json_array(object, "a", &array, NULL));
    g_assert_false(rm_json_array_uint(array, 1, &value, NULL));
    g_assert_false(rm_json_array_uint(object, 0, &value, NULL));
    g_assert_false(rm_json_array_uint(NULL, 0, &value, NULL));
    g_assert_cmpuint(value, ==, 5);
}

static void test_duplicate_key(void)
{
    rm_autojson object = parse("{\"a\":\"x\",\"a\":2}", NULL);
    uint64_t value = 0;
    g_assert_true(rm_json_uint(object, "a", &value, NULL));
    g_assert_cmpuint(value, ==, 2);
}

static void test_round_trip(void)
{
    rm_autojson message = rm_json_message("hello");
    rm_json_add_uint(message, "max", UINT64_MAX);
    rm_json_add_string(message, "path", "line\nnext \xff \x1b[2J");
    rm_json_add_string(message, "absent", NULL);
    rm_json_add_bool(message, "yes", TRUE);
    rm_json_add(message, "list", json_object_new_array());
    const char *text = json_object_to_json_string_ext(message, JSON_C_TO_STRING_PLAIN);
    g_assert_null(strchr(text, '\n'));

    g_autoptr(GError) error = NULL;
    rm_autojson read = parse(text, &error);
    g_assert_no_error(error);
    uint64_t max = 0;
    const char *string = NULL, *absent = NULL;
    gboolean yes = FALSE;
    g_assert_true(rm_json_uint(read, "max", &max, NULL));
    g_assert_cmpuint(max, ==, UINT64_MAX);
    g_assert_true(rm_json_string(read, "path", &string, NULL));
    g_assert_cmpstr(string, ==, "line\nnext \xef\xbf\xbd \x1b[2J");
    g_assert_true(rm_json_string_opt(read, "absent", &absent, NULL));
    g_assert_null(absent);
    g_assert_true(rm_json_bool(read, "yes", &yes, NULL));
    g_assert_true(yes);
}

/* A NUL that was put in by code rather than by a parser is caught, too. */
static void test_string_with_nul(void)
{
    rm_autojson object = rm_json_message("x");
    rm_json_add(object, "s", json_object_new_string_len("a\0b", 3));
    const char *string = NULL;
    g_assert_false(rm_json_string(object, "s", &string, NULL));
    g_assert_null(string);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/json/accepted", test_accepted);
    g_test_add_func("/json/refused", test_refused);
    g_test_add_func("/json/deep", test_deep);
    g_test_add_func("/json/uint", test_uint);
    g_test_add_func("/json/types", test_types);
    g_test_add_func("/json/absent", test_absent);
    g_test_add_func("/json/duplicate-key", test_duplicate_key);
    g_test_add_func("/json/round-trip", test_round_trip);
    g_test_add_func("/json/string-with-nul", test_string_with_nul);
    return g_test_run();
}
