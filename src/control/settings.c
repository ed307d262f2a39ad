/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program's options as they were given. */
#include "control/settings.h"

#include "common/reason.h"

#include <string.h>

#define NO "no-"

static void setting_free(gpointer data)
{
    RmSetting *setting = data;
    g_free(setting->value);
    g_free(setting);
}

void rm_settings_clear(RmSettings *settings)
{
    g_clear_pointer(&settings->path, g_free);
    g_clear_pointer(&settings->given, g_ptr_array_unref);
}

gboolean rm_option_is_switch(const GOptionEntry *entry)
{
    return entry->arg == G_OPTION_ARG_NONE ||
           (entry->arg == G_OPTION_ARG_CALLBACK && (entry->flags & G_OPTION_FLAG_NO_ARG) != 0);
}

gboolean rm_option_is_list(const GOptionEntry *entry)
{
    return entry->arg == G_OPTION_ARG_STRING_ARRAY || entry->arg == G_OPTION_ARG_FILENAME_ARRAY;
}

const GOptionEntry *rm_option_find(const GOptionEntry *entries, const char *name)
{
    for (const GOptionEntry *entry = entries; entry->long_name != NULL; entry++) {
        if (strcmp(entry->long_name, name) == 0)
            return entry;
    }
    return NULL;
}

static GPtrArray *list_of(RmSettings *settings)
{
    if (settings->given == NULL)
        settings->given = g_ptr_array_new_with_free_func(setting_free);
    return settings->given;
}

void rm_settings_add(RmSettings *settings, const char *name, char *value, unsigned line)
{
    RmSetting *setting = g_new0(RmSetting, 1);
    *setting = (RmSetting){.name = name, .value = value, .line = line};
    g_ptr_array_add(list_of(settings), setting);
}

static unsigned count(const RmSettings *settings)
{
    return settings->given != NULL ? settings->given->len : 0;
}

static const RmSetting *at(const RmSettings *settings, unsigned i)
{
    return g_ptr_array_index(settings->given, i);
}

typedef struct {
    RmSettings *settings;
    const GOptionEntry *entries;
} Notes;

static const GOptionEntry *find_short(const GOptionEntry *entries, char letter)
{
    const GOptionEntry *entry = entries;
    while (entry->short_name != letter)
        entry++; /* GOption found it there */
    return entry;
}

/* Removes what `name` was given by before. */
static void forget(RmSettings *settings, const char *name)
{
    for (unsigned i = count(settings); i > 0; i--) {
        if (strcmp(at(settings, i - 1)->name, name) == 0)
            g_ptr_array_remove_index(settings->given, i - 1);
    }
}

static gboolean note(const char *option, const char *value, gpointer data, GError **error)
{
    Notes *notes = data;
    gboolean is_long = g_str_has_prefix(option, "--");
    const GOptionEntry *entry =
        is_long ? rm_option_find(notes->entries, option + 2) : find_short(notes->entries, option[1]);
    gboolean off = entry == NULL; /* only these are not in the table themselves */
    if (off) {
        entry = rm_option_find(notes->entries, option + strlen("--" NO));
        forget(notes->settings, entry->long_name);
    }
    rm_settings_add(notes->settings, entry->long_name, g_strdup(value), 0);
    ((RmSetting *)at(notes->settings, count(notes->settings) - 1))->off = off;
    return TRUE;
}

/* Copies of the entries that call note(), with the value as it is in memory: it goes through GOption once
 * more. */
static GArray *noting_entries(const GOptionEntry *entries, GStringChunk *names)
{
    GArray *copies = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));
    for (const GOptionEntry *entry = entries; entry->long_name != NULL; entry++) {
        GOptionEntry copy = *entry;
        copy.arg = G_OPTION_ARG_CALLBACK;
        copy.arg_data = note;
        copy.flags &= G_OPTION_FLAG_OPTIONAL_ARG;
        copy.flags |= rm_option_is_switch(entry) ? G_OPTION_FLAG_NO_ARG : G_OPTION_FLAG_FILENAME;
        g_array_append_val(copies, copy);
        g_autofree char *negation = g_strconcat(NO, entry->long_name, NULL);
        if (!rm_option_is_switch(entry) || rm_option_find(entries, negation) != NULL)
            continue;
        copy.long_name = g_string_chunk_insert(names, negation);
        copy.short_name = '\0';
        g_array_append_val(copies, copy);
    }
    return copies;
}

gboolean rm_settings_from_words(RmSettings *settings, const GOptionEntry *entries, char **words,
                                GError **error)
{
    g_autoptr(GStringChunk) names = g_string_chunk_new(256);
    g_autoptr(GArray) copies = noting_entries(entries, names);
    Notes notes = {settings, entries};
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    GOptionGroup *group = g_option_group_new("main", "", "", &notes, NULL);
    g_option_group_add_entries(group, (const GOptionEntry *)copies->data);
    g_option_context_set_main_group(context, group);
    g_option_context_set_help_enabled(context, FALSE);
    g_auto(GStrv) rest = g_strdupv(words); /* it frees the words that it takes */
    g_autoptr(GError) problem = NULL;
    if (!g_option_context_parse_strv(context, &rest, &problem))
        return rm_fail(error, RM_REASON_USAGE, "%s", problem->message);
    /* Help was asked for: nothing else is to be looked at. */
    return g_strv_length(rest) <= 1 || rm_settings_find(settings, "help") != NULL ||
           rm_fail(error, RM_REASON_USAGE, "unexpected argument `%s`", rest[1]);
}

