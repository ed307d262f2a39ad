/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The vector, as two tables.
 *
 * Every capability that QEMU lists is switched off, whatever its name, save for those in `wanted`: a new one
 * that changes what a migration does is off by default, so "off" is what we tested. dirty-bitmaps is off,
 * too: persistent bitmaps are in the image, which both ends share; others end with the source.
 */
#include "guest/qemu/vector.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

typedef enum { OFF, ON, ON_INCOMING, ON_INCOMING_OR_KEEP } Want;

static const struct {
    const char *name;
    Want want;
} wanted[] = {
    {"x-ignore-shared", ON}, /* the RAM is ours to move */
    /* Without it QEMU takes the disks' locks while it loads, and the source can't take them back if that
       fails. */
    {"late-block-activate", ON_INCOMING},
    /* Changes nothing but what is reported, and to others, too. A waiting QEMU has no others, and the event
       tells the end of a load at once. */
    {"events", ON_INCOMING_OR_KEEP},
};

/* Parameters that can stall or fail a migration of device state. Each is set only where this QEMU has it. */
static const struct {
    const char *name;
    enum { UINT, STRING, BOOL } type;
    uint64_t number;
    const char *string;
} parameters[] = {
    {"max-bandwidth", UINT, .number = UINT64_C(1) << 50}, /* bytes/s: no limit in practice */
    {"downtime-limit", UINT, .number = 2000000},       /* ms, QEMU's maximum: the guest is stopped already */
    {"avail-switchover-bandwidth", UINT, .number = 0}, /* measure */
    {"tls-creds", STRING, .string = ""},               /* a pipe between two programs of one host */
    {"tls-hostname", STRING, .string = ""},
    {"mode", STRING, .string = "normal"}, /* not cpr-* */
    {"direct-io", BOOL},
};

static Want want_of(const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(wanted); i++) {
        if (strcmp(wanted[i].name, name) == 0)
            return wanted[i].want;
    }
    return OFF;
}

static json_object *capability(const char *name, gboolean state)
{
    json_object *object = json_object_new_object();
    rm_json_add_string(object, "capability", name);
    rm_json_add_bool(object, "state", state);
    return object;
}

/* Splits what differs from the wanted capabilities into what to set and what to put back. */
static gboolean compare_capabilities(RmQmp *qmp, gboolean incoming, json_object *to_set,
                                     json_object *to_restore, GError **error)
{
    rm_autojson reply = NULL;
    json_object *list;
    gboolean ignores_shared = FALSE;
    if (!rm_qmp_run(qmp, "query-migrate-capabilities", NULL, &reply, error) ||
        !rm_json_array(reply, "return", &list, error))
        return FALSE;
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        json_object *item = json_object_array_get_idx(list, i);
        const char *name;
        gboolean state;
        if (!rm_json_string(item, "capability", &name, error) || !rm_json_bool(item, "state", &state, error))
            return FALSE;
        Want want = want_of(name);
        gboolean on = want == ON || (want != OFF && incoming);
        ignores_shared |= strcmp(name, "x-ignore-shared") == 0;
        if (state == on || (want == ON_INCOMING_OR_KEEP && !incoming))
            continue;
        json_object_array_add(to_set, capability(name, on));
        json_object_array_add(to_restore, capability(name, state));
    }
    if (!ignores_shared)
        return rm_fail(error, RM_REASON_QEMU_VERSION,
                       "QEMU %s lacks the migration capability x-ignore-shared", rm_qmp_version_text(qmp));
    return TRUE;
}

static gboolean compare_uint(json_object *found, const char *name, uint64_t number, json_object *to_set,
                             json_object *to_restore, GError **error)
{
    uint64_t old;
    if (!rm_json_uint(found, name, &old, error))
        return FALSE;
    if (old != number) {
        rm_json_add_uint(to_set, name, number);
        rm_json_add_uint(to_restore, name, old);
    }
    return TRUE;
}

static gboolean compare_string(json_object *found, const char *name, const char *string, json_object *to_set,
                               json_object *to_restore, GError **error)
{
    const char *old;
    if (!rm_json_string(found, name, &old, error))
        return FALSE;
    if (strcmp(old, string) != 0) {
        rm_json_add_string(to_set, name, string);
        rm_json_add_string(to_restore, name, old);
    }
    return TRUE;
}

