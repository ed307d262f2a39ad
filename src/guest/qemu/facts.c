/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A guest's identity and traits. */
#include "guest/qemu/facts.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "guest/qemu/qom.h"

#include <string.h>

static const struct {
    const char *status;
    RmGuestRun run;
} runs[] = {
    {"running", RM_GUEST_RUNNING},
    {"paused", RM_GUEST_PAUSED},
    {"inmigrate", RM_GUEST_WAITING},
    {"postmigrate", RM_GUEST_SAVED},
};

RmGuestRun rm_facts_run(const char *status)
{
    for (size_t i = 0; i < G_N_ELEMENTS(runs); i++) {
        if (strcmp(runs[i].status, status) == 0)
            return runs[i].run;
    }
    return RM_GUEST_OTHER;
}

/* The member `key` of what `command` returns; `required` or else "". Caller frees. */
static gboolean query_string(RmQmp *qmp, const char *command, const char *key, char **ret_value,
                             GError **error)
{
    rm_autojson reply = NULL;
    json_object *body;
    const char *value = "";
    if (!rm_qmp_run(qmp, command, NULL, &reply, error) || !rm_json_object(reply, "return", &body, error) ||
        !rm_json_string_opt(body, key, &value, error))
        return FALSE;
    *ret_value = g_strdup(value);
    return TRUE;
}

static gboolean query_vcpus(RmQmp *qmp, json_object **ret_reply, json_object **ret_list, GError **error)
{
    return rm_qmp_run(qmp, "query-cpus-fast", NULL, ret_reply, error) &&
           rm_json_array(*ret_reply, "return", ret_list, error);
}

gboolean rm_facts_vcpu_thread(RmQmp *qmp, pid_t *ret_thread, GError **error)
{
    rm_autojson reply = NULL;
    json_object *list;
    uint64_t thread = 0;
    if (!query_vcpus(qmp, &reply, &list, error))
        return FALSE;
    if (json_object_array_length(list) > 0 &&
        !rm_json_uint(json_object_array_get_idx(list, 0), "thread-id", &thread, error))
        return FALSE;
    *ret_thread = (pid_t)thread;
    return TRUE;
}

/* The QOM path of the first of them. */
static gboolean path_of(json_object *list, char **ret_path, GError **error)
{
    const char *path;
    if (!rm_json_string(json_object_array_get_idx(list, 0), "qom-path", &path, error))
        return FALSE;
    *ret_path = g_strdup(path);
    return TRUE;
}

gboolean rm_facts_vcpu_path(RmQmp *qmp, char **ret_path, GError **error)
{
    rm_autojson reply = NULL;
    json_object *list;
    return query_vcpus(qmp, &reply, &list, error) && path_of(list, ret_path, error);
}

gboolean rm_facts_kvm(RmQmp *qmp, gboolean *ret_kvm, GError **error)
{
    rm_autojson reply = NULL;
    json_object *body;
    return rm_qmp_run(qmp, "query-kvm", NULL, &reply, error) &&
           rm_json_object(reply, "return", &body, error) && rm_json_bool(body, "enabled", ret_kvm, error);
}

static void put(GHashTable *traits, const char *name, char *value)
{
    g_hash_table_insert(traits, g_strdup(name), value);
}

static char *without_suffix(char *text, const char *suffix)
{
    if (g_str_has_suffix(text, suffix))
        text[strlen(text) - strlen(suffix)] = '\0';
    return text;
}

static gboolean query_traits(RmQmp *qmp, GHashTable *traits, GError **error)
{
    rm_autojson reply = NULL;
    json_object *list;
    g_autofree char *machine = NULL, *cpu = NULL, *path = NULL;
    gboolean kvm;
    if (!rm_qom_get_string(qmp, "/machine", "type", &machine, error) ||
        !query_vcpus(qmp, &reply, &list, error) || !path_of(list, &path, error) ||
        !rm_qom_get_string(qmp, path, "type", &cpu, error) || !rm_facts_kvm(qmp, &kvm, error))
        return FALSE;
    put(traits, "machine", without_suffix(g_steal_pointer(&machine), "-machine"));
    put(traits, "cpu", g_steal_pointer(&cpu));
    put(traits, "vcpus", g_strdup_printf("%zu", (size_t)json_object_array_length(list)));
    put(traits, "accelerator",
        g_strdup(kvm ? "kvm" : "other")); /* KVM's clocks and interrupt chips load nowhere else */
    return TRUE;
}

gboolean rm_facts_describe(RmQmp *qmp, pid_t pid, RmGuestInfo **ret_info, GError **error)
{
    g_autoptr(RmGuestInfo) info = g_new0(RmGuestInfo, 1);
    info->pid = pid;
    info->vmm = g_strdup_printf("qemu %s", rm_qmp_version_text(qmp));
    info->traits = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    if (!query_string(qmp, "query-name", "name", &info->name, error) ||
        !query_string(qmp, "query-uuid", "UUID", &info->uuid, error) ||
        !query_traits(qmp, info->traits, error))
        return FALSE;
    if (strspn(info->uuid, "0-") == strlen(info->uuid))
        *info->uuid = '\0';
    *ret_info = g_steal_pointer(&info);
    return TRUE;
}
