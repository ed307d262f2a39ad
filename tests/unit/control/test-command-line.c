/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the command lines have in common. */
#include "control/command-line.h"

#include "common/reason.h"
#include "memory/chunk.h"

#include <string.h>

typedef struct {
    RmCommandLine line;
    char *fruit;
} Texts;

/* NULL words end it. FALSE and the message if it was refused. */
static gboolean parse(const char *text, RmCommonOptions *options, char **ret_text, char **ret_message)
{
    g_auto(GStrv) words = g_strsplit(text, " ", -1);
    g_autoptr(GError) error = NULL;
    Texts texts = {0};
    const GOptionEntry entries[] = {{"fruit", 0, 0, G_OPTION_ARG_STRING, &texts.fruit, "which", "NAME"},
                                    {NULL}};
    *options = (RmCommonOptions){0};
    gboolean ok = rm_command_line_parse(&texts.line, NULL, entries, "Summary.", words, ret_text, &error) &&
                  rm_command_line_common(&texts.line, options, &error);
    if (!ok) {
        g_assert_error(error, RM_ERROR, RM_REASON_USAGE);
        *ret_message = g_strdup(error->message);
    }
    rm_command_line_clear(&texts.line);
    g_free(texts.fruit);
    return ok;
}

static RmCommonOptions good(const char *text)
{
    RmCommonOptions options;
    g_autofree char *message = NULL, *help = NULL;
    g_assert_true(parse(text, &options, &help, &message));
    g_assert_null(help);
    return options;
}

static void test_defaults(void)
{
    RmCommonOptions options = good("program --fruit pear");
    g_assert_null(options.rdma_device);
    g_assert_cmpint(options.gid_index, ==, -1);
    g_assert_cmpint(options.verbosity, ==, 0);
    g_assert_false(options.packets.tos.given || options.packets.ack_timeout.given ||
                   options.packets.retries.given);
}

static void test_verbosity(void)
{
    const struct {
        const char *text;
        int verbosity;
    } cases[] = {{"p -v", 1}, {"p -vv", 2}, {"p --verbose -v -v", 2}, {"p -q", -1}, {"p -q -vv", -1}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(good(cases[i].text).verbosity, ==, cases[i].verbosity);
}

static void test_given(void)
{
    RmCommonOptions options = good("p --rdma-device mlx5_0:1 --gid-index=255 --tos 0 --rdma-ack-timeout 31");
    g_assert_cmpstr(options.rdma_device, ==, "mlx5_0:1");
    g_assert_cmpint(options.gid_index, ==, 255);
    g_assert_true(options.packets.tos.given && options.packets.ack_timeout.given);
    g_assert_cmpint(options.packets.tos.value, ==, 0);
    g_assert_cmpint(options.packets.ack_timeout.value, ==, 31);
    rm_common_options_clear(&options);
}

static void test_refused(void)
{
    const struct {
        const char *text, *pattern;
    } cases[] = {{"p --tos 256", "--tos: *from 0 to 255"},
                 {"p --tos -1", "--tos: *"},
                 {"p --tos=", "--tos: *"},
                 {"p --tos af41", "--tos: *"},
                 {"p --rdma-ack-timeout 0", "--rdma-ack-timeout: *from 1 to 31"},
                 {"p --rdma-ack-timeout 32", "--rdma-ack-timeout: *from 1 to 31"},
                 {"p --rdma-ack-timeout 5ms", "--rdma-ack-timeout: *"},
                 {"p --gid-index 256", "--gid-index: *from 0 to 255"},
                 {"p --no-such", "*--no-such*"},
                 {"p left over", "unexpected argument `left`"}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        RmCommonOptions options;
        g_autofree char *message = NULL, *help = NULL;
        g_assert_false(parse(cases[i].text, &options, &help, &message));
        if (!g_pattern_match_simple(cases[i].pattern, message))
            g_assert_cmpstr(message, ==, cases[i].pattern);
    }
}

static void test_help(void)
{
    RmCommonOptions options;
    g_autofree char *message = NULL, *help = NULL;
    g_assert_true(parse("p --help", &options, &help, &message));
    g_assert_nonnull(strstr(help, "Summary."));
    g_assert_nonnull(strstr(help, "--fruit"));
    g_assert_nonnull(strstr(help, "--tos"));
}

static void test_chunk_size(void)
{
    const struct {
        const char *text;
        uint64_t size; /* 0: refused */
    } cases[] = {{"1M", RM_CHUNK_MIN},
                 {"1G", RM_CHUNK_MAX},
                 {"64MiB", 64 << 20},
                 {NULL, 7},
                 {"", 0},
                 {"0", 0},
                 {"63M", 0},
                 {"2G", 0},
                 {"x", 0}};
    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        uint64_t size = 7;
        gboolean ok = rm_option_chunk_size("--chunk-size", cases[i].text, &size, &error);
        g_assert_cmpint(ok, ==, cases[i].size != 0);
        if (ok)
            g_assert_cmpuint(size, ==, cases[i].size);
        else
            g_assert_true(g_str_has_prefix(error->message, "--chunk-size: "));
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/command-line/defaults", test_defaults);
    g_test_add_func("/command-line/verbosity", test_verbosity);
    g_test_add_func("/command-line/given", test_given);
    g_test_add_func("/command-line/refused", test_refused);
    g_test_add_func("/command-line/help", test_help);
    g_test_add_func("/command-line/chunk-size", test_chunk_size);
    return g_test_run();
}
