/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* SIGHUP: what may change while the daemon runs. */
#include "destination/reload.h"

#include <string.h>

static void say_what_waits(const RmListenOptions *old, const RmListenOptions *fresh)
{
    g_autofree const char **changes = rm_settings_changes(&old->settings, &fresh->settings);
    g_autoptr(GString) names = g_string_new(NULL);
    for (const char **name = changes; *name != NULL; name++) {
        if (strcmp(*name, "tls-allow") != 0)
            g_string_append_printf(names, "%s%s", names->len > 0 ? ", " : "", *name);
    }
    if (names->len > 0)
        g_warning("changed, but holds only after a restart: %s", names->str);
}

void rm_reload(RmDaemon *daemon, int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    g_autoptr(RmListenOptions) fresh = rm_listen_options_parse(argc, argv, &text, &error);
    if (fresh == NULL || !rm_daemon_reload(daemon, fresh->tls_allow, &error)) {
        g_critical("nothing was reloaded, and what was loaded before still holds: %s", error->message);
        return;
    }
    if (daemon->options->common.tls_creds == NULL)
        g_message("there is nothing to reload without --tls-creds; SIGTERM ends rdmamigd");
    else
        g_message("reloaded: new connections are judged by what is there now%s",
                  fresh->tls_allow == NULL ? "; every certificate of the CA is let in" : "");
    say_what_waits(daemon->options, fresh);
}
