/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sizes, rates, durations and addresses as operators write them. All arithmetic is on integers and checked: a
 * size that is read a little wrong is a guest moved a little wrong. Nothing here depends on the locale.
 */
#include "common/size.h"

#include "common/reason.h"

#include <arpa/inet.h>
#include <string.h>

typedef struct {
    const char *name;
    uint64_t factor;
} Unit;

static const Unit size_units[] = {
    {"", 1},
    {"K", 1ull << 10},
    {"M", 1ull << 20},
    {"G", 1ull << 30},
    {"T", 1ull << 40},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
};

/* Bits per second in powers of 1000, as bytes per second: each is exact. */
static const Unit rate_units[] = {
    {"Kbit", 1000ull / 8},
    {"Mbit", 1000000ull / 8},
    {"Gbit", 1000000000ull / 8},
    {"Tbit", 1000000000000ull / 8},
};

typedef enum { NUMBER_OK, NUMBER_NONE, NUMBER_OVERFLOW } NumberStatus;

/* Reads the digits that `text` begins with; *ret_rest is what follows them. */
static NumberStatus read_number(const char *text, uint64_t *ret_value, const char **ret_rest)
{
    uint64_t value = 0;
    gboolean overflow = FALSE;
    const char *at = text;
    for (; g_ascii_isdigit(*at); at++)
        overflow |=
            !g_uint64_checked_mul(&value, value, 10) || !g_uint64_checked_add(&value, value, *at - '0');
    if (at == text)
        return NUMBER_NONE;
    *ret_value = value;
    *ret_rest = at;
    return overflow ? NUMBER_OVERFLOW : NUMBER_OK;
}

static const Unit *find_unit(const Unit *units, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(units[i].name, name) == 0)
            return &units[i];
    }
    return NULL;
}

static gboolean too_large(const char *text, GError **error)
{
    return rm_fail(error, RM_REASON_USAGE, "\"%s\" is too large: at most %" G_GUINT64_FORMAT " fit", text,
                   UINT64_MAX);
}

static gboolean scale(const char *text, NumberStatus status, uint64_t number, uint64_t factor,
                      uint64_t *ret_value, GError **error)
{
    uint64_t value;
    if (status == NUMBER_OVERFLOW || !g_uint64_checked_mul(&value, number, factor))
        return too_large(text, error);
    *ret_value = value;
    return TRUE;
}

/* Says what is wrong with the suffix; the usual suspects get the spelling that works. */
static gboolean bad_size_suffix(const char *text, const char *suffix, GError **error)
{
    char letter = g_ascii_toupper(suffix[0]);
    int digits = (int)(suffix - text);
    if (letter != '\0' && strchr("KMGT", letter) != NULL && g_ascii_strcasecmp(suffix + 1, "B") == 0)
        return rm_fail(error, RM_REASON_USAGE,
                       "\"%s\" could be powers of 1000 or of 1024: write %.*s%c or %.*s%ciB (powers of 1024)",
                       text, digits, text, letter, digits, text, letter);
    if (suffix[0] == '.')
        return rm_fail(error, RM_REASON_USAGE,
                       "\"%s\" has a fraction: use a smaller unit, 1536M instead of 1.5G", text);
    return rm_fail(error, RM_REASON_USAGE,
                   "\"%s\" is not a size: write digits and K, M, G or T (powers of 1024), as 64M or 64MiB",
                   text);
}

gboolean rm_parse_size(const char *text, uint64_t *ret_bytes, GError **error)
{
    uint64_t number = 0;
    const char *suffix = text;
    NumberStatus status = read_number(text, &number, &suffix);
    if (status == NUMBER_NONE)
        return rm_fail(error, RM_REASON_USAGE,
                       "\"%s\" is not a size: write digits first, no sign, as 64M or 64MiB", text);
    const Unit *unit = find_unit(size_units, G_N_ELEMENTS(size_units), suffix);
    if (unit == NULL)
        return bad_size_suffix(text, suffix, error);
    return scale(text, status, number, unit->factor, ret_bytes, error);
}

gboolean rm_parse_rate(const char *text, uint64_t *ret_bytes_per_second, GError **error)
{
    uint64_t number = 0;
    const char *suffix = text;
    NumberStatus status = read_number(text, &number, &suffix);
    if (status != NUMBER_NONE) {
        const Unit *unit = find_unit(rate_units, G_N_ELEMENTS(rate_units), suffix);
        if (unit != NULL)
            return scale(text, status, number, unit->factor, ret_bytes_per_second, error);
        if (find_unit(size_units, G_N_ELEMENTS(size_units), suffix) != NULL)
            return rm_parse_size(text, ret_bytes_per_second, error);
    }
    return rm_fail(
        error, RM_REASON_USAGE,
        "\"%s\" is not a rate: write bytes per second as 500M (powers of 1024) or bits as 10Gbit (powers of "
        "1000)",
        text);
}

gboolean rm_parse_duration(const char *text, uint64_t unit_ms, uint64_t *ret_ms, GError **error)
{
    static const Unit units[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}};
    uint64_t number = 0;
    const char *suffix = text;
    NumberStatus status = read_number(text, &number, &suffix);
    const Unit bare = {"", unit_ms};
    const Unit *unit = NULL;
    if (status != NUMBER_NONE)
        unit = suffix[0] == '\0' ? &bare : find_unit(units, G_N_ELEMENTS(units), suffix);
    if (unit == NULL)
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not a duration: write 300ms, 5s or 2m", text);
    return scale(text, status, number, unit->factor, ret_ms, error);
}

