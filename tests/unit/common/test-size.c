/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sizes, rates, durations and addresses: exact or a usage error. */
#include "common/reason.h"
#include "common/size.h"

#include <string.h>

typedef struct {
    const char *text;
    gboolean ok;
    uint64_t value;
} NumberCase;

typedef gboolean (*Parser)(const char *text, uint64_t *ret_value, GError **error);

static void check_numbers(Parser parser, const NumberCase *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        g_autoptr(GError) error = NULL;
        uint64_t value = 77;
        if (parser(cases[i].text, &value, &error) != cases[i].ok)
            g_error("\"%s\" was judged wrongly: %s", cases[i].text,
                    error != NULL ? error->message : "accepted");
        if (!cases[i].ok)
            g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
        g_assert_cmpuint(value, ==, cases[i].ok ? cases[i].value : 77);
    }
}

static void test_size(void)
{
    static const NumberCase cases[] = {
        {"0", TRUE, 0},
        {"1", TRUE, 1},
        {"64M", TRUE, 64 << 20},
        {"64MiB", TRUE, 64 << 20},
        {"63M", TRUE, 63 << 20},
        {"3K", TRUE, 3072},
        {"3KiB", TRUE, 3072},
        {"2GiB", TRUE, 2ull << 30},
        {"2T", TRUE, 2ull << 40},
        {"17179869184", TRUE, 17179869184},
        {"17179869183G", TRUE, 17179869183ull << 30},
        {"18446744073709551615", TRUE, UINT64_MAX},
        {"18014398509481983K", TRUE, 18014398509481983ull << 10},
        {"18014398509481984K", FALSE},
        {"18014398509482112K", FALSE},
        {"17179869184G", FALSE},
        {"18446744073709551616", FALSE},
        {"99999999999999999999999999999999", FALSE},
        {"99999999999999999999999999999999K", FALSE},
        {"", FALSE},
        {"-64M", FALSE},
        {"+64M", FALSE},
        {" 64M", FALSE},
        {"64 M", FALSE},
        {"64M ", FALSE},
        {"M", FALSE},
        {"64MB", FALSE},
        {"64Mi", FALSE},
        {"64B", FALSE},
        {"64MiBs", FALSE},
        {"1.5G", FALSE},
        {"1,5G", FALSE},
        {"0x10", FALSE},
        {"1e6", FALSE},
        {"64P", FALSE},
        {"\xd9\xa1", FALSE}, /* a digit, but not one of ours */
    };
    check_numbers(rm_parse_size, cases, G_N_ELEMENTS(cases));
}

static void test_size_names_both(void)
{
    g_autoptr(GError) error = NULL;
    uint64_t value;
    g_assert_false(rm_parse_size("64MB", &value, &error));
    g_assert_nonnull(strstr(error->message, "\"64MB\""));
    g_assert_nonnull(strstr(error->message, "64M or 64MiB"));
}

static void test_rate(void)
{
    static const NumberCase cases[] = {
        {"0", TRUE, 0},
        {"1000", TRUE, 1000},
        {"500M", TRUE, 500 << 20},
        {"1GiB", TRUE, 1 << 30},
        {"1Kbit", TRUE, 125},
        {"500Kbit", TRUE, 62500},
        {"100Mbit", TRUE, 12500000},
        {"10Gbit", TRUE, 1250000000},
        {"1Tbit", TRUE, 125000000000},
        {"147573952589Gbit", TRUE, 147573952589ull * 125000000},
        {"147573952590Gbit", FALSE},
        {"18446744073709551616", FALSE},
        {"10gbit", FALSE},
        {"10GB", FALSE},
        {"10bit", FALSE},
        {"-1", FALSE},
        {"", FALSE},
    };
    check_numbers(rm_parse_rate, cases, G_N_ELEMENTS(cases));
}

static gboolean parse_seconds(const char *text, uint64_t *ret_value, GError **error)
{
    return rm_parse_duration(text, 1000, ret_value, error);
}

static void test_duration(void)
{
    static const NumberCase cases[] = {
        {"300", TRUE, 300000},
        {"300ms", TRUE, 300},
        {"5s", TRUE, 5000},
        {"2m", TRUE, 120000},
        {"0", TRUE, 0},
        {"18446744073709551615ms", TRUE, UINT64_MAX},
        {"18446744073709551615", FALSE},
        {"307445734561825861m", FALSE},
        {"5 s", FALSE},
        {"5S", FALSE},
        {"5h", FALSE},
        {"-5s", FALSE},
        {"s", FALSE},
        {"", FALSE},
        {"1.5s", FALSE},
    };
    check_numbers(parse_seconds, cases, G_N_ELEMENTS(cases));
    uint64_t ms = 0;
    g_assert_true(rm_parse_duration("300", 1, &ms, NULL));
    g_assert_cmpuint(ms, ==, 300);
}

