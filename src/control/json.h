/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Checked access to JSON that somebody else wrote. Used for the control channel and for QMP; no other file
 * calls json_object_get_*(), whose silent conversions turn a wrong type into a zero.
 */
#pragma once

#include <glib.h>
#include <json-c/json.h>
#include <stdint.h>

/* Parses one complete object; trailing bytes, other top-level types, depth over `max_depth`, invalid UTF-8
 * and inexact integers (over UINT64_MAX, under INT64_MIN) are refused with reason protocol. */
json_object *rm_json_parse(const char *text, gsize length, unsigned max_depth, GError **error);

/* Each: required member `key` of the right type, else FALSE with reason protocol naming the key. Strings are
 * borrowed. */
gboolean rm_json_uint(json_object *object, const char *key, uint64_t *ret_value, GError **error);
gboolean rm_json_string(json_object *object, const char *key, const char **ret_value, GError **error);
gboolean rm_json_bool(json_object *object, const char *key, gboolean *ret_value, GError **error);
gboolean rm_json_array(json_object *object, const char *key, json_object **ret_array, GError **error);
gboolean rm_json_object(json_object *object, const char *key, json_object **ret_object, GError **error);
/* Element `index` of an array as an unsigned integer. */
gboolean rm_json_array_uint(json_object *array, size_t index, uint64_t *ret_value, GError **error);

/* Optional members: FALSE only if present with a wrong type; absent leaves *value as it is. */
gboolean rm_json_uint_opt(json_object *object, const char *key, uint64_t *value, GError **error);
gboolean rm_json_string_opt(json_object *object, const char *key, const char **value, GError **error);
gboolean rm_json_bool_opt(json_object *object, const char *key, gboolean *value, GError **error);

/* Builders. */
json_object *rm_json_message(const char *type);
void rm_json_add_uint(json_object *object, const char *key, uint64_t value);
void rm_json_add_string(json_object *object, const char *key, const char *value);
void rm_json_add_bool(json_object *object, const char *key, gboolean value);
void rm_json_add(json_object *object, const char *key, json_object *value); /* takes value */
