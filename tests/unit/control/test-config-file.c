/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Configuration files: what is read, what is refused, and what the command line replaces. */
#include "control/command-line.h"

#include "common/reason.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *const not_keys[] = {"secret", NULL};
static const RmConfigPlace place = {"fruit.conf", "fruit", not_keys};
static char *folder; /* RDMAMIG_CONFIG_DIR */

/* What a program of this table ends with. */
typedef struct {
    RmCommandLine line;
    char *kind, *secret;
    char **baskets, **paths;
    gboolean ripe, open;
    char *where;
    char *text, *message;
} Fruit;

static gboolean take_open(const char *name, const char *value, gpointer data, GError **error)
{
    Fruit *fruit = data;
    fruit->open = TRUE;
    g_free(fruit->where);
    fruit->where = g_strdup(value);
    return TRUE;
}

static void fruit_clear(Fruit *fruit)
{
    rm_command_line_clear(&fruit->line);
    g_free(fruit->kind);
    g_free(fruit->secret);
    g_strfreev(fruit->baskets);
    g_strfreev(fruit->paths);
    g_free(fruit->where);
    g_free(fruit->text);
    g_free(fruit->message);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Fruit, fruit_clear)

static char *default_path(void)
{
    return g_build_filename(folder, "fruit.conf", NULL);
}

/* Writes the usual file, or removes it (NULL). */
static void write_file(const char *contents)
{
    g_autofree char *path = default_path();
    if (contents == NULL)
        g_unlink(path);
    else
        g_assert_true(g_file_set_contents(path, contents, -1, NULL) && chmod(path, 0644) == 0);
}

/* `words` are separated by blanks. */
static gboolean run(Fruit *fruit, const char *words)
{
    const GOptionEntry entries[] = {
        {"kind", 'k', 0, G_OPTION_ARG_STRING, &fruit->kind, "which", "NAME"},
        {"secret", 0, 0, G_OPTION_ARG_STRING, &fruit->secret, "none of the file's", "NAME"},
        {"basket", 0, 0, G_OPTION_ARG_STRING_ARRAY, &fruit->baskets, "where", "NAME"},
        {"path", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &fruit->paths, "where", "PATH"},
        {"ripe", 0, 0, G_OPTION_ARG_NONE, &fruit->ripe, "or not", NULL},
        {"open", 0, G_OPTION_FLAG_OPTIONAL_ARG, G_OPTION_ARG_CALLBACK, take_open, "wide", "WHERE"},
        {NULL}};
    g_auto(GStrv) list = g_strsplit(words, " ", -1);
    g_autoptr(GError) error = NULL;
    RmCommonOptions options = {0};
    gboolean ok =
        rm_command_line_parse(&fruit->line, &place, entries, "Summary.", list, &fruit->text, &error) &&
        rm_command_line_common(&fruit->line, &options, &error);
    rm_common_options_clear(&options);
    if (!ok) {
        rm_settings_explain(&fruit->line.settings, &error);
        g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
        fruit->message = g_strdup(error->message);
    }
    return ok;
}

static char *joined(char **list)
{
    return list != NULL ? g_strjoinv("|", list) : g_strdup("");
}

static void test_values(void)
{
    g_auto(Fruit) fruit = {0};
    write_file("# comment\n\n [fruit] \n  kind = green pear \nripe=true\nbasket = a; b c ;d\n"
               "path = /x\\;y;/z\nopen =\nverbose = 2\ntos = 8\n");
    g_assert_true(run(&fruit, "p"));
    g_autofree char *baskets = joined(fruit.baskets), *paths = joined(fruit.paths);
    g_assert_cmpstr(fruit.kind, ==, "green pear");
    g_assert_cmpstr(baskets, ==, "a|b c|d");
    g_assert_cmpstr(paths, ==, "/x;y|/z");
    g_assert_true(fruit.ripe && fruit.open && fruit.line.debug);
    g_assert_null(fruit.where);
    g_assert_cmpstr(fruit.line.tos, ==, "8");
    g_assert_null(fruit.text);
}

static void test_false(void)
{
    g_auto(Fruit) fruit = {0};
    write_file("[fruit]\nripe = false\nverbose = 0\nopen = here\n");
    g_assert_true(run(&fruit, "p"));
    g_assert_true(!fruit.ripe && !fruit.line.verbose);
    g_assert_cmpstr(fruit.where, ==, "here");
}