static gboolean parse_small(const char *text, uint64_t *ret_value, GError **error)
{
    return rm_parse_uint(text, 2, 16, ret_value, error);
}

static void test_uint(void)
{
    static const NumberCase cases[] = {
        {"2", TRUE, 2},
        {"16", TRUE, 16},
        {"07", TRUE, 7},
        {"1", FALSE},
        {"17", FALSE},
        {"-2", FALSE},
        {"", FALSE},
        {"2x", FALSE},
        {"0x4", FALSE},
        {" 2", FALSE},
        {"18446744073709551618", FALSE},
    };
    check_numbers(parse_small, cases, G_N_ELEMENTS(cases));
    uint64_t value = 0;
    g_assert_true(rm_parse_uint("18446744073709551615", 0, UINT64_MAX, &value, NULL));
    g_assert_cmpuint(value, ==, UINT64_MAX);
}

static void test_format(void)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {64 << 20, "64 MiB"},
        {(1ull << 30) + (1ull << 29), "1.5 GiB"},
        {(1ull << 30) + 1, "1.0 GiB"},
        {(1ull << 30) - 1, "1.0 GiB"},
        {(1ull << 40) - (1ull << 28), "1023.8 GiB"},
        {UINT64_MAX, "16.0 EiB"},
        {1ull << 63, "8 EiB"},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = rm_format_size(cases[i].bytes);
        g_assert_cmpstr(text, ==, cases[i].text);
    }
}

static void test_address(void)
{
    static const struct {
        const char *text;
        gboolean ok;
        const char *host;
        uint16_t port;
    } cases[] = {
        {"host", TRUE, "host", 24780},
        {"host.example:1", TRUE, "host.example", 1},
        {"10.0.0.1:65535", TRUE, "10.0.0.1", 65535},
        {":8080", TRUE, NULL, 8080},
        {"[::1]", TRUE, "::1", 24780},
        {"[::1]:99", TRUE, "::1", 99},
        {"[fe80::1%eth0]:99", TRUE, "fe80::1%eth0", 99},
        {"[fe80::1%2]", TRUE, "fe80::1%2", 24780},
        {"::1", TRUE, "::1", 24780},
        {"::", TRUE, "::", 24780},
        {"2001:db8::5:99", TRUE, "2001:db8::5:99", 24780},
        {"fe80::1%eth0", TRUE, "fe80::1%eth0", 24780},
        {"", FALSE},
        {":", FALSE},
        {"host:", FALSE},
        {"host:0", FALSE},
        {"host:65536", FALSE},
        {"host:http", FALSE},
        {"host:-1", FALSE},
        {"host: 1", FALSE},
        {"ho st", FALSE},
        {"-host", FALSE},
        {"user@host", FALSE},
        {"host/24", FALSE},
        {"a:b:c", FALSE},
        {"[::1", FALSE},
        {"[::1]x", FALSE},
        {"[::1]:", FALSE},
        {"[]:5", FALSE},
        {"[host]:5", FALSE},
        {"[10.0.0.1]:5", FALSE},
        {"[fe80::1]:5", FALSE}, /* link-local without scope leads nowhere */
        {"fe80::1", FALSE},
        {"[fe80::1%]:5", FALSE},
        {"[fe80::1%a/b]:5", FALSE},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        char *untouched = (char *)"untouched", *host = untouched;
        uint16_t port = 7;
        if (rm_parse_address(cases[i].text, 24780, &host, &port, &error) != cases[i].ok)
            g_error("\"%s\" was judged wrongly: %s", cases[i].text,
                    error != NULL ? error->message : "accepted");
        if (cases[i].ok) {
            g_assert_cmpstr(host, ==, cases[i].host);
            g_assert_cmpuint(port, ==, cases[i].port);
            g_free(host);
        } else {
            g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
            g_assert_true(host == untouched);
            g_assert_cmpuint(port, ==, 7);
        }
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/size/size", test_size);
    g_test_add_func("/size/names-both", test_size_names_both);
    g_test_add_func("/size/rate", test_rate);
    g_test_add_func("/size/duration", test_duration);
    g_test_add_func("/size/uint", test_uint);
    g_test_add_func("/size/format", test_format);
    g_test_add_func("/size/address", test_address);
    return g_test_run();
}
