/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Command lines of both daemons. */
#include "control/command-line.h"

#include "common/reason.h"
#include "common/size.h"
#include "memory/chunk.h"

#include <errno.h>
#include <unistd.h>

static gboolean count_verbose(const char *name, const char *value, gpointer data, GError **error)
{
    RmCommandLine *line = data;
    line->debug = line->verbose;
    line->verbose = TRUE;
    return TRUE;
}

/* These are no keys of a file. */
static const char *const words_only[] = {"help", "version", "config", "no-config", "check-config", NULL};

/* All options of the program in one table: its own, the common ones, and, if it has a file, those about it.
 * Texts of the table live in `strings`. */
static GArray *all_entries(RmCommandLine *line, const RmConfigPlace *place, const GOptionEntry *entries,
                           GStringChunk *strings)
{
    const GOptionEntry common[] = {
        {"rdma-device", 0, 0, G_OPTION_ARG_STRING, &line->rdma_device,
         "RDMA device to use (that of the route)", "DEV[:PORT]"},
        {"gid-index", 0, 0, G_OPTION_ARG_STRING, &line->gid_index, "GID of that device (rdma_cm's choice)",
         "N"},
        {"rdma-ack-timeout", 0, 0, G_OPTION_ARG_STRING, &line->ack_timeout,
         "wait 4.096 us * 2^N for an acknowledgement (source: by the time-out; destination: the system's)",
         "N"},
        {"tos", 0, 0, G_OPTION_ARG_STRING, &line->tos,
         "TOS or traffic class of the data channels (the system's)", "N"},
        {"tls-creds", 0, 0, G_OPTION_ARG_FILENAME, &line->tls_creds,
         "TLS with the certificates in this folder; RAM over rdma is not encrypted (no TLS)", "DIR"},
        {"plain-data", 0, 0, G_OPTION_ARG_NONE, &line->plain_data,
         "with TLS: RAM over tcp in clear, if both ends have this option", NULL},
        {"verbose", 'v', G_OPTION_FLAG_NO_ARG, G_OPTION_ARG_CALLBACK, count_verbose, "say more; twice: debug",
         NULL},
        {"quiet", 'q', 0, G_OPTION_ARG_NONE, &line->quiet, "warnings and errors only", NULL},
        {"help", 'h', 0, G_OPTION_ARG_NONE, &line->help, "show this help (defaults in parentheses)", NULL}};
    GArray *all = g_array_new(TRUE, TRUE, sizeof(GOptionEntry));
    for (const GOptionEntry *entry = entries; entry->long_name != NULL; entry++)
        g_array_append_val(all, *entry);
    g_array_append_vals(all, common, G_N_ELEMENTS(common));
    if (place == NULL)
        return all;
    g_autofree char *dir = rm_config_dir();
    g_autofree char *about = g_strdup_printf("options from this file (%s/%s)", dir, place->file);
    const GOptionEntry of_file[] = {
        {"config", 0, 0, G_OPTION_ARG_FILENAME, &line->config, g_string_chunk_insert(strings, about), "FILE"},
        {"no-config", 0, 0, G_OPTION_ARG_NONE, &line->no_config, "from no file", NULL},
        {"check-config", 0, 0, G_OPTION_ARG_NONE, &line->check_config,
         "check options and file, show what holds, and do nothing", NULL}};
    g_array_append_vals(all, of_file, G_N_ELEMENTS(of_file));
    return all;
}

/* Adds what the file gives, if there is one: that of --config must be there, the usual one need not. */
static gboolean add_file(RmCommandLine *line, const RmConfigPlace *place, const GOptionEntry *entries,
                         GError **error)
{
    g_auto(RmSettings) file = {0};
    const RmSetting *config = rm_settings_find(&line->settings, "config");
    const RmSetting *none = rm_settings_find(&line->settings, "no-config");
    if (rm_settings_find(&line->settings, "help") != NULL ||
        rm_settings_find(&line->settings, "version") != NULL)
        return TRUE;
    if (none != NULL && config != NULL && *config->value != '\0')
        return rm_fail(error, RM_REASON_USAGE, "--no-config contradicts --config %s", config->value);
    if (none != NULL || (config != NULL && *config->value == '\0'))
        return TRUE;
    g_autofree char *dir = rm_config_dir();
    g_autofree char *path =
        config != NULL ? g_strdup(config->value) : g_build_filename(dir, place->file, NULL);
    if (config == NULL && access(path, F_OK) != 0 && errno == ENOENT)
        return TRUE;
    if (!rm_config_read(&file, path, place, entries, words_only, error))
        return FALSE;
    rm_settings_put_below(&line->settings, &file);
    return TRUE;
}

