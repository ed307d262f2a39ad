/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's object tree. */
#pragma once

#include "guest/qemu/qmp.h"

/* The properties of the object at `path`: name -> QOM type ("child<pc-dimm>", "bool", …); caller unrefs. */
gboolean rm_qom_list(RmQmp *qmp, const char *path, GHashTable **ret_properties, GError **error);

/* One property's value in "return" of *ret_reply (caller puts). */
gboolean rm_qom_get(RmQmp *qmp, const char *path, const char *property, json_object **ret_reply,
                    GError **error);
gboolean rm_qom_get_string(RmQmp *qmp, const char *path, const char *property, char **ret_value,
                           GError **error);

/* The type in "child<TYPE>"; NULL if `type` is no child. Caller frees. */
char *rm_qom_child_type(const char *type);
