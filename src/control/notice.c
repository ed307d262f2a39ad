/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What all of them have in common. */
#include "control/notice.h"

#include "common/printable.h"
#include "control/json.h"

#define TEXT_MAX 4096

char *rm_notice_time(int64_t wall_us)
{
    g_autoptr(GDateTime) seconds = g_date_time_new_from_unix_utc(wall_us / G_USEC_PER_SEC);
    g_autofree char *text = seconds != NULL ? g_date_time_format(seconds, "%Y-%m-%dT%H:%M:%S") : NULL;
    return g_strdup_printf("%s.%06dZ", text != NULL ? text : "?", (int)(wall_us % G_USEC_PER_SEC));
}

json_object *rm_notice_new(const char *session, const char *guest, const char *event)
{
    json_object *object = json_object_new_object();
    g_autofree char *time = rm_notice_time(g_get_real_time());
    rm_json_add_uint(object, "schema", RM_NOTICE_SCHEMA);
    rm_json_add_string(object, "time", time);
    rm_json_add_string(object, "session", session);
    rm_json_add_string(object, "guest", guest);
    rm_json_add_string(object, "event", event);
    return object;
}

void rm_notice_add_ms(json_object *notice, const char *key, int64_t us)
{
    json_object *value = NULL;
    if (us >= 0) {
        char text[32];
        g_snprintf(text, sizeof text, "%" G_GINT64_FORMAT ".%03d", us / 1000, (int)(us % 1000));
        value = json_object_new_double_s((double)us / 1000, text);
    }
    rm_json_add(notice, key, value);
}

void rm_notice_add_text(json_object *notice, const char *key, const char *text)
{
    g_autofree char *printable = rm_printable(text, TEXT_MAX);
    rm_json_add(notice, key, text != NULL ? json_object_new_string(printable) : NULL);
}

char *rm_notice_line(json_object *notice)
{
    return g_strdup(json_object_to_json_string_ext(notice, JSON_C_TO_STRING_PLAIN));
}
