/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The human monitor. */
#include "guest/qemu/qmp-hmp.h"

#include "common/autoptr.h"
#include "control/json.h"

gboolean rm_qmp_hmp(RmQmp *qmp, const char *line, char **ret_text, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "command-line", line);
    rm_autojson reply = NULL;
    const char *text;
    if (!rm_qmp_run(qmp, "human-monitor-command", arguments, &reply, error) ||
        !rm_json_string(reply, "return", &text, error))
        return FALSE;
    *ret_text = g_strdup(text);
    return TRUE;
}
