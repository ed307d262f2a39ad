/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Checked access to JSON that somebody else wrote.
 *
 * json-c alone is too kind for input that decides where bytes of a guest go: an integer that fits no 64-bit
 * type is silently saturated, "00" and "NaN" are accepted in strict mode, its UTF-8 check knows lead bytes
 * only, and a key with an escaped NUL is cut there. So the text passes a scan of our own first, which looks
 * at strings, numbers and nesting; what it lets through, json-c can represent exactly, and json-c then checks
 * the grammar. A member that comes twice is legal JSON: the last one counts.
 */
#include "control/json.h"

#include "common/autoptr.h"
#include "common/reason.h"

#include <string.h>

typedef struct {
    const char *at;
    const char *end;
    unsigned depth;
    unsigned max_depth;
} Scan;

static gboolean is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static gboolean is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static char peek(const Scan *scan)
{
    return scan->at < scan->end ? *scan->at : '\0';
}

static size_t skip_digits(Scan *scan)
{
    const char *start = scan->at;
    while (is_digit(peek(scan)))
        scan->at++;
    return scan->at - start;
}

static gboolean scan_string(Scan *scan, GError **error)
{
    for (scan->at++; scan->at < scan->end; scan->at++) {
        char c = *scan->at;
        if ((unsigned char)c < 0x20)
            return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: bare control character in a string");
        if (c == '"') {
            scan->at++;
            return TRUE;
        }
        if (c != '\\')
            continue;
        /* A string that goes on after a NUL would compare equal to its beginning everywhere in C. */
        if (scan->end - scan->at >= 6 && memcmp(scan->at, "\\u0000", 6) == 0)
            return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: NUL character in a string");
        scan->at++;
    }
    return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: unterminated string");
}

/* Whether the `count` digits at `text` are over `limit`, which has as many digits as any 64-bit number of its
 * kind. */
static gboolean digits_over(const char *text, size_t count, const char *limit)
{
    size_t limit_count = strlen(limit);
    if (count != limit_count)
        return count > limit_count;
    return memcmp(text, limit, count) > 0;
}

static gboolean scan_number(Scan *scan, GError **error)
{
    gboolean negative = peek(scan) == '-';
    if (negative)
        scan->at++;
    const char *digits = scan->at;
    size_t count = skip_digits(scan);
    if (count == 0 || (count > 1 && digits[0] == '0'))
        return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: malformed number");

    gboolean integer = TRUE;
    if (peek(scan) == '.') {
        integer = FALSE;
        scan->at++;
        if (skip_digits(scan) == 0)
            return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: malformed number");
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        integer = FALSE;
        scan->at++;
        if (peek(scan) == '+' || peek(scan) == '-')
            scan->at++;
        if (skip_digits(scan) == 0)
            return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: malformed number");
    }
    if (!integer)
        return TRUE;
    /* "-0" would read back as an unsigned zero, though a sign is refused where an unsigned is due. */
    if (negative && digits[0] == '0')
        return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: minus zero is no integer");
    if (digits_over(digits, count, negative ? "9223372036854775808" : "18446744073709551615"))
        return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: integer beyond 64 bits");
    return TRUE;
}

static gboolean scan_word(Scan *scan, GError **error)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(scan->end - scan->at) >= length && memcmp(scan->at, words[i], length) == 0) {
            scan->at += length;
            return TRUE;
        }
    }
    return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: unexpected character");
}

/* One token. Only what json-c is lax about is looked at; where tokens may stand is json-c's to judge. */
static gboolean scan_token(Scan *scan, GError **error)
{
    switch (*scan->at) {
    case '{':
    case '[':
        if (++scan->depth > scan->max_depth)
            return rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: nested deeper than %u", scan->max_depth);
        break;
    case '}':
    case ']':
        scan->depth -= scan->depth > 0;
        break;
    case ',':
    case ':':
    case ' ':
    case '\t':
    case '\r':
    case '\n':
        break;
    case '"':
        return scan_string(scan, error);
    case '-':
    case '0' ... '9':
        return scan_number(scan, error);
    default:
        return scan_word(scan, error);
    }
    scan->at++;
    return TRUE;
}

json_object *rm_json_parse(const char *text, gsize length, unsigned max_depth, GError **error)
{
    while (length > 0 && is_blank(text[length - 1]))
        length--;
    while (length > 0 && is_blank(text[0])) {
        text++;
        length--;
    }
    if (length == 0 || length > G_MAXINT || text[0] != '{') {
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: not an object");
        return NULL;
    }
    if (!g_utf8_validate_len(text, length, NULL)) {
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: not UTF-8, or a NUL byte");
        return NULL;
    }
    Scan scan = {.at = text, .end = text + length, .max_depth = max_depth};
    while (scan.at < scan.end) {
        if (!scan_token(&scan, error))
            return NULL;
    }

    /* json-c counts the scalar inside the innermost container as one more level. */
    json_tokener *tokener = json_tokener_new_ex(max_depth + 1);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    rm_autojson object = json_tokener_parse_ex(tokener, text, length);
    enum json_tokener_error status = json_tokener_get_error(tokener);
    size_t used = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);

    if (status == json_tokener_continue)
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: it ends in the middle");
    else if (status != json_tokener_success)
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: %s", json_tokener_error_desc(status));
    else if (used != length)
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: something follows the object");
    else if (!json_object_is_type(object, json_type_object))
        rm_fail(error, RM_REASON_PROTOCOL, "invalid JSON: not an object");
    else
        return g_steal_pointer(&object);
    return NULL;
}