static gboolean compare_bool(json_object *found, const char *name, gboolean value, json_object *to_set,
                             json_object *to_restore, GError **error)
{
    gboolean old;
    if (!rm_json_bool(found, name, &old, error))
        return FALSE;
    if (old != value) {
        rm_json_add_bool(to_set, name, value);
        rm_json_add_bool(to_restore, name, old);
    }
    return TRUE;
}

static gboolean compare_parameters(RmQmp *qmp, json_object *to_set, json_object *to_restore, GError **error)
{
    rm_autojson reply = NULL;
    json_object *found;
    if (!rm_qmp_run(qmp, "query-migrate-parameters", NULL, &reply, error) ||
        !rm_json_object(reply, "return", &found, error))
        return FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(parameters); i++) {
        const char *name = parameters[i].name;
        gboolean ok = TRUE;
        if (!json_object_object_get_ex(found, name, NULL))
            continue;
        switch (parameters[i].type) {
        case UINT:
            ok = compare_uint(found, name, parameters[i].number, to_set, to_restore, error);
            break;
        case STRING:
            ok = compare_string(found, name, parameters[i].string, to_set, to_restore, error);
            break;
        case BOOL:
            ok = compare_bool(found, name, parameters[i].number != 0, to_set, to_restore, error);
            break;
        }
        if (!ok)
            return FALSE;
    }
    return TRUE;
}

static gboolean set_capabilities(RmQmp *qmp, json_object *list, GError **error)
{
    if (json_object_array_length(list) == 0)
        return TRUE;
    json_object *arguments = json_object_new_object();
    rm_json_add(arguments, "capabilities", json_object_get(list));
    return rm_qmp_run(qmp, "migrate-set-capabilities", arguments, NULL, error);
}

static gboolean set_parameters(RmQmp *qmp, json_object *values, GError **error)
{
    return json_object_object_length(values) == 0 ||
           rm_qmp_run(qmp, "migrate-set-parameters", json_object_get(values), NULL, error);
}

void rm_vector_clear(RmVector *vector)
{
    g_clear_pointer(&vector->capabilities, json_object_put);
    g_clear_pointer(&vector->parameters, json_object_put);
}

gboolean rm_vector_compare(RmQmp *qmp, gboolean incoming, RmVector *ret_wanted, RmVector *found,
                           GError **error)
{
    g_auto(RmVector) to_set = {json_object_new_array(), json_object_new_object()};
    g_auto(RmVector) old = {json_object_new_array(), json_object_new_object()};
    if (!compare_capabilities(qmp, incoming, to_set.capabilities, old.capabilities, error) ||
        !compare_parameters(qmp, to_set.parameters, old.parameters, error))
        return FALSE;
    if (found->capabilities == NULL && found->parameters == NULL) {
        *found = old;
        old = (RmVector){0};
    }
    *ret_wanted = to_set;
    to_set = (RmVector){0};
    return TRUE;
}

gboolean rm_vector_set(RmQmp *qmp, const RmVector *to_set, GError **error)
{
    /* Capabilities first: parameters of a capability that is off are not checked against it. */
    return set_capabilities(qmp, to_set->capabilities, error) &&
           set_parameters(qmp, to_set->parameters, error);
}

gboolean rm_vector_restore(RmQmp *qmp, RmVector *found, GError **error)
{
    /* The other way round, since some capabilities are refused unless their parameters suit. */
    if (found->parameters != NULL && !set_parameters(qmp, found->parameters, error))
        return FALSE;
    if (found->capabilities != NULL && !set_capabilities(qmp, found->capabilities, error))
        return FALSE;
    rm_vector_clear(found);
    return TRUE;
}

json_object *rm_vector_to_json(const RmVector *found)
{
    json_object *json = json_object_new_object();
    if (found->capabilities != NULL)
        rm_json_add(json, "capabilities", json_object_get(found->capabilities));
    if (found->parameters != NULL)
        rm_json_add(json, "parameters", json_object_get(found->parameters));
    return json;
}

void rm_vector_from_json(json_object *json, RmVector *ret_found)
{
    json_object *member;
    if (rm_json_array(json, "capabilities", &member, NULL))
        ret_found->capabilities = json_object_get(member);
    if (rm_json_object(json, "parameters", &member, NULL))
        ret_found->parameters = json_object_get(member);
}