static void test_replaced(void)
{
    const struct {
        const char *words, *kind, *baskets;
        gboolean ripe, verbose, quiet;
    } cases[] = {
        {"p", "pear", "a|b", TRUE, TRUE, FALSE},
        {"p -k plum", "plum", "a|b", TRUE, TRUE, FALSE},
        {"p --kind=plum --basket=c", "plum", "c", TRUE, TRUE, FALSE},
        {"p --basket c --basket d", "pear", "c|d", TRUE, TRUE, FALSE},
        {"p --no-ripe", "pear", "a|b", FALSE, TRUE, FALSE},
        {"p --no-ripe --ripe", "pear", "a|b", TRUE, TRUE, FALSE},
        {"p --ripe --no-ripe", "pear", "a|b", FALSE, TRUE, FALSE},
        {"p -q", "pear", "a|b", TRUE, FALSE, TRUE},
        {"p --no-verbose", "pear", "a|b", TRUE, FALSE, FALSE},
        {"p --no-config", NULL, "", FALSE, FALSE, FALSE},
        {"p --config=", NULL, "", FALSE, FALSE, FALSE},
    };
    write_file("[fruit]\nkind = pear\nbasket = a;b\nripe = true\nverbose = true\n");
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(Fruit) fruit = {0};
        g_test_message("%s", cases[i].words);
        g_assert_true(run(&fruit, cases[i].words));
        g_autofree char *baskets = joined(fruit.baskets);
        g_assert_cmpstr(fruit.kind, ==, cases[i].kind);
        g_assert_cmpstr(baskets, ==, cases[i].baskets);
        g_assert_cmpint(fruit.ripe, ==, cases[i].ripe);
        g_assert_cmpint(fruit.line.verbose, ==, cases[i].verbose);
        g_assert_cmpint(fruit.line.quiet, ==, cases[i].quiet);
    }
}

static void test_place(void)
{
    g_auto(Fruit) none = {0}, named = {0}, missing = {0}, contradicting = {0};
    g_autofree char *path = g_build_filename(folder, "other.conf", NULL);
    g_autofree char *words = g_strdup_printf("p --config %s", path);
    write_file(NULL);
    g_assert_true(run(&none, "p"));
    g_assert_null(none.kind);
    g_assert_false(run(&missing, words));
    g_assert_nonnull(strstr(missing.message, path));
    g_assert_true(g_file_set_contents(path, "[fruit]\nkind=fig\n", -1, NULL));
    write_file("[fruit]\nkind=pear\n");
    g_assert_true(run(&named, words));
    g_assert_cmpstr(named.kind, ==, "fig");
    g_autofree char *both = g_strconcat(words, " --no-config", NULL);
    g_assert_false(run(&contradicting, both));
    g_unlink(path);
}

/* A file that is wrong must not be in the way of these. */
static void test_help(void)
{
    g_auto(Fruit) fruit = {0};
    write_file("nonsense\n");
    g_assert_true(run(&fruit, "p --help"));
    g_assert_nonnull(strstr(fruit.text, "--config=FILE"));
    g_assert_nonnull(strstr(fruit.text, folder));
    g_assert_null(strstr(fruit.text, "--no-ripe"));
}

static void test_refused(void)
{
    const struct {
        const char *contents, *pattern;
    } cases[] = {
        {"[fruit]\nkinds = pear\n", "*fruit.conf:2: unknown key `kinds`*`kind`*"},
        {"[fruit]\nripe = true\nrip = true\n", "*fruit.conf:3: unknown key `rip`*`ripe`*"},
        {"[fruit]\nack-timeout = 3\n", "*fruit.conf:2: *`rdma-ack-timeout`*"},
        {"[fruit]\nsecret = x\n", "*fruit.conf:2: `secret` is for the command line only*"},
        {"[fruit]\nconfig = x\n", "*fruit.conf:2: `config` is for the command line only*"},
        {"[fruit]\nhelp = true\n", "*fruit.conf:2: *command line only*"},
        {"[fruit]\n\n#\nripe = maybe\n", "*fruit.conf:4: ripe is true or false, not `maybe`"},
        {"[fruit]\nripe = 2\n", "*fruit.conf:2: ripe is true or false, not `2`"},
        {"[fruit]\nverbose = -1\n", "*fruit.conf:2: verbose is true or false or a number, not `-1`"},
        {"[fruit]\nkind =\n", "*fruit.conf:2: kind has no value*"},
        {"[fruit]\nbasket =\n", "*fruit.conf:2: basket has no value*"},
        {"[fruit]\nbasket = a;;b\n", "*fruit.conf:2: basket has no value*"},
        {"[fruit]\nbasket = a\nbasket = b\n", "*fruit.conf:3: basket is given in line 2 already*`;`*"},
        {"[fruit]\nkind = a\n\nkind = a\n", "*fruit.conf:4: kind is given in line 2 already"},
        {"[fruit]\nkind = \\q\n", "*fruit.conf:2: *"},
        {"[fruit]\nkind = \xff\n", "*fruit.conf:2: *UTF-8*"},
        {"[fruit]\nkind\n", "*fruit.conf:2: neither *KEY = VALUE*"},
        {"kind = pear\n", "*fruit.conf:1: neither ?fruit?*"},
        {"[fruit\nkind = pear\n", "*fruit.conf:1: neither *"},
        {"[fruit]\nkind = pear\n[other]\n", "*fruit.conf:3: unknown group ?other?*?fruit?"},
        {"[fruit]\nkind = pear\ntos = 256\n", "*fruit.conf:3: --tos: *from 0 to 255*"},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(Fruit) fruit = {0};
        write_file(cases[i].contents);
        g_test_message("%s", cases[i].pattern);
        g_assert_false(run(&fruit, "p"));
        g_test_message("%s", fruit.message);
        g_assert_true(g_pattern_match_simple(cases[i].pattern, fruit.message));
        g_assert_null(strchr(fruit.message, '\n'));
    }
}

