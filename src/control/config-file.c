/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The configuration file of a program. */
#include "control/config-file.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MAX (1 << 20) /* bytes; more is no configuration */
#define REPEATS_MAX 9      /* of a switch that counts: --verbose */

char *rm_config_dir(void)
{
    const char *dir = g_getenv("RDMAMIG_CONFIG_DIR");
    return g_strdup(dir != NULL && *dir != '\0' ? dir : RM_CONFIG_DIR);
}

/* Its --exec is run by root: whoever may write the file is root. */
static gboolean check_file(const char *path, int fd, size_t *ret_size, GError **error)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return rm_set_errno(error, RM_REASON_USAGE, errno, "cannot look at %s", path);
    if (!S_ISREG(status.st_mode))
        return rm_fail(error, RM_REASON_USAGE, "%s is not a regular file; --config names one", path);
    if (status.st_size > FILE_MAX)
        return rm_fail(error, RM_REASON_USAGE, "%s has more than 1 MiB: that is no configuration file", path);
    if (geteuid() == 0 && (status.st_uid != 0 || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0))
        return rm_fail(
            error, RM_REASON_USAGE,
            "%s can be written by others than root (owner %u, mode %04o), and says what root runs: "
            "chown root and chmod go-w it",
            path, status.st_uid, status.st_mode & 07777);
    *ret_size = (size_t)status.st_size;
    return TRUE;
}

static char *load(const char *path, GError **error)
{
    /* A FIFO must not block before it is refused. */
    rm_autofd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t size = 0, length = 0;
    if (fd < 0) {
        rm_set_errno(error, RM_REASON_USAGE, errno,
                     "cannot read the configuration file %s (--no-config does without)", path);
        return NULL;
    }
    if (!check_file(path, fd, &size, error))
        return NULL;
    g_autofree char *text = g_malloc(size + 1);
    while (length < size) {
        ssize_t got = read(fd, text + length, size - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            rm_set_errno(error, RM_REASON_USAGE, errno, "cannot read %s", path);
            return NULL;
        }
        if (got == 0)
            break;
        length += (size_t)got;
    }
    text[length] = '\0';
    if (strlen(text) != length) {
        rm_fail(error, RM_REASON_USAGE, "%s has a zero byte: it is no text", path);
        return NULL;
    }
    return g_steal_pointer(&text);
}

/* GKeyFile tells no lines. Runs over the text as it does. */
typedef struct {
    char **lines;
    unsigned number;     /* of the current line, from 1 */
    const char *current; /* its text, without blanks at its ends */
    char *group;
} Cursor;

static void cursor_clear(Cursor *cursor)
{
    g_strfreev(cursor->lines);
    g_free(cursor->group);
}

/* To the next line that is neither blank nor a comment. */
static gboolean cursor_next(Cursor *cursor)
{
    while (cursor->lines[cursor->number] != NULL) {
        cursor->current = g_strstrip(cursor->lines[cursor->number++]);
        size_t length = strlen(cursor->current);
        if (cursor->current[0] == '[' && cursor->current[length - 1] == ']') {
            g_free(cursor->group);
            cursor->group = g_strndup(cursor->current + 1, length - 2);
        }
        if (length > 0 && cursor->current[0] != '#')
            return TRUE;
    }
    return FALSE;
}

static gboolean cursor_has_key(const Cursor *cursor, const char *key)
{
    size_t length = strlen(key);
    return strncmp(cursor->current, key, length) == 0 &&
           cursor->current[length + strspn(cursor->current + length, " \t\r\f\v")] == '=';
}

/* The first line that GKeyFile would not take; 0: none was found. */
static unsigned bad_line(const char *text)
{
    __attribute__((cleanup(cursor_clear))) Cursor cursor = {.lines = g_strsplit(text, "\n", -1)};
    while (cursor_next(&cursor)) {
        gboolean is_group = cursor.current[0] == '[';
        if (is_group
                ? !g_str_has_suffix(cursor.current, "]")
                : cursor.group == NULL || strchr(cursor.current, '=') == NULL || cursor.current[0] == '=')
            return cursor.number;
    }
    return 0;
}

