/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program's options as they were given: by its configuration file (control/config-file.h) and on its
 * command line.
 *
 * The tables of GOptionEntry stay the only list of what can be given. The command line is run over once with
 * copies of the entries that only note what is there; the file's keys are looked up in the same tables; and
 * what holds of the two is then parsed, checked and stored as any command line is. So an option that is added
 * to a table is a key of the file, too.
 *
 * An option on the command line stands in place of the file's: of one that may be repeated, all of the file's
 * are dropped. A switch that the file sets is undone by --no-NAME. Of --verbose and --quiet either replaces
 * the other.
 */
#pragma once

#include <glib.h>

typedef struct {
    const char *name; /* of the option: a string of its table */
    char *value;      /* NULL: none */
    unsigned line;    /* of the file; 0: the command line */
    gboolean off;     /* --no-NAME */
} RmSetting;

typedef struct {
    char *path;       /* of the file that was read, or NULL */
    GPtrArray *given; /* of RmSetting, in their order; NULL until the first */
} RmSettings;

void rm_settings_clear(RmSettings *settings);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmSettings, rm_settings_clear)

/* Whether an option is a switch (it takes no value), or may be given several times with a value each. */
gboolean rm_option_is_switch(const GOptionEntry *entry);
gboolean rm_option_is_list(const GOptionEntry *entry);
const GOptionEntry *rm_option_find(const GOptionEntry *entries, const char *name);

/* Takes over `value`. */
void rm_settings_add(RmSettings *settings, const char *name, char *value, unsigned line);

/* Notes what the words (the program's name first, NULL-terminated) give; what is no option is refused. Values
 * are not looked at. `entries` ends with one without a name. Reason usage. */
gboolean rm_settings_from_words(RmSettings *settings, const GOptionEntry *entries, char **words,
                                GError **error);

/* The last one of that name, or NULL. */
const RmSetting *rm_settings_find(const RmSettings *settings, const char *name);

/* Puts what `file` has before what `settings` have, but for what these replace, and leaves `file` empty. */
void rm_settings_put_below(RmSettings *settings, RmSettings *file);

/* As words of a command line, `program` first. Caller frees. */
char **rm_settings_words(const RmSettings *settings, const char *program);

/* As a configuration file, with the origin of each as a comment: the options of `entries` but those in `not`
 * (NULL-terminated). Caller frees. */
char *rm_settings_text(const RmSettings *settings, const GOptionEntry *entries, const char *group,
                       const char *const * not );

/* Puts file and line before an error that names an option which the file gave. */
void rm_settings_explain(const RmSettings *settings, GError **error);

/* The names of the options that are given differently in the two, NULL-terminated. Caller frees the array
 * only. */
const char **rm_settings_changes(const RmSettings *one, const RmSettings *other);
