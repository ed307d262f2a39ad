/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Configuration files: refused with a line that there is, or understood; and what is shown of one
 * (--check-config) says the same when it is read again. */
#include "fuzz.h"

#include "common/reason.h"
#include "control/config-file.h"

static gboolean count(const char *name, const char *value, gpointer data, GError **error)
{
    return TRUE;
}

static char *text;
static char **list;
static gboolean on;
static const GOptionEntry entries[] = {
    {"qmp", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &list, "", "PATH"},
    {"exec", 0, 0, G_OPTION_ARG_STRING, &text, "", "COMMAND"},
    {"listen", 0, G_OPTION_FLAG_OPTIONAL_ARG, G_OPTION_ARG_CALLBACK, count, "", "ADDR"},
    {"insecure", 0, 0, G_OPTION_ARG_NONE, &on, "", NULL},
    {"verbose", 'v', G_OPTION_FLAG_NO_ARG, G_OPTION_ARG_CALLBACK, count, "", NULL},
    {"config", 0, 0, G_OPTION_ARG_FILENAME, &text, "", "FILE"},
    {NULL}};
static const char *const not_keys[] = {"config", NULL};
static const RmConfigPlace place = {"rdmamigd.conf", "rdmamigd", not_keys};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *contents = fuzz_text(data, size);
    g_auto(RmSettings) settings = {0}, again = {0};
    g_autoptr(GError) error = NULL;
    if (!rm_config_parse(&settings, "file", contents, &place, entries, not_keys, &error)) {
        g_assert_true(rm_error_reason(error) == RM_REASON_USAGE && g_str_has_prefix(error->message, "file"));
        return 0;
    }
    g_assert_null(rm_settings_find(&settings, "config"));
    g_autofree char *shown = rm_settings_text(&settings, entries, place.group, not_keys);
    if (!rm_config_parse(&again, "file", shown, &place, entries, not_keys, &error))
        g_error("%s in what was shown: %s", error->message, shown);
    g_autofree const char **changes = rm_settings_changes(&settings, &again);
    if (changes[0] != NULL)
        g_error("%s differs in what was shown: %s", changes[0], shown);
    return 0;
}
