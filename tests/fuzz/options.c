/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command lines of both daemons, one word a line: what they accept is what the rest of the program relies
 * on. */
#include "fuzz.h"

#include "common/reason.h"
#include "destination/options.h"
#include "memory/chunk.h"
#include "source/options.h"

static void check_common(const RmCommonOptions *options)
{
    g_assert_true(options->gid_index >= -1 && options->gid_index <= 255);
    g_assert_true(!options->packets.ack_timeout.given ||
                  (options->packets.ack_timeout.value >= 1 && options->packets.ack_timeout.value <= 31));
}

static void check_send(char **words)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *help = NULL;
    RmSendOptions *options = rm_send_options_parse(words, &help, &error);
    if (options != NULL) {
        /* --check-config asks for no guest. */
        g_assert_true(options->checked != NULL ||
                      (options->qmp != NULL && options->host != NULL && options->port > 0));
        g_assert_true(rm_chunk_size_valid(options->chunk_size) && options->channels <= RM_CHANNELS_MAX);
        g_assert_true(options->max_bandwidth == 0 || options->max_bandwidth >= 64 * 1024);
        g_assert_true(!(options->background && (options->json || options->dry_run)));
        check_common(&options->common);
    } else {
        g_assert_true(help != NULL || rm_error_reason(error) == RM_REASON_USAGE);
    }
    rm_send_options_free(options);
}

static void check_listen(char **words)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    RmListenOptions *options = rm_listen_options_parse((int)g_strv_length(words), words, &text, &error);
    if (options != NULL) {
        g_assert_true(options->qmp != NULL || options->qmp_dir != NULL || options->exec != NULL);
        g_assert_true(rm_chunk_size_valid(options->min_chunk_size) &&
                      rm_chunk_size_valid(options->max_chunk_size));
        g_assert_true(options->min_chunk_size <= options->max_chunk_size && options->port > 0);
        check_common(&options->common);
    } else {
        g_assert_true(text != NULL || rm_error_reason(error) == RM_REASON_USAGE);
    }
    rm_listen_options_free(options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = fuzz_text(data, size), *line = g_strconcat("rdmamig\n--no-config\n", text, NULL);
    g_auto(GStrv) words = g_strsplit(g_strchomp(line), "\n", 256);
    check_send(words);
    check_listen(words);
    return 0;
}
