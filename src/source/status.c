/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The verbs status and cancel. */
#include "source/status.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "control/notice.h"
#include "control/status-socket.h"
#include "source/status-text.h"

#include <stdio.h>
#include <string.h>

enum { OK = 0, FAILED = 1, UNRESOLVED = 5 };

/* ---- status ---- */

static void print_lines(const GPtrArray *objects)
{
    for (guint i = 0; i < objects->len; i++) {
        g_autofree char *line = rm_notice_line(objects->pdata[i]);
        puts(line);
    }
}

static void print_text(const RmLook *look, guint n, gboolean full)
{
    g_autoptr(GString) text = g_string_new(NULL);
    if (n > 0)
        rm_status_text_head(text);
    rm_status_text_group(text, "nobody looks after these:", look->unresolved, full);
    rm_status_text_group(text, "under way:", look->live, full);
    rm_status_text_group(text, "ended:", look->ended, full);
    if (n == 0)
        g_string_append_printf(text, "no session%s on this host\n",
                               geteuid() == 0 ? "" : " of this user (root may see others)");
    for (guint i = 0; i < look->daemons->len; i++)
        rm_status_text_daemon(text, look->daemons->pdata[i]);
    fputs(text->str, stdout);
}

int rm_status(const RmLookOptions *options, gboolean json)
{
    g_auto(RmLook) look = {0};
    rm_look(options, &look);
    guint n = look.unresolved->len + look.live->len + look.ended->len;
    if (n == 0 && options->which != NULL) {
        fprintf(stderr, "rdmamig: no session or guest `%s` on this host\n", options->which);
        return FAILED;
    }
    if (json) {
        print_lines(look.unresolved);
        print_lines(look.live);
        print_lines(look.ended);
    } else {
        print_text(&look, n, options->which != NULL);
    }
    return look.unresolved->len > 0 ? UNRESOLVED : look.unreadable ? FAILED : OK;
}

/* ---- cancel ---- */

/* A session that is at both ends of this host is one, and its source is the one to ask. */
typedef struct {
    const char *which;
    char *session, *path;
    gboolean receiver, several;
} Target;

static void target_clear(Target *target)
{
    g_free(target->session);
    g_free(target->path);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Target, target_clear)

static void consider(Target *target, const char *path, json_object *status, gboolean receiver)
{
    const char *session = "", *guest = "";
    rm_json_string_opt(status, "session", &session, NULL);
    rm_json_string_opt(status, "guest", &guest, NULL);
    if (target->which != NULL && !g_str_has_prefix(session, target->which) &&
        strcmp(guest, target->which) != 0)
        return;
    if (target->session == NULL) {
        target->session = g_strdup(session);
        target->path = g_strdup(path);
        target->receiver = receiver;
    } else if (strcmp(target->session, session) != 0) {
        target->several = TRUE;
    }
}

static void consider_sender(const char *path, json_object *answer, gpointer data)
{
    consider(data, path, answer, FALSE);
}

static void consider_receiver(const char *path, json_object *answer, gpointer data)
{
    json_object *sessions;
    if (!rm_json_array(answer, "sessions", &sessions, NULL))
        return;
    for (size_t i = 0; i < json_object_array_length(sessions); i++)
        consider(data, path, json_object_array_get_idx(sessions, i), TRUE);
}

int rm_cancel(const char *which)
{
    g_autoptr(GError) error = NULL;
    g_auto(Target) target = {.which = which};
    gboolean done = TRUE;
    rm_status_each(RM_STATUS_SEND, consider_sender, &target);
    /* What is named and sent from here is meant, without a wait for an rdmamigd that may hang. */
    if (which == NULL || target.session == NULL)
        rm_status_each(RM_STATUS_RECV, consider_receiver, &target);
    if (target.session == NULL || target.several) {
        if (target.several)
            fprintf(stderr, "rdmamig: several sessions; name one: rdmamig cancel SESSION|GUEST\n");
        else
            fprintf(stderr, "rdmamig: no session to cancel%s%s\n", which != NULL ? " for " : "", which ?: "");
        return FAILED;
    }
    rm_autojson answer = rm_status_call(target.path, "cancel", target.session, &error);
    if (answer == NULL) {
        fprintf(stderr, "rdmamig: the session ended before it could be cancelled: %s\n", error->message);
        return FAILED;
    }
    rm_json_bool_opt(answer, "cancelled", &done, NULL);
    if (done)
        return OK;
    fprintf(stderr, "rdmamig: too late: the session has ended, or its guest is this host's already\n");
    return FAILED;
}
