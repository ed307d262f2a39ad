/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Rows and indented lines. */
#include "source/status-text.h"

#include "common/printable.h"
#include "common/size.h"
#include "control/json.h"

#include <string.h>

#define INDENT 10
#define TEXT_MAX 4096

enum { SESSION_WIDTH = 8, GUEST_WIDTH = 16, STATE_WIDTH = 10, PEER_WIDTH = 22 };

static const char *text_of(json_object *object, const char *key)
{
    const char *text = "";
    rm_json_string_opt(object, key, &text, NULL);
    return text;
}

static uint64_t uint_of(json_object *object, const char *key)
{
    uint64_t value = 0;
    rm_json_uint_opt(object, key, &value, NULL);
    return value;
}

static gboolean is_true(json_object *object, const char *key, gboolean otherwise)
{
    rm_json_bool_opt(object, key, &otherwise, NULL);
    return otherwise;
}

/* ---- pieces ---- */

/* A column; what does not fit ends in "...". */
static void append_column(GString *text, const char *content, int width)
{
    g_autofree char *printable = rm_printable(content, TEXT_MAX);
    glong length = g_utf8_strlen(printable, -1);
    if (length > width) {
        g_autofree char *cut = g_utf8_substring(printable, 0, width - 3);
        g_string_append_printf(text, "%s...", cut);
        length = width;
    } else {
        g_string_append(text, printable);
    }
    g_string_append_printf(text, "%*s", width + 2 - (int)length, "");
}

/* Broken at spaces, so that lines fit; a longer word has a line of its own. */
static void append_indented(GString *text, const char *content)
{
    g_autofree char *printable = rm_printable(content, TEXT_MAX);
    g_auto(GStrv) words = g_strsplit(printable, " ", -1);
    glong column = 0;
    for (char **word = words; *word != NULL; word++) {
        glong length = g_utf8_strlen(*word, -1);
        if (column == 0) {
            g_string_append_printf(text, "%*s", INDENT, "");
            column = INDENT;
        } else if (column + 1 + length > RM_STATUS_COLUMNS) {
            g_string_append_printf(text, "\n%*s", INDENT, "");
            column = INDENT;
        } else {
            g_string_append_c(text, ' ');
            column++;
        }
        g_string_append(text, *word);
        column += length;
    }
    g_string_append_c(text, '\n');
}

static char *duration(uint64_t ms)
{
    uint64_t s = ms / 1000;
    if (s < 100)
        return g_strdup_printf("for %" G_GUINT64_FORMAT ".%u s", s, (unsigned)(ms % 1000 / 100));
    if (s < 100 * 60)
        return g_strdup_printf("for %" G_GUINT64_FORMAT " min", s / 60);
    return g_strdup_printf("for %" G_GUINT64_FORMAT " h", s / 3600);
}

/* Local time, which is what an operator's clock shows. */
static char *moment(const char *iso)
{
    g_autoptr(GDateTime) time = g_date_time_new_from_iso8601(iso, NULL);
    g_autoptr(GDateTime) local = time != NULL ? g_date_time_to_local(time) : NULL;
    return local != NULL ? g_date_time_format(local, "%Y-%m-%d %H:%M") : g_strdup("?");
}

static char *when(json_object *object)
{
    const char *event = text_of(object, "event");
    if (strcmp(event, "status") == 0)
        return duration(uint_of(object, "elapsed_ms"));
    return moment(text_of(object, strcmp(event, "report") == 0 ? "end" : "since"));
}

/* ---- what is below a row ---- */

static void append_sender(GString *text, json_object *status)
{
    g_autofree char *left = rm_format_size(uint_of(status, "remaining_bytes"));
    g_autofree char *rate = rm_format_size(uint_of(status, "rate_bytes_s"));
    g_autofree char *line = g_strdup_printf(
        "round %" G_GUINT64_FORMAT ", %s left, %s/s%s%s", uint_of(status, "round"), left, rate,
        *text_of(status, "transport") != '\0' ? " over " : "", text_of(status, "transport"));
    if (uint_of(status, "round") > 0)
        append_indented(text, line);
}

