/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Numbers, sizes, rates, times and addresses of the command line: exact, within bounds, and the same when
 * said again. */
#include "fuzz.h"

#include "common/size.h"

#include <string.h>

#define DIGITS "0123456789"

static void check_numbers(const char *text)
{
    uint64_t value, again;
    if (rm_parse_size(text, &value, NULL)) {
        g_autofree char *plain = g_strdup_printf("%" G_GUINT64_FORMAT, value), *nice = rm_format_size(value);
        g_assert_true(rm_parse_size(plain, &again, NULL) && again == value);
        g_assert_true(g_ascii_isdigit(*text) && strlen(nice) < 16);
        g_assert_true(rm_parse_rate(text, &again, NULL) && again == value);
    }
    if (rm_parse_uint(text, 3, 1000, &value, NULL)) {
        g_assert_true(value >= 3 && value <= 1000 && strspn(text, DIGITS) == strlen(text));
        g_assert_cmpuint(value, ==, g_ascii_strtoull(text, NULL, 10));
    }
    if (rm_parse_duration(text, 1000, &value, NULL) && strspn(text, DIGITS) == strlen(text)) {
        g_autofree char *ms = g_strdup_printf("%" G_GUINT64_FORMAT "ms", value);
        g_assert_true(value % 1000 == 0 && rm_parse_duration(ms, 1000, &again, NULL) && again == value);
    }
}

static void check_address(const char *text)
{
    g_autofree char *host = NULL, *same = NULL;
    uint16_t port = 0, port_again = 0;
    if (!rm_parse_address(text, 24780, &host, &port, NULL))
        return;
    g_assert_cmpuint(port, >, 0);
    g_assert_true(host == NULL || (*host != '\0' && strpbrk(host, "[] ") == NULL));
    const char *format = host == NULL ? "%s:%u" : strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    g_autofree char *said = g_strdup_printf(format, host != NULL ? host : "", port);
    g_assert_true(rm_parse_address(said, 1, &same, &port_again, NULL));
    g_assert_cmpstr(same, ==, host);
    g_assert_cmpuint(port_again, ==, port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = fuzz_text(data, size);
    check_numbers(text);
    check_address(text);
    return 0;
}