const RmSetting *rm_settings_find(const RmSettings *settings, const char *name)
{
    for (unsigned i = count(settings); i > 0; i--) {
        if (strcmp(at(settings, i - 1)->name, name) == 0)
            return at(settings, i - 1);
    }
    return NULL;
}

static gboolean replaced(const RmSettings *settings, const char *name)
{
    if (rm_settings_find(settings, name) != NULL)
        return TRUE;
    if (strcmp(name, "verbose") == 0)
        return rm_settings_find(settings, "quiet") != NULL;
    return strcmp(name, "quiet") == 0 && rm_settings_find(settings, "verbose") != NULL;
}

void rm_settings_put_below(RmSettings *settings, RmSettings *file)
{
    GPtrArray *merged = g_ptr_array_new_with_free_func(setting_free);
    while (count(file) > 0) {
        RmSetting *setting = g_ptr_array_steal_index(file->given, 0);
        if (replaced(settings, setting->name))
            setting_free(setting);
        else
            g_ptr_array_add(merged, setting);
    }
    g_ptr_array_extend_and_steal(merged, g_steal_pointer(&settings->given) ?: g_ptr_array_new());
    settings->given = merged;
    g_free(settings->path);
    settings->path = g_steal_pointer(&file->path);
}

char **rm_settings_words(const RmSettings *settings, const char *program)
{
    GPtrArray *words = g_ptr_array_new();
    g_ptr_array_add(words, g_strdup(program));
    for (unsigned i = 0; i < count(settings); i++) {
        const RmSetting *setting = at(settings, i);
        if (setting->off)
            continue;
        g_ptr_array_add(words, setting->value != NULL
                                   ? g_strconcat("--", setting->name, "=", setting->value, NULL)
                                   : g_strconcat("--", setting->name, NULL));
    }
    g_ptr_array_add(words, NULL);
    return (char **)g_ptr_array_free(words, FALSE);
}

/* The values of all that were given by that name; "" stands for none. */
static GPtrArray *values_of(const RmSettings *settings, const char *name)
{
    GPtrArray *values = g_ptr_array_new();
    for (unsigned i = 0; i < count(settings); i++) {
        const RmSetting *setting = at(settings, i);
        if (strcmp(setting->name, name) == 0 && !setting->off)
            g_ptr_array_add(values, setting->value != NULL ? setting->value : (char *)"");
    }
    return values;
}

char *rm_settings_text(const RmSettings *settings, const GOptionEntry *entries, const char *group,
                       const char *const * not )
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    for (const GOptionEntry *entry = entries; entry->long_name != NULL; entry++) {
        const char *name = entry->long_name;
        g_autoptr(GPtrArray) values = values_of(settings, name);
        if (values->len == 0 || g_strv_contains(not, name))
            continue;
        const char *last = g_ptr_array_index(values, values->len - 1);
        if (rm_option_is_list(entry))
            g_key_file_set_string_list(file, group, name, (const char *const *)values->pdata, values->len);
        else if (!rm_option_is_switch(entry))
            g_key_file_set_string(file, group, name, last);
        else if (values->len > 1)
            g_key_file_set_integer(file, group, name, (int)values->len);
        else
            g_key_file_set_boolean(file, group, name, TRUE);
        const RmSetting *setting = rm_settings_find(settings, name);
        g_autofree char *origin = setting->line != 0
                                      ? g_strdup_printf(" %s:%u", settings->path, setting->line)
                                      : g_strdup(" the command line");
        g_key_file_set_comment(file, group, name, origin, NULL);
    }
    gsize length = 0;
    g_autofree char *text = g_key_file_to_data(file, &length, NULL);
    return length > 0 ? g_steal_pointer(&text) : g_strdup_printf("[%s]\n", group);
}

/* Where the message names the option, as a whole word; NULL if it does not. */
static const char *mention(const char *message, const char *name)
{
    g_autofree char *word = g_strconcat("--", name, NULL);
    size_t length = strlen(word);
    for (const char *found = strstr(message, word); found != NULL; found = strstr(found + 1, word)) {
        if (!g_ascii_isalnum(found[length]) && found[length] != '-')
            return found;
    }
    return NULL;
}

void rm_settings_explain(const RmSettings *settings, GError **error)
{
    if (error == NULL || *error == NULL)
        return;
    const char *first = NULL;
    const RmSetting *culprit = NULL;
    for (unsigned i = 0; i < count(settings); i++) {
        const RmSetting *setting = at(settings, i);
        const char *found = setting->line != 0 ? mention((*error)->message, setting->name) : NULL;
        if (found != NULL && (first == NULL || found < first)) {
            first = found;
            culprit = setting;
        }
    }
    if (culprit != NULL)
        g_prefix_error(error, "%s:%u: ", settings->path, culprit->line);
}

static gboolean same(const RmSettings *one, const RmSettings *other, const char *name)
{
    g_autoptr(GPtrArray) before = values_of(one, name), after = values_of(other, name);
    gboolean equal = before->len == after->len;
    for (unsigned i = 0; equal && i < before->len; i++)
        equal = strcmp(g_ptr_array_index(before, i), g_ptr_array_index(after, i)) == 0;
    return equal;
}

const char **rm_settings_changes(const RmSettings *one, const RmSettings *other)
{
    GPtrArray *names = g_ptr_array_new();
    for (unsigned i = 0; i < count(one) + count(other); i++) {
        const char *name = i < count(one) ? at(one, i)->name : at(other, i - count(one))->name;
        if (!same(one, other, name) && !g_ptr_array_find_with_equal_func(names, name, g_str_equal, NULL))
            g_ptr_array_add(names, (char *)name);
    }
    g_ptr_array_add(names, NULL);
    return (const char **)g_ptr_array_free(names, FALSE);
}