/* What the command line gives itself is not the file's fault. */
static void test_blame(void)
{
    g_auto(Fruit) fruit = {0};
    write_file("[fruit]\ntos = 8\n");
    g_assert_false(run(&fruit, "p --tos 256"));
    g_assert_true(g_str_has_prefix(fruit.message, "--tos: "));
}

static void test_strange_files(void)
{
    g_autofree char *path = default_path();
    g_auto(Fruit) fifo = {0}, huge = {0}, zero = {0}, open = {0};
    write_file(NULL);
    g_assert_cmpint(mkfifo(path, 0600), ==, 0);
    g_assert_false(run(&fifo, "p"));
    g_assert_nonnull(strstr(fifo.message, "regular"));
    g_unlink(path);
    g_autofree char *big = g_strnfill(2 << 20, '#');
    write_file(big);
    g_assert_false(run(&huge, "p"));
    g_assert_nonnull(strstr(huge.message, "1 MiB"));
    g_assert_true(g_file_set_contents(path, "[fruit]\n\0kind=pear\n", 19, NULL));
    g_assert_false(run(&zero, "p"));
    g_assert_nonnull(strstr(zero.message, "zero byte"));
    if (geteuid() != 0) {
        g_test_message("not root: whose the file is does not matter");
        return;
    }
    write_file("[fruit]\n");
    g_assert_cmpint(chmod(path, 0664), ==, 0);
    g_assert_false(run(&open, "p"));
    g_assert_nonnull(strstr(open.message, "chmod go-w"));
}

/* What is shown is a file that says the same. */
static void test_shown(void)
{
    g_auto(Fruit) first = {0}, second = {0};
    write_file("[fruit]\nkind = pear\nbasket = a\\;b;c\nripe = true\nverbose = 2\nopen =\n");
    g_assert_true(run(&first, "p --check-config --kind plum --no-ripe"));
    g_assert_nonnull(strstr(first.line.checked, "[fruit]\n"));
    g_assert_nonnull(strstr(first.line.checked, "# the command line\nkind=plum\n"));
    g_assert_nonnull(strstr(first.line.checked, "fruit.conf:3\nbasket="));
    g_assert_null(strstr(first.line.checked, "ripe"));
    g_assert_null(strstr(first.line.checked, "check-config"));
    write_file(first.line.checked);
    g_assert_true(run(&second, "p"));
    g_autofree char *baskets = joined(second.baskets);
    g_assert_cmpstr(second.kind, ==, "plum");
    g_assert_cmpstr(baskets, ==, "a;b|c");
    g_assert_true(second.line.debug && second.open && !second.ripe);
}

static void test_changes(void)
{
    g_auto(Fruit) first = {0}, second = {0};
    write_file("[fruit]\nkind = pear\nbasket = a;b\nripe = true\n");
    g_assert_true(run(&first, "p"));
    write_file("[fruit]\nkind = pear\nbasket = a\nverbose = true\n");
    g_assert_true(run(&second, "p"));
    g_autofree const char **changed = rm_settings_changes(&first.line.settings, &second.line.settings);
    g_autofree char *names = g_strjoinv(",", (char **)changed);
    g_assert_cmpstr(names, ==, "basket,ripe,verbose");
    g_autofree const char **none = rm_settings_changes(&second.line.settings, &second.line.settings);
    g_assert_null(none[0]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("rdmamig-config-XXXXXX", NULL);
    g_assert_nonnull(folder);
    g_setenv("RDMAMIG_CONFIG_DIR", folder, TRUE);
    g_test_add_func("/config-file/values", test_values);
    g_test_add_func("/config-file/false", test_false);
    g_test_add_func("/config-file/replaced", test_replaced);
    g_test_add_func("/config-file/place", test_place);
    g_test_add_func("/config-file/help", test_help);
    g_test_add_func("/config-file/refused", test_refused);
    g_test_add_func("/config-file/blame", test_blame);
    g_test_add_func("/config-file/strange-files", test_strange_files);
    g_test_add_func("/config-file/shown", test_shown);
    g_test_add_func("/config-file/changes", test_changes);
    int status = g_test_run();
    write_file(NULL);
    g_rmdir(folder);
    g_free(folder);
    return status;
}