static const char *type_name(json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        return "null";
    case json_type_boolean:
        return "a boolean";
    case json_type_double:
        return "a number with fraction or exponent";
    case json_type_int:
        return json_object_get_int64(value) < 0 ? "a negative integer" : "an integer";
    case json_type_object:
        return "an object";
    case json_type_array:
        return "an array";
    case json_type_string:
        return "a string";
    }
    return "of no known type";
}

/* The converters below leave *ret alone unless the value has exactly the type. */
static gboolean take_uint(json_object *value, uint64_t *ret)
{
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0)
        return FALSE;
    *ret = json_object_get_uint64(value);
    return TRUE;
}

static gboolean take_string(json_object *value, const char **ret)
{
    if (!json_object_is_type(value, json_type_string))
        return FALSE;
    const char *text = json_object_get_string(value);
    if (strlen(text) != (size_t)json_object_get_string_len(value))
        return FALSE;
    *ret = text;
    return TRUE;
}

static gboolean take_bool(json_object *value, gboolean *ret)
{
    if (!json_object_is_type(value, json_type_boolean))
        return FALSE;
    *ret = json_object_get_boolean(value) ? TRUE : FALSE;
    return TRUE;
}

static gboolean take_container(json_object *value, enum json_type type, json_object **ret)
{
    if (!json_object_is_type(value, type))
        return FALSE;
    *ret = value;
    return TRUE;
}

static gboolean missing(const char *key, GError **error)
{
    return rm_fail(error, RM_REASON_PROTOCOL, "member \"%s\" is missing", key);
}

static gboolean wrong(const char *key, const char *wanted, json_object *value, GError **error)
{
    return rm_fail(error, RM_REASON_PROTOCOL, "member \"%s\" is %s where %s is due", key, type_name(value),
                   wanted);
}

#define UINT_WANTED "an unsigned 64-bit integer"
#define STRING_WANTED "a string without NUL"
#define BOOL_WANTED "a boolean"

gboolean rm_json_uint(json_object *object, const char *key, uint64_t *ret_value, GError **error)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        return missing(key, error);
    return take_uint(value, ret_value) || wrong(key, UINT_WANTED, value, error);
}

gboolean rm_json_string(json_object *object, const char *key, const char **ret_value, GError **error)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        return missing(key, error);
    return take_string(value, ret_value) || wrong(key, STRING_WANTED, value, error);
}

gboolean rm_json_bool(json_object *object, const char *key, gboolean *ret_value, GError **error)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        return missing(key, error);
    return take_bool(value, ret_value) || wrong(key, BOOL_WANTED, value, error);
}

gboolean rm_json_array(json_object *object, const char *key, json_object **ret_array, GError **error)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        return missing(key, error);
    return take_container(value, json_type_array, ret_array) || wrong(key, "an array", value, error);
}

gboolean rm_json_object(json_object *object, const char *key, json_object **ret_object, GError **error)
{
    json_object *value = NULL;
    if (!json_object_object_get_ex(object, key, &value))
        return missing(key, error);
    return take_container(value, json_type_object, ret_object) || wrong(key, "an object", value, error);
}

gboolean rm_json_array_uint(json_object *array, size_t index, uint64_t *ret_value, GError **error)
{
    if (!json_object_is_type(array, json_type_array))
        return rm_fail(error, RM_REASON_PROTOCOL, "%s where an array is due", type_name(array));
    if (index >= json_object_array_length(array))
        return rm_fail(error, RM_REASON_PROTOCOL, "array of %zu elements has no element %zu",
                       json_object_array_length(array), index);
    json_object *value = json_object_array_get_idx(array, index);
    return take_uint(value, ret_value) ||
           rm_fail(error, RM_REASON_PROTOCOL, "element %zu of the array is %s where " UINT_WANTED " is due",
                   index, type_name(value));
}

gboolean rm_json_uint_opt(json_object *object, const char *key, uint64_t *value, GError **error)
{
    return !json_object_object_get_ex(object, key, NULL) || rm_json_uint(object, key, value, error);
}

gboolean rm_json_string_opt(json_object *object, const char *key, const char **value, GError **error)
{
    return !json_object_object_get_ex(object, key, NULL) || rm_json_string(object, key, value, error);
}

gboolean rm_json_bool_opt(json_object *object, const char *key, gboolean *value, GError **error)
{
    return !json_object_object_get_ex(object, key, NULL) || rm_json_bool(object, key, value, error);
}

json_object *rm_json_message(const char *type)
{
    json_object *message = json_object_new_object();
    rm_json_add_string(message, "type", type);
    return message;
}

void rm_json_add_uint(json_object *object, const char *key, uint64_t value)
{
    json_object_object_add(object, key, json_object_new_uint64(value));
}

void rm_json_add_string(json_object *object, const char *key, const char *value)
{
    if (value == NULL) /* an absent member, as the readers of optional ones understand it */
        return;
    /* A path or an error text of the host may hold any bytes; the peer would end the session over them. */
    g_autofree char *valid = g_utf8_make_valid(value, -1);
    json_object_object_add(object, key, json_object_new_string(valid));
}

void rm_json_add_bool(json_object *object, const char *key, gboolean value)
{
    json_object_object_add(object, key, json_object_new_boolean(value));
}

void rm_json_add(json_object *object, const char *key, json_object *value)
{
    json_object_object_add(object, key, value);
}
