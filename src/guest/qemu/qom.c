/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* qom-list and qom-get. */
#include "guest/qemu/qom.h"

#include "common/autoptr.h"
#include "control/json.h"

#include <string.h>

gboolean rm_qom_list(RmQmp *qmp, const char *path, GHashTable **ret_properties, GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "path", path);
    rm_autojson reply = NULL;
    json_object *list;
    if (!rm_qmp_run(qmp, "qom-list", arguments, &reply, error) ||
        !rm_json_array(reply, "return", &list, error))
        return FALSE;
    g_autoptr(GHashTable) properties = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        json_object *item = json_object_array_get_idx(list, i);
        const char *name, *type;
        if (!rm_json_string(item, "name", &name, error) || !rm_json_string(item, "type", &type, error))
            return FALSE;
        g_hash_table_insert(properties, g_strdup(name), g_strdup(type));
    }
    *ret_properties = g_steal_pointer(&properties);
    return TRUE;
}

gboolean rm_qom_get(RmQmp *qmp, const char *path, const char *property, json_object **ret_reply,
                    GError **error)
{
    json_object *arguments = json_object_new_object();
    rm_json_add_string(arguments, "path", path);
    rm_json_add_string(arguments, "property", property);
    return rm_qmp_run(qmp, "qom-get", arguments, ret_reply, error);
}

gboolean rm_qom_get_string(RmQmp *qmp, const char *path, const char *property, char **ret_value,
                           GError **error)
{
    rm_autojson reply = NULL;
    const char *value;
    if (!rm_qom_get(qmp, path, property, &reply, error) || !rm_json_string(reply, "return", &value, error))
        return FALSE;
    *ret_value = g_strdup(value);
    return TRUE;
}

char *rm_qom_child_type(const char *type)
{
    gsize length = strlen(type);
    if (!g_str_has_prefix(type, "child<") || type[length - 1] != '>')
        return NULL;
    return g_strndup(type + strlen("child<"), length - strlen("child<") - 1);
}