gboolean rm_command_line_parse(RmCommandLine *line, const RmConfigPlace *place, const GOptionEntry *entries,
                               const char *summary, char **words, char **ret_text, GError **error)
{
    g_autoptr(GStringChunk) strings = g_string_chunk_new(256);
    g_autoptr(GArray) all = all_entries(line, place, entries, strings);
    const GOptionEntry *table = (const GOptionEntry *)all->data;
    if (!rm_settings_from_words(&line->settings, table, words, error) ||
        (place != NULL && !add_file(line, place, table, error)))
        return FALSE;
    g_autoptr(GOptionContext) context = g_option_context_new(NULL);
    GOptionGroup *group = g_option_group_new("main", "", "", line, NULL);
    g_option_group_add_entries(group, table);
    g_option_context_set_main_group(context, group);
    g_option_context_set_help_enabled(context, FALSE);
    g_option_context_set_summary(context, summary);
    g_auto(GStrv) merged = rm_settings_words(&line->settings, words[0]);
    g_autoptr(GError) problem = NULL;
    if (!g_option_context_parse_strv(context, &merged, &problem)) {
        rm_fail(error, RM_REASON_USAGE, "%s", problem->message);
        rm_settings_explain(&line->settings, error);
        return FALSE;
    }
    if (line->help)
        *ret_text = g_option_context_get_help(context, TRUE, NULL);
    else if (line->check_config)
        line->checked = rm_settings_text(&line->settings, table, place->group, words_only);
    return TRUE;
}

gboolean rm_command_line_common(RmCommandLine *line, RmCommonOptions *ret_options, GError **error)
{
    uint64_t gid_index = 0;
    RmPacketOptions packets = {0};
    /* An exponent of 0 stands for no time-out: a packet that is lost would never be sent again. */
    if (!rm_option_uint("--gid-index", line->gid_index, 0, 255, &gid_index, error) ||
        !rm_option_choice("--rdma-ack-timeout", line->ack_timeout, 1, 31, &packets.ack_timeout, error) ||
        !rm_option_choice("--tos", line->tos, 0, 255, &packets.tos, error))
        return FALSE;
    if (line->tls_creds != NULL && *line->tls_creds == '\0')
        return rm_fail(error, RM_REASON_USAGE, "--tls-creds names no folder");
    if (line->plain_data && line->tls_creds == NULL)
        return rm_fail(error, RM_REASON_USAGE,
                       "--plain-data leaves RAM out of TLS, and there is no TLS without --tls-creds");
    *ret_options = (RmCommonOptions){
        .rdma_device = g_steal_pointer(&line->rdma_device),
        .tls_creds = line->tls_creds != NULL ? g_canonicalize_filename(line->tls_creds, NULL) : NULL,
        .plain_data = line->plain_data,
        .gid_index = line->gid_index != NULL ? (int)gid_index : -1,
        .packets = packets,
        .verbosity = line->quiet     ? -1
                     : line->debug   ? 2
                     : line->verbose ? 1
                                     : 0,
    };
    return TRUE;
}

void rm_command_line_clear(RmCommandLine *line)
{
    g_clear_pointer(&line->gid_index, g_free);
    g_clear_pointer(&line->ack_timeout, g_free);
    g_clear_pointer(&line->tos, g_free);
    g_clear_pointer(&line->rdma_device, g_free);
    g_clear_pointer(&line->tls_creds, g_free);
    g_clear_pointer(&line->config, g_free);
    g_clear_pointer(&line->checked, g_free);
    rm_settings_clear(&line->settings);
}

void rm_common_options_clear(RmCommonOptions *options)
{
    g_clear_pointer(&options->rdma_device, g_free);
    g_clear_pointer(&options->tls_creds, g_free);
}

gboolean rm_option_blame(const char *option, const GError *problem, GError **error)
{
    gboolean named = g_str_has_prefix(problem->message, "--");
    return rm_fail(error, RM_REASON_USAGE, "%s%s%s", named ? "" : option, named ? "" : ": ",
                   problem->message);
}

gboolean rm_option_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value,
                        GError **error)
{
    if (text == NULL || rm_parse_uint(text, min, max, value, error))
        return TRUE;
    g_prefix_error(error, "%s: ", option);
    return FALSE;
}

gboolean rm_option_choice(const char *option, const char *text, uint8_t min, uint8_t max, RmChoice *choice,
                          GError **error)
{
    uint64_t value = 0;
    if (!rm_option_uint(option, text, min, max, &value, error))
        return FALSE;
    if (text != NULL)
        *choice = (RmChoice){TRUE, (uint8_t)value};
    return TRUE;
}

gboolean rm_option_chunk_size(const char *option, const char *text, uint64_t *value, GError **error)
{
    if (text == NULL)
        return TRUE;
    if (!rm_parse_size(text, value, error)) {
        g_prefix_error(error, "%s: ", option);
        return FALSE;
    }
    return rm_chunk_size_valid(*value) ||
           rm_fail(error, RM_REASON_USAGE, "%s: %s is not a power of two from 1M to 1G", option, text);
}
