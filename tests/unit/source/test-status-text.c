/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `rdmamig status` as text: it fits 80 columns, its columns stand below each other, and nothing in it moves a
 * terminal's cursor. */
#include "source/status-text.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "control/notice.h"

#include <string.h>

#define SESSION "11111111-2222-4333-8444-555555555555"

static json_object *object(const char *event, const char *guest, const char *side, const char *state,
                           const char *peer)
{
    json_object *object = rm_notice_new(SESSION, guest, event);
    rm_json_add_string(object, "side", side);
    rm_json_add_string(object, "state", state);
    rm_json_add_string(object, "peer", peer);
    rm_json_add_string(object, "since", "2026-01-02T03:04:05.000000Z");
    rm_json_add_string(object, "end", "2026-01-02T03:04:05.000000Z");
    return object;
}

/* Takes the object. */
static char *show(json_object *object, gboolean full)
{
    g_autoptr(GPtrArray) objects = g_ptr_array_new();
    GString *text = g_string_new(NULL);
    g_ptr_array_add(objects, object);
    rm_status_text_head(text);
    rm_status_text_group(text, "heading:", objects, full);
    json_object_put(object);
    return g_string_free(text, FALSE);
}

static void assert_fits(const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        g_test_message("%s", *line);
        g_assert_true(g_utf8_validate(*line, -1, NULL));
        g_assert_cmpint(g_utf8_strlen(*line, -1), <=, RM_STATUS_COLUMNS);
        for (const char *c = *line; *c != '\0'; c++)
            g_assert_false(g_ascii_iscntrl(*c));
    }
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        g_error("`%s` is not in:\n%s", part, text);
}

static void test_unresolved(void)
{
    json_object *status = object("unresolved", "web", "source", "doubtful", "host2.rack17.example.org:24780");
    rm_json_add_string(status, "reason", "doubtful");
    rm_json_add_string(status, "detail", "commit was sent, and there is no answer: no route to host at all");
    rm_json_add_string(status, "where",
                       "guest web is paused on host1.rack17.example.org, and may run on "
                       "host2.rack17.example.org");
    rm_json_add_string(status, "next", "rdmamig resolve " SESSION);
    g_autofree char *text = show(status, FALSE);
    assert_fits(text);
    assert_has(text, "SESSION   GUEST             STATE       PEER                    TIME\nheading:\n");
    assert_has(text, "\n11111111  web               doubtful    to host2.rack17.exa...  2026-01-0");
    assert_has(text, "\n          doubtful: commit was sent");
    assert_has(text, "\n          next: rdmamig resolve " SESSION "\n");
}

/* Of what went well nothing need be said. */
static void test_done(void)
{
    json_object *report = object("report", "web", "destination", "done", "10.0.0.1:4711");
    rm_json_add_string(report, "reason", "none");
    rm_json_add_string(report, "where", "guest web runs on host2");
    g_autofree char *text = show(report, FALSE);
    assert_fits(text);
    assert_has(text, "\n11111111  web               done        from 10.0.0.1:4711      2026-01-0");
    g_assert_null(strstr(text, "guest web runs"));
}

static void test_live(void)
{
    json_object *sent = object("status", "web", "source", "precopy", "host2:24780");
    rm_json_add_uint(sent, "elapsed_ms", 12345);
    rm_json_add_uint(sent, "round", 3);
    rm_json_add_uint(sent, "remaining_bytes", 3 << 20);
    rm_json_add_uint(sent, "rate_bytes_s", 1 << 20);
    rm_json_add_string(sent, "transport", "tcp");
    g_autofree char *text = show(sent, TRUE);
    assert_fits(text);
    assert_has(text, "for 12.3 s\n          session " SESSION
                     "\n          round 3, 3 MiB left, 1 MiB/s over tcp\n");
    json_object *received = object("status", "web", "destination", "precopy", "host1:1");
    rm_json_add_uint(received, "elapsed_ms", 200 * 1000);
    rm_json_add_uint(received, "rounds", 2);
    rm_json_add_uint(received, "landed_bytes", 5 << 20);
    rm_json_add_uint(received, "registered_bytes", 8 << 20);
    rm_json_add_string(received, "transport", "rdma");
    g_autofree char *other = show(received, FALSE);
    assert_fits(other);
    assert_has(other, "for 3 min\n          2 rounds, 5 MiB landed over rdma, 8 MiB registered\n");
    json_object *silent = object("status", "web", "destination", "precopy", "host1:1");
    rm_json_add_bool(silent, "answers", FALSE);
    g_autofree char *third = show(silent, FALSE);
    assert_has(third, "does not answer");
}

static void test_odd_texts(void)
{
    static const char *const names[] = {
        "",
        "\x1b[2J\x1b[H evil\r\nsecond line",
        "a name that is a good deal longer than its column is wide",
        "ééééééééééééééééééééééééé",
        "\xff\xfe",
        "a-word-that-is-as-long-as-a-path-may-be/and-has-no-space/",
    };
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        json_object *report = object("report", names[i], "source", "failed", names[i]);
        rm_json_add_string(report, "reason", "internal");
        rm_json_add_string(report, "where", names[i]);
        g_autofree char *text = show(report, FALSE);
        assert_fits(text);
        if (*names[i] == '\0')
            assert_has(text, "(unnamed)");
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/status-text/unresolved", test_unresolved);
    g_test_add_func("/status-text/done", test_done);
    g_test_add_func("/status-text/live", test_live);
    g_test_add_func("/status-text/odd-texts", test_odd_texts);
    return g_test_run();
}
