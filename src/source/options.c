/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of `rdmamig send`. */
#include "source/options.h"

#include "common/reason.h"
#include "common/size.h"
#include "control/message.h"
#include "control/tls.h"
#include "memory/chunk.h"
#include "transport/transport.h"
#include "transport/window.h"

#include <string.h>

/* The text of each option that needs more than GOption's own checks. */
typedef struct {
    RmCommandLine line;
    char *pin, *max_pinned, *retries;
    char *to, *chunk_size, *channels, *max_bandwidth, *downtime_limit, *max_rounds, *timeout, *on_timeout,
        *max_stall, *max_pause;
} Texts;

static gboolean check_pin(RmSendOptions *options, const Texts *texts, GError **error)
{
    if (texts->pin != NULL && strcmp(texts->pin, "lazy") != 0 && strcmp(texts->pin, "all") != 0)
        return rm_fail(error, RM_REASON_USAGE, "--pin: `%s` is neither lazy nor all", texts->pin);
    options->pin_all = g_strcmp0(texts->pin, "all") == 0;
    return texts->max_pinned == NULL || rm_parse_pinned(texts->max_pinned, &options->max_pinned, error);
}

static gboolean check_limits(RmSendOptions *options, const Texts *texts, GError **error)
{
    if (texts->max_bandwidth != NULL) {
        if (!rm_parse_rate(texts->max_bandwidth, &options->max_bandwidth, error)) {
            g_prefix_error(error, "--max-bandwidth: ");
            return FALSE;
        }
        if (options->max_bandwidth < 64 * 1024)
            return rm_fail(error, RM_REASON_USAGE, "--max-bandwidth: %s is below 64K bytes a second",
                           texts->max_bandwidth);
    }
    return rm_option_uint("--max-rounds", texts->max_rounds, 1, G_MAXUINT32, &options->max_rounds, error);
}

static gboolean check_numbers(RmSendOptions *options, const Texts *texts, GError **error)
{
    uint64_t channels = 0;
    if (!rm_option_chunk_size("--chunk-size", texts->chunk_size, &options->chunk_size, error) ||
        !rm_option_uint("--channels", texts->channels, 1, RM_CHANNELS_MAX, &channels, error) ||
        !rm_option_choice("--rdma-retries", texts->retries, 0, RM_RETRIES_MAX,
                          &options->common.packets.retries, error))
        return FALSE;
    options->channels = (unsigned)channels;
    return check_pin(options, texts, error) && check_limits(options, texts, error);
}

static gboolean check_times(RmSendOptions *options, const Texts *texts, GError **error)
{
    const struct {
        const char *name, *text;
        uint64_t unit_ms, *value;
    } times[] = {
        {"--downtime-limit", texts->downtime_limit, 1, &options->downtime_limit_ms},
        {"--timeout", texts->timeout, 1000, &options->timeout_ms},
        {"--max-stall", texts->max_stall, 1, &options->max_stall_ms},
        {"--max-pause", texts->max_pause, 1000, &options->max_pause_ms},
    };
    for (guint i = 0; i < G_N_ELEMENTS(times); i++) {
        if (times[i].text != NULL &&
            !rm_parse_duration(times[i].text, times[i].unit_ms, times[i].value, error)) {
            g_prefix_error(error, "%s: ", times[i].name);
            return FALSE;
        }
    }
    options->max_pause_given = texts->max_pause != NULL;
    if (options->max_pause_ms > RM_PAUSE_MAX_MS)
        return rm_fail(error, RM_REASON_USAGE, "--max-pause: %s is more than a day; 0 is no bound at all",
                       texts->max_pause);
    if (texts->on_timeout != NULL) {
        if (strcmp(texts->on_timeout, "suspend") != 0 && strcmp(texts->on_timeout, "cancel") != 0)
            return rm_fail(error, RM_REASON_USAGE, "--on-timeout: `%s` is neither suspend nor cancel",
                           texts->on_timeout);
        options->on_timeout_suspend = strcmp(texts->on_timeout, "suspend") == 0;
        if (options->max_rounds == 0 && options->timeout_ms == 0)
            return rm_fail(error, RM_REASON_USAGE,
                           "--on-timeout needs --timeout or --max-rounds to set the limit");
    }
    return TRUE;
}

