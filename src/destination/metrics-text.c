/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writing samples. Numbers are written as in the C locale, whatever the process's is. */
#include "destination/metrics-text.h"

/* What the format escapes: \ and line feed everywhere, " in labels only. */
static void append_escaped(GString *text, const char *value, gboolean label)
{
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            g_string_append(text, "\\n");
        else if (*value == '\\' || (*value == '"' && label))
            g_string_append_printf(text, "\\%c", *value);
        else
            g_string_append_c(text, *value);
    }
}

void rm_metrics_text_family(GString *text, const char *name, const char *type, const char *help)
{
    g_string_append_printf(text, "# HELP %s ", name);
    append_escaped(text, help, FALSE);
    g_string_append_printf(text, "\n# TYPE %s %s\n", name, type);
}

static void append_sample(GString *text, const char *name, const char *suffix, const char *value,
                          va_list labels)
{
    const char *separator = "{";
    g_string_append_printf(text, "%s%s", name, suffix);
    for (const char *label; (label = va_arg(labels, const char *)) != NULL; separator = ",") {
        g_string_append_printf(text, "%s%s=\"", separator, label);
        append_escaped(text, va_arg(labels, const char *), TRUE);
        g_string_append_c(text, '"');
    }
    g_string_append_printf(text, "%s %s\n", *separator == ',' ? "}" : "", value);
}

void rm_metrics_text_uint(GString *text, const char *name, const char *suffix, uint64_t value, ...)
{
    char buffer[32];
    va_list labels;
    g_snprintf(buffer, sizeof buffer, "%" G_GUINT64_FORMAT, value);
    va_start(labels, value);
    append_sample(text, name, suffix, buffer, labels);
    va_end(labels);
}

void rm_metrics_text_double(GString *text, const char *name, const char *suffix, double value, ...)
{
    char buffer[G_ASCII_DTOSTR_BUF_SIZE];
    va_list labels;
    g_ascii_formatd(buffer, sizeof buffer, "%.15g", value);
    va_start(labels, value);
    append_sample(text, name, suffix, buffer, labels);
    va_end(labels);
}

void rm_metrics_text_histogram(GString *text, const char *name, const double *bounds, unsigned n,
                               const uint64_t *counts, double sum)
{
    uint64_t below = 0;
    for (unsigned i = 0; i < n; i++) {
        char bound[G_ASCII_DTOSTR_BUF_SIZE];
        g_ascii_formatd(bound, sizeof bound, "%.15g", bounds[i]);
        below += counts[i];
        rm_metrics_text_uint(text, name, "_bucket", below, "le", bound, NULL);
    }
    below += counts[n];
    rm_metrics_text_uint(text, name, "_bucket", below, "le", "+Inf", NULL);
    rm_metrics_text_double(text, name, "_sum", sum, NULL);
    rm_metrics_text_uint(text, name, "_count", below, NULL);
}