gboolean rm_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value, GError **error)
{
    uint64_t number = 0;
    const char *rest = text;
    NumberStatus status = read_number(text, &number, &rest);
    if (status == NUMBER_NONE || rest[0] != '\0')
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not a whole number without sign", text);
    if (status == NUMBER_OVERFLOW || number < min || number > max)
        return rm_fail(error, RM_REASON_USAGE,
                       "%s is out of range: from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT, text, min,
                       max);
    *ret_value = number;
    return TRUE;
}

char *rm_format_size(uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    while (unit + 1 < G_N_ELEMENTS(names) && bytes >> (10 * unit) >= 1024)
        unit++;
    uint64_t whole = bytes >> (10 * unit);
    uint64_t rest = bytes - (whole << (10 * unit));
    if (rest == 0)
        return g_strdup_printf("%" G_GUINT64_FORMAT " %s", whole, names[unit]);

    /* Tenths, rounded: the shift keeps ten times the rest within 64 bits, whatever the unit. */
    uint64_t scaled = unit > 1 ? rest >> (10 * (unit - 1)) : rest;
    uint64_t tenths = (scaled * 10 + 512) / 1024;
    if (tenths == 10) {
        whole++;
        tenths = 0;
    }
    if (whole == 1024 && unit + 1 < G_N_ELEMENTS(names)) {
        whole = 1;
        unit++;
    }
    return g_strdup_printf("%" G_GUINT64_FORMAT ".%u %s", whole, (unsigned)tenths, names[unit]);
}

/* An IPv6 address with or without scope; link-local ones say nothing without it. */
static gboolean check_ipv6(const char *text, const char *host, GError **error)
{
    const char *percent = strchr(host, '%');
    g_autofree char *bare = percent != NULL ? g_strndup(host, percent - host) : g_strdup(host);
    struct in6_addr address;
    if (inet_pton(AF_INET6, bare, &address) != 1 || (percent != NULL && percent[1] == '\0'))
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not an address: \"%s\" is no IPv6 address", text,
                       host);
    if (percent != NULL && strpbrk(percent + 1, "%/ []") != NULL)
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not an address: \"%s\" is no interface name", text,
                       percent + 1);
    if (percent == NULL && IN6_IS_ADDR_LINKLOCAL(&address))
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is link-local: add the interface, as [%s%%eth0]", text,
                       host);
    return TRUE;
}

static gboolean check_host(const char *text, const char *host, GError **error)
{
    if (host[0] == '-')
        return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not an address: a host name can't begin with -",
                       text);
    for (const char *at = host; *at != '\0'; at++) {
        if ((unsigned char)*at <= ' ' || *at == 0x7f || strchr("/%[]@,;\"'\\", *at) != NULL)
            return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not an address: write HOST:PORT or [IPV6]:PORT",
                           text);
    }
    return TRUE;
}

/* Splits `text` into host (NULL if empty) and the text of the port (NULL if there is none). */
static gboolean split_address(const char *text, char **ret_host, const char **ret_port, GError **error)
{
    g_autofree char *host = NULL;
    const char *port = NULL;
    if (text[0] == '[') {
        const char *end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':'))
            return rm_fail(error, RM_REASON_USAGE, "\"%s\" is not an address: write [IPV6] or [IPV6]:PORT",
                           text);
        host = g_strndup(text + 1, end - text - 1);
        port = end[1] == ':' ? end + 2 : NULL;
        if (!check_ipv6(text, host, error))
            return FALSE;
    } else {
        const char *colon = strchr(text, ':');
        if (colon != NULL && strchr(colon + 1, ':') != NULL) { /* which colon would be the port's? so: none */
            host = g_strdup(text);
            if (!check_ipv6(text, host, error))
                return FALSE;
        } else {
            host = colon != NULL ? g_strndup(text, colon - text) : g_strdup(text);
            port = colon != NULL ? colon + 1 : NULL;
            if (!check_host(text, host, error))
                return FALSE;
        }
    }
    *ret_host = host[0] != '\0' ? g_steal_pointer(&host) : NULL;
    *ret_port = port;
    return TRUE;
}

gboolean rm_parse_address(const char *text, uint16_t default_port, char **ret_host, uint16_t *ret_port,
                          GError **error)
{
    if (text[0] == '\0')
        return rm_fail(error, RM_REASON_USAGE,
                       "the address is empty: write HOST, HOST:PORT, [IPV6]:PORT or :PORT");
    g_autofree char *host = NULL;
    const char *port_text = NULL;
    if (!split_address(text, &host, &port_text, error))
        return FALSE;
    uint64_t port = default_port;
    if (port_text != NULL && !rm_parse_uint(port_text, 1, G_MAXUINT16, &port, error)) {
        g_prefix_error(error, "port in \"%s\": ", text);
        return FALSE;
    }
    *ret_host = g_steal_pointer(&host);
    *ret_port = port;
    return TRUE;
}
