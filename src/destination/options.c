/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of rdmamigd. */
#include "destination/options.h"

#include "common/reason.h"
#include "common/size.h"
#include "config.h"
#include "control/message.h"
#include "destination/access.h"
#include "transport/window.h"

#include <gio/gio.h>

#define SESSIONS_USUAL 16
#define SESSIONS_MOST 256

typedef struct {
    RmCommandLine line;
    gboolean listen, version;
    char *address, *metrics, *min_chunk, *max_chunk, *max_pinned, *max_sessions;
} Texts;

static gboolean take_listen(const char *name, const char *value, gpointer data, GError **error)
{
    Texts *texts = data;
    texts->listen = TRUE;
    g_free(texts->address);
    texts->address = g_strdup(value);
    return TRUE;
}

static gboolean is_loopback(const char *host)
{
    g_autoptr(GInetAddress) address = host != NULL ? g_inet_address_new_from_string(host) : NULL;
    return host == NULL || g_str_equal(host, "localhost") ||
           (address != NULL && g_inet_address_get_is_loopback(address));
}

static gboolean check_metrics(RmListenOptions *options, const char *text, GError **error)
{
    if (text == NULL)
        return TRUE;
    if (!RM_METRICS)
        return rm_fail(error, RM_REASON_USAGE, "--metrics: this rdmamigd was built without libmicrohttpd");
    if (!rm_parse_address(text, 0, &options->metrics_host, &options->metrics_port, error)) {
        g_prefix_error(error, "--metrics: ");
        return FALSE;
    }
    if (options->metrics_port == 0)
        return rm_fail(error, RM_REASON_USAGE, "--metrics: %s has no port; write ADDR:PORT or :PORT", text);
    const char *host = options->metrics_host;
    g_autoptr(GInetAddress) address = host != NULL ? g_inet_address_new_from_string(host) : NULL;
    return is_loopback(host) || address != NULL ||
           rm_fail(error, RM_REASON_USAGE, "--metrics: `%s` is not an IP address", host);
}

gboolean rm_listen_everywhere(const RmListenOptions *options)
{
    return options->host == NULL && options->common.tls_creds != NULL;
}