/* The line of the key's or, if it is NULL, the group's (n + 1)th occurrence; 0: there is none. */
static unsigned line_of(const char *text, const char *group, const char *key, unsigned n)
{
    __attribute__((cleanup(cursor_clear))) Cursor cursor = {.lines = g_strsplit(text, "\n", -1)};
    while (cursor_next(&cursor)) {
        gboolean here = cursor.group != NULL && strcmp(cursor.group, group) == 0;
        if (here && (key == NULL || cursor_has_key(&cursor, key)) && n-- == 0)
            return cursor.number;
    }
    return 0;
}

/* What it takes to make `b` of `a` (Levenshtein): a letter that was left out costs less than a wrong one, so
 * that half a name is near to the whole. */
static unsigned distance(const char *a, const char *b)
{
    size_t width = strlen(b) + 1;
    g_autofree unsigned *row = g_new(unsigned, width);
    for (size_t j = 0; j < width; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        unsigned diagonal = row[0];
        row[0] += 2;
        for (size_t j = 1; j < width; j++) {
            unsigned above = row[j];
            row[j] = MIN(MIN(above + 2, row[j - 1] + 1), diagonal + (a[i] != b[j - 1] ? 2 : 0));
            diagonal = above;
        }
    }
    return row[width - 1];
}

/* One file being read. */
typedef struct {
    const char *path, *text;
    const RmConfigPlace *place;
    const GOptionEntry *entries;
    const char *const *not_keys; /* besides the place's */
    GKeyFile *file;
    RmSettings *settings;
} Reader;

static gboolean is_key(const Reader *reader, const char *name)
{
    return !g_strv_contains(reader->not_keys, name) &&
           (reader->place->not_keys == NULL || !g_strv_contains(reader->place->not_keys, name));
}

static const char *nearest_key(const Reader *reader, const char *key)
{
    const char *nearest = NULL;
    unsigned least = UINT_MAX;
    for (const GOptionEntry *entry = reader->entries; entry->long_name != NULL; entry++) {
        unsigned far = is_key(reader, entry->long_name) ? distance(key, entry->long_name) : UINT_MAX;
        if (far < least) {
            least = far;
            nearest = entry->long_name;
        }
    }
    return nearest;
}

/* Switches that count may have a number. */
static gboolean add_switch(const Reader *reader, const GOptionEntry *entry, const char *value, unsigned line,
                           GError **error)
{
    unsigned times = 0;
    gboolean counts = entry->arg == G_OPTION_ARG_CALLBACK;
    if (strcmp(value, "true") == 0)
        times = 1;
    else if (g_ascii_isdigit(value[0]) && value[1] == '\0' && value[0] - '0' <= (counts ? REPEATS_MAX : 1))
        times = (unsigned)(value[0] - '0');
    else if (strcmp(value, "false") != 0)
        return rm_fail(error, RM_REASON_USAGE, "%s:%u: %s is true or false%s, not `%s`", reader->path, line,
                       entry->long_name, counts ? " or a number" : "", value);
    for (unsigned i = 0; i < times; i++)
        rm_settings_add(reader->settings, entry->long_name, NULL, line);
    return TRUE;
}

/* Of an option with a value. */
static gboolean add_value(const Reader *reader, const GOptionEntry *entry, const char *value, unsigned line,
                          GError **error)
{
    if (*value == '\0' && (entry->flags & G_OPTION_FLAG_OPTIONAL_ARG) == 0)
        return rm_fail(error, RM_REASON_USAGE,
                       "%s:%u: %s has no value; put a # before the line if it is not wanted", reader->path,
                       line, entry->long_name);
    if (!g_str_is_ascii(value) && !g_get_charset(NULL))
        return rm_fail(error, RM_REASON_USAGE,
                       "%s:%u: %s is not plain ASCII, and the locale is not UTF-8: set LC_ALL=C.UTF-8",
                       reader->path, line, entry->long_name);
    rm_settings_add(reader->settings, entry->long_name, *value != '\0' ? g_strdup(value) : NULL, line);
    return TRUE;
}

/* The key's values, one unless it is a list; not to be looked at if `error` is set. */
static char **values_of(const Reader *reader, const GOptionEntry *entry, GError **error)
{
    const char *group = reader->place->group;
    if (rm_option_is_list(entry))
        return g_key_file_get_string_list(reader->file, group, entry->long_name, NULL, error);
    char *value = g_key_file_get_string(reader->file, group, entry->long_name, error);
    if (value == NULL)
        return NULL;
    char **values = g_new0(char *, 2);
    values[0] = value;
    return values;
}