static gboolean check_background(const RmSendOptions *options, GError **error)
{
    if (options->background && options->json)
        return rm_fail(
            error, RM_REASON_USAGE,
            "--background leaves nobody to write events to; take --report FILE instead of --json, or ask "
            "rdmamig status --json");
    return !options->background || !options->dry_run ||
           rm_fail(error, RM_REASON_USAGE,
                   "--dry-run makes its checks in the foreground: without --background");
}

static gboolean check(RmSendOptions *options, const Texts *texts, GError **error)
{
    /* The file can be checked without a guest. */
    if (options->qmp == NULL && !texts->line.check_config)
        return rm_fail(error, RM_REASON_USAGE, "which guest? give its QMP socket with --qmp PATH");
    if (texts->to == NULL && !texts->line.check_config)
        return rm_fail(error, RM_REASON_USAGE, "where to? give the destination with --to HOST[:PORT]");
    if (texts->to != NULL && !rm_parse_address(texts->to, RM_PORT, &options->host, &options->port, error)) {
        g_prefix_error(error, "--to: ");
        return FALSE;
    }
    if (texts->to != NULL && (options->host == NULL || options->port == 0))
        return rm_fail(error, RM_REASON_USAGE, "--to: `%s` names no host or no port", texts->to);
    if (options->tls_host != NULL && (options->common.tls_creds == NULL || *options->tls_host == '\0'))
        return rm_fail(error, RM_REASON_USAGE, "--tls-hostname needs a name, and --tls-creds");
    if (options->transport == NULL)
        options->transport = g_strdup("auto");
    if (strcmp(options->transport, "auto") != 0 && strcmp(options->transport, "rdma") != 0 &&
        rm_transport_find(options->transport) == NULL)
        return rm_fail(error, RM_REASON_USAGE, "--transport: `%s` is none of auto, rdma, tcp",
                       options->transport);
    return check_numbers(options, texts, error) && check_times(options, texts, error) &&
           check_background(options, error);
}

gboolean rm_send_options_check(const RmSendOptions *options, GError **error)
{
    g_autoptr(RmTls) tls = NULL;
    g_autoptr(GError) problem = NULL;
    if (options->common.tls_creds == NULL)
        return TRUE;
    tls = rm_tls_load(options->common.tls_creds, RM_TLS_SOURCE, &problem);
    if (tls != NULL)
        return TRUE;
    rm_option_blame("--tls-creds", problem, error);
    rm_settings_explain(&options->settings, error);
    return FALSE;
}

static void texts_clear(Texts *texts)
{
    rm_command_line_clear(&texts->line);
    g_free(texts->pin);
    g_free(texts->max_pinned);
    g_free(texts->retries);
    g_free(texts->to);
    g_free(texts->chunk_size);
    g_free(texts->channels);
    g_free(texts->max_bandwidth);
    g_free(texts->downtime_limit);
    g_free(texts->max_rounds);
    g_free(texts->timeout);
    g_free(texts->on_timeout);
    g_free(texts->max_stall);
    g_free(texts->max_pause);
}

static RmSendOptions *options_new(void)
{
    RmSendOptions *options = g_new0(RmSendOptions, 1);
    options->chunk_size = RM_CHUNK_DEFAULT;
    options->downtime_limit_ms = RM_DEFAULT_DOWNTIME_MS;
    options->max_stall_ms = RM_DEFAULT_STALL_MS;
    options->max_pause_ms = RM_DEFAULT_PAUSE_MS;
    return options;
}

/* What belongs to one migration is not for a file that holds for all of them. */
static const char *const not_keys[] = {"qmp", "to", "tls-hostname", "dry-run", "report", NULL};
static const RmConfigPlace config_place = {"rdmamig.conf", "send", not_keys};