static gboolean check_tls(const RmListenOptions *options, GError **error)
{
    char **name = options->tls_allow;
    if (name != NULL && options->common.tls_creds == NULL)
        return rm_fail(error, RM_REASON_USAGE, "--tls-allow needs --tls-creds");
    while (name != NULL && *name != NULL) {
        if (!rm_access_check_name(*name++, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean check(RmListenOptions *options, const Texts *texts, GError **error)
{
    if (!texts->listen)
        return rm_fail(error, RM_REASON_USAGE,
                       "nothing to do; give --listen, or `listen` in the configuration file");
    if (texts->address != NULL &&
        !rm_parse_address(texts->address, RM_PORT, &options->host, &options->port, error)) {
        g_prefix_error(error, "--listen: ");
        return FALSE;
    }
    if (!rm_option_chunk_size("--min-chunk-size", texts->min_chunk, &options->min_chunk_size, error) ||
        !rm_option_chunk_size("--max-chunk-size", texts->max_chunk, &options->max_chunk_size, error))
        return FALSE;
    if (texts->max_pinned != NULL && !rm_parse_pinned(texts->max_pinned, &options->max_pinned, error))
        return FALSE;
    if (texts->max_sessions != NULL &&
        !rm_parse_uint(texts->max_sessions, 1, SESSIONS_MOST, &options->max_sessions, error)) {
        g_prefix_error(error, "--max-sessions: ");
        return FALSE;
    }
    if (options->min_chunk_size > options->max_chunk_size)
        return rm_fail(error, RM_REASON_USAGE, "--min-chunk-size is above --max-chunk-size");
    if (options->qmp == NULL && options->qmp_dir == NULL && options->exec == NULL)
        return rm_fail(error, RM_REASON_USAGE,
                       "no destination guests: give --qmp PATH, --qmp-dir DIR or --exec COMMAND");
    if (!check_tls(options, error) || !check_metrics(options, texts->metrics, error))
        return FALSE;
    gboolean local = is_loopback(options->host);
    for (char **address = options->data_addresses; address != NULL && *address != NULL; address++) {
        g_autoptr(GInetAddress) parsed = g_inet_address_new_from_string(*address);
        if (parsed == NULL)
            return rm_fail(error, RM_REASON_USAGE, "--data-address: `%s` is not an IP address", *address);
        local = local && g_inet_address_get_is_loopback(parsed);
    }
    if (!local && !options->insecure && options->common.tls_creds == NULL)
        return rm_fail(
            error, RM_REASON_USAGE,
            "listening beyond loopback would let anyone on the network send a guest here, in clear text: set "
            "TLS up with --tls-creds; --insecure accepts it as it is");
    return TRUE;
}

static gboolean check_places(const RmListenOptions *options, GError **error)
{
    g_autoptr(RmAccess) access = NULL;
    g_autoptr(GError) problem = NULL;
    if (options->common.tls_creds != NULL &&
        (access = rm_access_load(options->common.tls_creds, options->tls_allow, &problem)) == NULL)
        return rm_option_blame("--tls-creds", problem, error);
    if (options->qmp_dir != NULL && !g_file_test(options->qmp_dir, G_FILE_TEST_IS_DIR))
        return rm_fail(error, RM_REASON_USAGE, "--qmp-dir: there is no folder %s; make it, or name another",
                       options->qmp_dir);
    return TRUE;
}

gboolean rm_listen_options_check(const RmListenOptions *options, GError **error)
{
    gboolean ok = check_places(options, error);
    if (!ok)
        rm_settings_explain(&options->settings, error);
    return ok;
}

/* `--listen ADDR:PORT` as two words: GOption takes an optional argument only after `=`. */
static char **join_listen(int argc, char **argv)
{
    g_autoptr(GPtrArray) words = g_ptr_array_new();
    for (int i = 0; i < argc; i++) {
        if (g_str_equal(argv[i], "--listen") && i + 1 < argc && argv[i + 1][0] != '-') {
            g_ptr_array_add(words, g_strconcat("--listen=", argv[i + 1], NULL));
            i++;
        } else {
            g_ptr_array_add(words, g_strdup(argv[i]));
        }
    }
    g_ptr_array_add(words, NULL);
    return (char **)g_ptr_array_free(g_steal_pointer(&words), FALSE);
}

static const RmConfigPlace config_place = {"rdmamigd.conf", "rdmamigd", NULL};

static gboolean parse(char **words, RmListenOptions *options, Texts *texts, char **ret_text, GError **error)
{
    const GOptionEntry entries[] = {
        {"listen", 0, G_OPTION_FLAG_OPTIONAL_ARG, G_OPTION_ARG_CALLBACK, take_listen,
         "accept guests (loopback, with TLS all addresses; port 24780)", "[ADDR][:PORT]"},
        {"qmp", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &options->qmp,
         "QMP socket of a QEMU that waits with -incoming defer", "PATH"},
        {"qmp-dir", 0, 0, G_OPTION_ARG_FILENAME, &options->qmp_dir,
         "folder of such sockets; matched by name and UUID", "DIR"},
        {"exec", 0, 0, G_OPTION_ARG_STRING, &options->exec,
         "command that starts a waiting QEMU and prints its QMP path", "COMMAND"},
        {"data-address", 0, 0, G_OPTION_ARG_STRING_ARRAY, &options->data_addresses,
         "address for the data channels (that of --listen)", "ADDR"},
        {"tls-allow", 0, 0, G_OPTION_ARG_STRING_ARRAY, &options->tls_allow,
         "a name that a source's certificate may have, or *.DOMAIN (any of the CA)", "NAME"},
        {"insecure", 0, 0, G_OPTION_ARG_NONE, &options->insecure, "listen beyond loopback without TLS", NULL},
        {"min-chunk-size", 0, 0, G_OPTION_ARG_STRING, &texts->min_chunk, "refuse smaller chunks (1M)",
         "SIZE"},
        {"max-chunk-size", 0, 0, G_OPTION_ARG_STRING, &texts->max_chunk, "use at most this chunk size (1G)",
         "SIZE"},
        {"max-pinned", 0, 0, G_OPTION_ARG_STRING, &texts->max_pinned,
         "RAM registered at a time, of each guest (all)", "SIZE"},
        {"metrics", 0, 0, G_OPTION_ARG_STRING, &texts->metrics,
         "serve metrics for Prometheus over HTTP (loopback)", "[ADDR]:PORT"},
        {"max-sessions", 0, 0, G_OPTION_ARG_STRING, &texts->max_sessions,
         "guests that may be on their way here at a time (16)", "N"},
        {"version", 0, 0, G_OPTION_ARG_NONE, &texts->version, "show the version", NULL},
        {NULL}};
    if (!rm_command_line_parse(&texts->line, &config_place, entries,
                               "Receives guests that `rdmamig send` moves to this host.", words, ret_text,
                               error))
        return FALSE;
    if (*ret_text == NULL && texts->version)
        *ret_text = g_strdup("rdmamigd " RM_VERSION "\n");
    return TRUE;
}

RmListenOptions *rm_listen_options_parse(int argc, char **argv, char **ret_text, GError **error)
{
    g_autoptr(RmListenOptions) options = g_new0(RmListenOptions, 1);
    Texts texts = {0};
    options->port = RM_PORT;
    options->min_chunk_size = RM_CHUNK_MIN;
    options->max_chunk_size = RM_CHUNK_MAX;
    options->max_sessions = SESSIONS_USUAL;
    char **words = join_listen(argc, argv);
    gboolean ok = parse(words, options, &texts, ret_text, error) && *ret_text == NULL &&
                  rm_command_line_common(&texts.line, &options->common, error) &&
                  check(options, &texts, error);
    if (!ok)
        rm_settings_explain(&texts.line.settings, error);
    options->checked = g_steal_pointer(&texts.line.checked);
    options->settings = texts.line.settings;
    texts.line.settings = (RmSettings){0};
    g_strfreev(words);
    rm_command_line_clear(&texts.line);
    g_free(texts.address);
    g_free(texts.metrics);
    g_free(texts.min_chunk);
    g_free(texts.max_chunk);
    g_free(texts.max_pinned);
    g_free(texts.max_sessions);
    return ok ? g_steal_pointer(&options) : NULL;
}

void rm_listen_options_free(RmListenOptions *options)
{
    if (options == NULL)
        return;
    g_free(options->host);
    g_strfreev(options->qmp);
    g_free(options->qmp_dir);
    g_free(options->exec);
    g_strfreev(options->tls_allow);
    rm_common_options_clear(&options->common);
    rm_settings_clear(&options->settings);
    g_free(options->checked);
    g_strfreev(options->data_addresses);
    g_free(options->metrics_host);
    g_free(options);
}