static gboolean add_key(const Reader *reader, const GOptionEntry *entry, unsigned line, GError **error)
{
    g_autoptr(GError) problem = NULL;
    g_auto(GStrv) values = values_of(reader, entry, &problem);
    if (problem != NULL) /* there may be half a value, all the same */
        return rm_fail(error, RM_REASON_USAGE,
                       "%s:%u: the value of %s has a \\ in it that is to be written \\\\", reader->path, line,
                       entry->long_name);
    if (values[0] == NULL) /* a list of none */
        return add_value(reader, entry, "", line, error);
    for (char **value = values; *value != NULL; value++) {
        g_strstrip(*value);
        if (!(rm_option_is_switch(entry) ? add_switch(reader, entry, *value, line, error)
                                         : add_value(reader, entry, *value, line, error)))
            return FALSE;
    }
    return TRUE;
}

static gboolean read_key(const Reader *reader, const char *key, GError **error)
{
    const char *group = reader->place->group;
    unsigned line = line_of(reader->text, group, key, 0), again = line_of(reader->text, group, key, 1);
    const GOptionEntry *entry = rm_option_find(reader->entries, key);
    if (entry == NULL)
        return rm_fail(error, RM_REASON_USAGE, "%s:%u: unknown key `%s`; the nearest one is `%s`",
                       reader->path, line, key, nearest_key(reader, key));
    if (!is_key(reader, key))
        return rm_fail(error, RM_REASON_USAGE, "%s:%u: `%s` is for the command line only", reader->path, line,
                       key);
    if (again != 0)
        return rm_fail(
            error, RM_REASON_USAGE, "%s:%u: %s is given in line %u already%s", reader->path, again, key, line,
            rm_option_is_list(entry) ? "; several values go in one line, with `;` in between" : "");
    return add_key(reader, entry, line, error);
}

static gboolean read_groups(const Reader *reader, GError **error)
{
    g_auto(GStrv) groups = g_key_file_get_groups(reader->file, NULL);
    for (char **group = groups; *group != NULL; group++) {
        if (strcmp(*group, reader->place->group) != 0)
            return rm_fail(error, RM_REASON_USAGE, "%s:%u: unknown group [%s]; there is only [%s]",
                           reader->path, line_of(reader->text, *group, NULL, 0), *group,
                           reader->place->group);
    }
    g_auto(GStrv) keys = g_key_file_get_keys(reader->file, reader->place->group, NULL, NULL);
    for (char **key = keys; key != NULL && *key != NULL; key++) {
        if (!read_key(reader, *key, error))
            return FALSE;
    }
    return TRUE;
}

gboolean rm_config_parse(RmSettings *settings, const char *path, const char *text, const RmConfigPlace *place,
                         const GOptionEntry *entries, const char *const *not_keys, GError **error)
{
    g_autoptr(GKeyFile) file = g_key_file_new();
    g_autoptr(GError) problem = NULL;
    const char *end;
    if (!g_utf8_validate(text, -1, &end)) {
        unsigned line = 1;
        for (const char *at = text; at < end; at++)
            line += *at == '\n';
        return rm_fail(error, RM_REASON_USAGE, "%s:%u: there are bytes in it that are no UTF-8", path, line);
    }
    if (!g_key_file_load_from_data(file, text, strlen(text), G_KEY_FILE_NONE, &problem)) {
        unsigned line = bad_line(text);
        return line != 0 ? rm_fail(error, RM_REASON_USAGE,
                                   "%s:%u: neither [%s] nor KEY = VALUE below it, nor a # with a comment",
                                   path, line, place->group)
                         : rm_fail(error, RM_REASON_USAGE, "%s: %s", path, problem->message);
    }
    g_free(settings->path);
    settings->path = g_strdup(path);
    const Reader reader = {path, text, place, entries, not_keys, file, settings};
    return read_groups(&reader, error);
}

gboolean rm_config_read(RmSettings *settings, const char *path, const RmConfigPlace *place,
                        const GOptionEntry *entries, const char *const *not_keys, GError **error)
{
    g_autofree char *text = load(path, error);
    return text != NULL && rm_config_parse(settings, path, text, place, entries, not_keys, error);
}