RmSendOptions *rm_send_options_parse(char **argv, char **ret_help, GError **error)
{
    g_autoptr(RmSendOptions) options = options_new();
    __attribute__((cleanup(texts_clear))) Texts texts = {0};
    const GOptionEntry entries[] = {
        {"qmp", 0, 0, G_OPTION_ARG_FILENAME, &options->qmp, "QMP socket of the guest to move", "PATH"},
        {"to", 0, 0, G_OPTION_ARG_STRING, &texts.to, "where rdmamigd listens (port 24780)", "HOST[:PORT]"},
        {"tls-hostname", 0, 0, G_OPTION_ARG_STRING, &options->tls_host,
         "the name in the destination's certificate (that of --to)", "NAME"},
        {"chunk-size", 0, 0, G_OPTION_ARG_STRING, &texts.chunk_size, "unit of registration (64M)", "SIZE"},
        {"transport", 0, 0, G_OPTION_ARG_STRING, &options->transport, "how RAM travels (auto)",
         "auto|rdma|tcp"},
        {"channels", 0, 0, G_OPTION_ARG_STRING, &texts.channels, "data channels (tcp 2, rdma 1)", "N"},
        {"data-source", 0, 0, G_OPTION_ARG_STRING, &options->data_source,
         "local address of the data channels", "ADDR"},
        {"pin", 0, 0, G_OPTION_ARG_STRING, &texts.pin,
         "register RAM as it is sent, or all at the start (lazy)", "lazy|all"},
        {"max-pinned", 0, 0, G_OPTION_ARG_STRING, &texts.max_pinned, "RAM registered here at a time (all)",
         "SIZE"},
        {"rdma-retries", 0, 0, G_OPTION_ARG_STRING, &texts.retries,
         "send an unacknowledged packet again so often (6)", "N"},
        {"serialise-chunks", 0, 0, G_OPTION_ARG_NONE, &options->serialise_chunks,
         "rdma, for measuring: one write into a chunk at a time", NULL},
        {"max-bandwidth", 0, 0, G_OPTION_ARG_STRING, &texts.max_bandwidth, "cap, bytes/s or 10Gbit (none)",
         "RATE"},
        {"downtime-limit", 0, 0, G_OPTION_ARG_STRING, &texts.downtime_limit,
         "aim for a pause under this (300 ms)", "MS"},
        {"max-rounds", 0, 0, G_OPTION_ARG_STRING, &texts.max_rounds, "give up copying after N rounds (none)",
         "N"},
        {"timeout", 0, 0, G_OPTION_ARG_STRING, &texts.timeout, "give up copying after this time (none)",
         "SECONDS"},
        {"on-timeout", 0, 0, G_OPTION_ARG_STRING, &texts.on_timeout,
         "then move it stopped, or cancel (cancel)", "suspend|cancel"},
        {"max-stall", 0, 0, G_OPTION_ARG_STRING, &texts.max_stall,
         "longest wait for the guest's disks in a round (1000 ms)", "MS"},
        {"max-pause", 0, 0, G_OPTION_ARG_STRING, &texts.max_pause,
         "give up, and let the guest run again, if its pause lasts longer (30 s)", "SECONDS"},
        {"suspend", 0, 0, G_OPTION_ARG_NONE, &options->suspend, "leave the guest paused at the destination",
         NULL},
        {"keep-source", 0, 0, G_OPTION_ARG_NONE, &options->keep_source,
         "leave the source QEMU paused instead of ending it", NULL},
        {"verify", 0, 0, G_OPTION_ARG_NONE, &options->verify,
         "compare digests of all RAM before the hand-over", NULL},
        {"allow-nested", 0, 0, G_OPTION_ARG_NONE, &options->preflight.allow_nested,
         "move a guest that could run guests itself", NULL},
        {"allow-untracked-writers", 0, 0, G_OPTION_ARG_NONE, &options->preflight.allow_untracked_writers,
         "move a guest whose RAM others map", NULL},
        {"dry-run", 0, 0, G_OPTION_ARG_NONE, &options->dry_run, "make all checks and move nothing", NULL},
        {"background", 0, 0, G_OPTION_ARG_NONE, &options->background,
         "return once nothing can refuse it any more, and print the session's id", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &options->json, "one JSON object a line on standard output", NULL},
        {"report", 0, 0, G_OPTION_ARG_FILENAME, &options->report, "write the result's JSON to this file",
         "FILE"},
        {NULL}};
    gboolean ok = rm_command_line_parse(&texts.line, &config_place, entries,
                                        "Moves a running guest to another host.", argv, ret_help, error) &&
                  *ret_help == NULL && rm_command_line_common(&texts.line, &options->common, error) &&
                  check(options, &texts, error);
    if (!ok)
        rm_settings_explain(&texts.line.settings, error);
    options->checked = g_steal_pointer(&texts.line.checked);
    options->settings = texts.line.settings;
    texts.line.settings = (RmSettings){0};
    return ok ? g_steal_pointer(&options) : NULL;
}

void rm_send_options_free(RmSendOptions *options)
{
    if (options == NULL)
        return;
    g_free(options->qmp);
    g_free(options->host);
    g_free(options->tls_host);
    g_free(options->transport);
    g_free(options->data_source);
    rm_common_options_clear(&options->common);
    g_free(options->report);
    rm_settings_clear(&options->settings);
    g_free(options->checked);
    g_free(options);
}