/* On tcp "registered" only means populated. */
static void append_receiver(GString *text, json_object *status)
{
    const char *transport = text_of(status, "transport");
    g_autofree char *landed = rm_format_size(uint_of(status, "landed_bytes"));
    g_autofree char *registered = rm_format_size(uint_of(status, "registered_bytes"));
    g_autoptr(GString) line = g_string_new(NULL);
    g_string_printf(line, "%" G_GUINT64_FORMAT " rounds, %s landed", uint_of(status, "rounds"), landed);
    if (*transport != '\0')
        g_string_append_printf(line, " over %s", transport);
    if (strcmp(transport, "rdma") == 0)
        g_string_append_printf(line, ", %s registered", registered);
    append_indented(text, line->str);
}

static void append_live(GString *text, json_object *status)
{
    if (!is_true(status, "answers", TRUE))
        append_indented(text, "its guardian looks after it, or a daemon that does not answer");
    else if (strcmp(text_of(status, "side"), "source") == 0)
        append_sender(text, status);
    else
        append_receiver(text, status);
}

/* Why, where and what next; nothing of what went well. */
static void append_outcome(GString *text, json_object *object)
{
    const char *reason = text_of(object, "reason"), *detail = text_of(object, "detail");
    const char *where = text_of(object, "where"), *next = text_of(object, "next");
    gboolean well = strcmp(text_of(object, "state"), "done") == 0 && *next == '\0';
    if (*reason != '\0' && strcmp(reason, "none") != 0) {
        g_autofree char *why = g_strdup_printf("%s%s%s", reason, *detail != '\0' ? ": " : "", detail);
        append_indented(text, why);
    }
    if (*where != '\0' && !well)
        append_indented(text, where);
    if (*next != '\0') {
        g_autofree char *line = g_strconcat("next: ", next, NULL);
        append_indented(text, line);
    }
}

/* ---- the whole ---- */

void rm_status_text_head(GString *text)
{
    append_column(text, "SESSION", SESSION_WIDTH);
    append_column(text, "GUEST", GUEST_WIDTH);
    append_column(text, "STATE", STATE_WIDTH);
    append_column(text, "PEER", PEER_WIDTH);
    g_string_append(text, "TIME\n");
}

static void append_row(GString *text, json_object *object)
{
    const char *guest = text_of(object, "guest");
    g_autofree char *session = g_strndup(text_of(object, "session"), SESSION_WIDTH);
    g_autofree char *peer = g_strdup_printf(
        "%s %s", strcmp(text_of(object, "side"), "source") == 0 ? "to" : "from", text_of(object, "peer"));
    g_autofree char *time = when(object);
    append_column(text, session, SESSION_WIDTH);
    append_column(text, *guest != '\0' ? guest : "(unnamed)", GUEST_WIDTH);
    append_column(text, text_of(object, "state"), STATE_WIDTH);
    append_column(text, peer, PEER_WIDTH);
    g_string_append_printf(text, "%s\n", time);
}

void rm_status_text_group(GString *text, const char *heading, const GPtrArray *objects, gboolean full)
{
    if (objects->len > 0)
        g_string_append_printf(text, "%s\n", heading);
    for (guint i = 0; i < objects->len; i++) {
        append_row(text, objects->pdata[i]);
        if (full)
            g_string_append_printf(text, "%*ssession %s\n", INDENT, "",
                                   text_of(objects->pdata[i], "session"));
        if (strcmp(text_of(objects->pdata[i], "event"), "status") == 0)
            append_live(text, objects->pdata[i]);
        else
            append_outcome(text, objects->pdata[i]);
    }
}

void rm_status_text_daemon(GString *text, json_object *daemon)
{
    g_string_append_printf(text, "rdmamigd (pid %" G_GUINT64_FORMAT ") listens on %s%s\n",
                           uint_of(daemon, "pid"), text_of(daemon, "listen"),
                           is_true(daemon, "stopping", FALSE) ? ", and is stopping" : "");
}
