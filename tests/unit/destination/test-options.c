/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rdmamigd's options, from its configuration file and its command line. */
#include "destination/options.h"

#include "common/reason.h"
#include "control/message.h"

#include <glib/gstdio.h>
#include <string.h>

static char *folder, *path;

/* NULL: *ret_text is what was to be said, or the error. */
static RmListenOptions *run(const char *contents, const char *words, char **ret_text)
{
    g_auto(GStrv) list = g_strsplit(words, " ", -1);
    g_autoptr(GError) error = NULL;
    g_assert_true(g_file_set_contents(path, contents, -1, NULL));
    *ret_text = NULL;
    RmListenOptions *options = rm_listen_options_parse((int)g_strv_length(list), list, ret_text, &error);
    if (options != NULL && options->checked != NULL) {
        *ret_text = rm_listen_options_check(options, &error) ? g_strdup(options->checked) : NULL;
        g_clear_pointer(&options, rm_listen_options_free);
    }
    if (options == NULL && *ret_text == NULL) {
        g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
        *ret_text = g_strdup(error->message);
    }
    return options;
}

static void test_file_is_enough(void)
{
    g_autofree char *text = NULL;
    g_autoptr(RmListenOptions) options =
        run("[rdmamigd]\nlisten = 127.0.0.1:1234\nqmp-dir = /tmp\ndata-address = 127.0.0.1;127.0.0.2\n"
            "max-chunk-size = 64M\n",
            "rdmamigd", &text);
    g_assert_nonnull(options);
    g_assert_cmpstr(options->host, ==, "127.0.0.1");
    g_assert_cmpint(options->port, ==, 1234);
    g_assert_cmpstr(options->qmp_dir, ==, "/tmp");
    g_assert_cmpint(g_strv_length(options->data_addresses), ==, 2);
    g_assert_cmpint((int)options->max_chunk_size, ==, 64 << 20);
}

static void test_listen_everywhere(void)
{
    g_autofree char *text = NULL;
    g_autoptr(RmListenOptions) options =
        run("[rdmamigd]\nlisten =\nexec = start --it \"now\"\n", "rdmamigd --listen 127.0.0.1:7", &text);
    g_assert_nonnull(options);
    g_assert_cmpint(options->port, ==, 7);
    g_assert_cmpstr(options->exec, ==, "start --it \"now\"");
}

static void test_refused(void)
{
    const struct {
        const char *contents, *words, *pattern;
    } cases[] = {
        {"[rdmamigd]\nqmp-dir = /tmp\n", "rdmamigd", "nothing to do;*"},
        {"[rdmamigd]\nlisten =\n", "rdmamigd", "no destination guests:*"},
        {"[rdmamigd]\nqmp-dir = /tmp\nlisten = a:b\n", "rdmamigd", "*rdmamigd.conf:3: --listen: *"},
        {"[rdmamigd]\nqmp-dir = /tmp\nlisten =\ndata-address = here\n", "rdmamigd",
         "*rdmamigd.conf:4: --data-address: `here` is not an IP address"},
        {"[rdmamigd]\nmin-chunk-size = 3M\nlisten =\n", "rdmamigd", "*rdmamigd.conf:2: --min-chunk-size: *"},
        {"[rdmamigd]\nqmp-dir = /tmp\nlisten =\nmax-chunk-size = 1M\n", "rdmamigd --min-chunk-size 2M",
         "*rdmamigd.conf:4: --min-chunk-size is above --max-chunk-size"},
        {"[rdmamigd]\nqmp-dir = /nowhere/at/all\nlisten =\n", "rdmamigd --check-config",
         "*rdmamigd.conf:2: --qmp-dir: there is no folder /nowhere/at/all;*"},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = NULL;
        g_test_message("%s", cases[i].pattern);
        g_autoptr(RmListenOptions) options = run(cases[i].contents, cases[i].words, &text);
        g_test_message("%s", text);
        g_assert_null(options);
        g_assert_true(g_pattern_match_simple(cases[i].pattern, text));
    }
}

static void test_check(void)
{
    g_autofree char *text = NULL, *version = NULL;
    g_assert_null(run("[rdmamigd]\nqmp-dir = /tmp\nlisten =\n", "rdmamigd --check-config -vv", &text));
    g_assert_nonnull(strstr(text, "qmp-dir=/tmp\n"));
    g_assert_nonnull(strstr(text, "verbose=2\n"));
    g_assert_null(run("nonsense", "rdmamigd --version", &version));
    g_assert_true(g_str_has_prefix(version, "rdmamigd "));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("rdmamig-options-XXXXXX", NULL);
    g_assert_nonnull(folder);
    path = g_build_filename(folder, "rdmamigd.conf", NULL);
    g_setenv("RDMAMIG_CONFIG_DIR", folder, TRUE);
    g_test_add_func("/options/file-is-enough", test_file_is_enough);
    g_test_add_func("/options/listen-everywhere", test_listen_everywhere);
    g_test_add_func("/options/refused", test_refused);
    g_test_add_func("/options/check", test_check);
    int status = g_test_run();
    g_unlink(path);
    g_rmdir(folder);
    g_free(path);
    g_free(folder);
    return status;
}
