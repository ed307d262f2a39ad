/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The operator's view of a session. */
#include "source/report.h"

#include "common/autoptr.h"
#include "common/journald.h"
#include "common/log-context.h"
#include "common/log-event.h"
#include "common/log.h"
#include "common/size.h"
#include "control/json.h"
#include "source/output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define LINES_EVERY_US (5 * G_USEC_PER_SEC) /* progress lines when piped */
#define JSON_EVERY_US (500 * 1000)
#define BAR_WIDTH 24
#define CLEAR_LINE "\r\033[K"

struct RmReporter {
    RmStyle style;                               /* immutable */
    RmOutput *output;                            /* immutable */
    char *session;                               /* immutable */
    void (*watch)(RmState state, gpointer data); /* immutable from the first state on; NULL: nobody */
    gpointer watch_data;

    GMutex lock; /* all below */
    char *guest;
    RmState state;
    RmProgress progress;
    gboolean have_progress;
    double percent; /* shown last: never runs backwards */
    int64_t begin_us, last_print_us;
};

double rm_cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Queued; see source/output.h. */
static void print_line(RmReporter *reporter, FILE *stream, const char *format, ...) G_GNUC_PRINTF(3, 4);
static void print_line(RmReporter *reporter, FILE *stream, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    if (reporter->style == RM_STYLE_BAR)
        rm_output_print(reporter->output, stderr, g_strdup(CLEAR_LINE));
    rm_output_print(reporter->output, stream, g_strconcat(text, "\n", NULL));
}

RmReporter *rm_reporter_new(RmStyle style, const char *session)
{
    RmReporter *reporter = g_new0(RmReporter, 1);
    reporter->style = style;
    reporter->output = rm_output_new();
    reporter->session = g_strdup(session);
    reporter->guest = g_strdup("");
    reporter->begin_us = g_get_monotonic_time();
    g_mutex_init(&reporter->lock);
    if (style == RM_STYLE_BAR)
        rm_log_set_line_start(CLEAR_LINE);
    return reporter;
}

void rm_reporter_free(RmReporter *reporter)
{
    if (reporter == NULL)
        return;
    rm_output_free(reporter->output);
    g_free(reporter->session);
    g_free(reporter->guest);
    g_mutex_clear(&reporter->lock);
    g_free(reporter);
}

void rm_reporter_set_guest(RmReporter *reporter, const char *name)
{
    g_mutex_lock(&reporter->lock);
    g_free(reporter->guest);
    reporter->guest = g_strdup(name);
    g_mutex_unlock(&reporter->lock);
    rm_log_context_set_process(NULL, name, NULL);
}

/* ---- JSON ---- */

json_object *rm_report_event(const char *session, const char *guest, const char *event)
{
    json_object *object = json_object_new_object();
    g_autoptr(GDateTime) now = g_date_time_new_now_utc();
    g_autofree char *time = g_date_time_format(now, "%Y-%m-%dT%H:%M:%S.%fZ");
    rm_json_add_uint(object, "schema", 1);
    rm_json_add_string(object, "time", time);
    rm_json_add_string(object, "session", session);
    rm_json_add_string(object, "guest", guest);
    rm_json_add_string(object, "event", event);
    return object;
}

static json_object *event_new(RmReporter *reporter, const char *event)
{
    return rm_report_event(reporter->session, reporter->guest, event);
}

static void add_ms(json_object *object, const char *key, int64_t us)
{
    json_object *value = NULL;
    if (us >= 0) {
        char text[32];
        g_snprintf(text, sizeof text, "%" G_GINT64_FORMAT ".%03d", us / 1000, (int)(us % 1000));
        value = json_object_new_double_s((double)us / 1000, text);
    }
    rm_json_add(object, key, value);
}

/* Takes `object`. A reader that went away costs the output, not the guest: SIGPIPE is ignored and errors are
 * dropped. */
static void print_json(RmReporter *reporter, json_object *object)
{
    print_line(reporter, stdout, "%s", json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN));
    json_object_put(object);
}

static void add_progress(json_object *object, const RmProgress *progress, double percent)
{
    rm_json_add_uint(object, "round", progress->round);
    rm_json_add(object, "percent", json_object_new_double(floor(percent * 10) / 10));
    rm_json_add_uint(object, "done_bytes", progress->done_bytes);
    rm_json_add_uint(object, "remaining_bytes", progress->remaining_bytes);
    rm_json_add_uint(object, "rate_bytes_s", (uint64_t)MAX(progress->rate, 0));
    rm_json_add_uint(object, "dirty_rate_bytes_s", (uint64_t)MAX(progress->dirty_rate, 0));
    rm_json_add(object, "expected_downtime_ms",
                progress->expected_downtime_ms >= 0
                    ? json_object_new_double(floor(progress->expected_downtime_ms))
                    : NULL);
}

/* ---- what happens ---- */

void rm_reporter_state(RmReporter *reporter, RmState state)
{
    g_mutex_lock(&reporter->lock);
    reporter->state = state;
    if (reporter->style == RM_STYLE_JSON) {
        json_object *event = event_new(reporter, "state");
        rm_json_add_string(event, "state", rm_state_name(state));
        rm_json_add_string(event, "owner", rm_owner_name(rm_state_owner(state)));
        print_json(reporter, event);
    } else if (reporter->style == RM_STYLE_LINES) {
        print_line(reporter, stderr, "%s", rm_state_name(state));
    } else if (reporter->style == RM_STYLE_LOG) {
        g_message("session %s: %s", reporter->session, rm_state_name(state));
    }
    g_mutex_unlock(&reporter->lock);
    if (reporter->watch != NULL)
        reporter->watch(state, reporter->watch_data);
}

void rm_reporter_watch(RmReporter *reporter, void (*func)(RmState state, gpointer data), gpointer data)
{
    reporter->watch = func;
    reporter->watch_data = data;
}

void rm_reporter_round(RmReporter *reporter, const RmRoundStats *stats)
{
    g_mutex_lock(&reporter->lock);
    if (reporter->style == RM_STYLE_JSON) {
        json_object *event = event_new(reporter, "round");
        rm_json_add_uint(event, "round", stats->round);
        rm_json_add_bool(event, "stopped", stats->stopped);
        rm_json_add_bool(event, "fenced", stats->fenced);
        rm_json_add_uint(event, "dirty_pages", stats->dirty_pages);
        rm_json_add_uint(event, "zero_pages", stats->zero_pages);
        rm_json_add_uint(event, "sent_bytes", stats->sent_bytes);
        rm_json_add_uint(event, "registrations", stats->registrations);
        add_ms(event, "scan_ms", stats->scan_us);
        add_ms(event, "fence_ms", stats->fence_us);
        add_ms(event, "send_ms", stats->send_us);
        add_ms(event, "registration_ms", stats->registration_us);
        print_json(reporter, event);
    } else if (reporter->style == RM_STYLE_LINES) {
        g_autofree char *sent = rm_format_size(stats->sent_bytes);
        print_line(reporter, stderr,
                   "round %u%s: %" G_GUINT64_FORMAT " pages, %" G_GUINT64_FORMAT
                   " zero, %s sent, scan %.1f ms, %s %.1f ms, send %.1f ms",
                   stats->round, stats->stopped ? " (stopped)" : "", stats->dirty_pages, stats->zero_pages,
                   sent, (double)stats->scan_us / 1000, stats->fenced ? "fence" : "no fence",
                   (double)stats->fence_us / 1000, (double)stats->send_us / 1000);
    }
    g_mutex_unlock(&reporter->lock);
}

void rm_reporter_progress(RmReporter *reporter, const RmProgress *progress)
{
    g_mutex_lock(&reporter->lock);
    reporter->progress = *progress;
    reporter->have_progress = TRUE;
    /* Done against done and remaining: a new round adds to what remains, so the share can fall; what is shown
     * doesn't. It reaches 100 only with the guest stopped: before, another round may always follow. */
    double all = (double)(progress->done_bytes + progress->remaining_bytes);
    double percent = all > 0 ? 100.0 * (double)progress->done_bytes / all : 0;
    double most = reporter->state < RM_STATE_SWITCHOVER ? 99.0 : 100.0;
    reporter->percent = MAX(reporter->percent, MIN(percent, most));
    g_mutex_unlock(&reporter->lock);
}

void rm_reporter_warning(RmReporter *reporter, RmReason reason, const char *text)
{
    g_warning("%s", text);
    if (reporter->style != RM_STYLE_JSON)
        return;
    g_mutex_lock(&reporter->lock);
    json_object *event = event_new(reporter, "warning");
    rm_json_add_string(event, "reason", rm_reason_name(reason));
    rm_json_add_string(event, "detail", text);
    print_json(reporter, event);
    g_mutex_unlock(&reporter->lock);
}

static char *progress_text(RmReporter *reporter)
{
    const RmProgress *progress = &reporter->progress;
    g_autofree char *remaining = rm_format_size(progress->remaining_bytes);
    g_autofree char *rate = rm_format_size((uint64_t)MAX(progress->rate, 0));
    g_autofree char *dirty = rm_format_size((uint64_t)MAX(progress->dirty_rate, 0));
    g_autofree char *downtime = progress->expected_downtime_ms > 0 && progress->expected_downtime_ms < 1e8
                                    ? g_strdup_printf("%.0f ms", progress->expected_downtime_ms)
                                    : g_strdup("unknown");
    double net = progress->rate - progress->dirty_rate;
    g_autofree char *eta =
        net > 0 ? g_strdup_printf("%.0f s", (double)progress->remaining_bytes / net) : g_strdup("unknown");
    return g_strdup_printf("%s round %u %3.0f%% left %s rate %s/s dirty %s/s downtime %s ETA %s",
                           rm_state_name(reporter->state), progress->round, floor(reporter->percent),
                           remaining, rate, dirty, downtime, eta);
}

void rm_reporter_tick(RmReporter *reporter)
{
    g_mutex_lock(&reporter->lock);
    int64_t now = g_get_monotonic_time();
    gboolean active = reporter->have_progress && !rm_state_is_end(reporter->state);
    if (active && reporter->style == RM_STYLE_BAR) {
        g_autofree char *text = progress_text(reporter);
        char bar[BAR_WIDTH + 1];
        int filled = (int)(reporter->percent * BAR_WIDTH / 100);
        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', (size_t)CLAMP(filled, 0, BAR_WIDTH));
        bar[BAR_WIDTH] = '\0';
        rm_output_print(reporter->output, stderr, g_strdup_printf(CLEAR_LINE "[%s] %s", bar, text));
    } else if (active && reporter->style == RM_STYLE_LINES &&
               now - reporter->last_print_us >= LINES_EVERY_US) {
        g_autofree char *text = progress_text(reporter);
        print_line(reporter, stderr, "%s", text);
        reporter->last_print_us = now;
    } else if (active && reporter->style == RM_STYLE_JSON && now - reporter->last_print_us >= JSON_EVERY_US) {
        json_object *event = event_new(reporter, "progress");
        rm_json_add_string(event, "state", rm_state_name(reporter->state));
        add_progress(event, &reporter->progress, reporter->percent);
        print_json(reporter, event);
        reporter->last_print_us = now;
    }
    g_mutex_unlock(&reporter->lock);
}

json_object *rm_reporter_status(RmReporter *reporter)
{
    g_mutex_lock(&reporter->lock);
    json_object *status = event_new(reporter, "status");
    rm_json_add_string(status, "state", rm_state_name(reporter->state));
    rm_json_add_string(status, "owner", rm_owner_name(rm_state_owner(reporter->state)));
    rm_json_add_uint(status, "elapsed_ms", (uint64_t)(g_get_monotonic_time() - reporter->begin_us) / 1000);
    if (reporter->have_progress)
        add_progress(status, &reporter->progress, reporter->percent);
    g_mutex_unlock(&reporter->lock);
    return status;
}

/* ---- the result ---- */

static json_object *metrics_object(const RmMetrics *metrics)
{
    json_object *object = json_object_new_object();
    const struct {
        const char *key;
        int64_t us;
    } times[] = {
        {"total_ms", metrics->total_us},
        {"downtime_ms", metrics->downtime_us},
        {"stop_ms", metrics->stop_us},
        {"last_scan_ms", metrics->last_scan_us},
        {"last_write_ms", metrics->last_write_us},
        {"state_save_ms", metrics->save_us},
        {"state_load_ms", metrics->load_us},
        {"resume_ms", metrics->resume_us},
        {"fence_stall_ms", metrics->fence_us},
        {"fence_stall_max_ms", metrics->fence_max_us},
        {"attach_ms", metrics->attach_us},
        {"registration_ms", metrics->registration_us},
        {"expected_downtime_ms", metrics->expected_downtime_us},
    };
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"sent_bytes", metrics->sent_bytes},           {"wire_bytes", metrics->wire_bytes},
        {"zero_pages", metrics->zero_pages},           {"rounds", metrics->rounds},
        {"state_bytes", metrics->state_bytes},         {"registrations", metrics->registrations},
        {"verified_chunks", metrics->verified_chunks},
    };
    for (guint i = 0; i < G_N_ELEMENTS(times); i++)
        add_ms(object, times[i].key, times[i].us);
    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        rm_json_add_uint(object, counts[i].key, counts[i].value);
    char text[32];
    g_snprintf(text, sizeof text, "%.3f", metrics->cpu_s);
    rm_json_add(object, "cpu_s", json_object_new_double_s(metrics->cpu_s, text));
    return object;
}

static json_object *result_object(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics)
{
    json_object *event = event_new(reporter, "result");
    rm_json_add_string(event, "outcome", rm_state_name(result->state));
    rm_json_add_string(event, "reason", rm_reason_name(result->reason));
    rm_json_add_string(event, "owner", rm_owner_name(result->owner));
    rm_json_add_bool(event, "dry_run", result->dry_run);
    rm_json_add(event, "detail", result->detail != NULL ? json_object_new_string(result->detail) : NULL);
    rm_json_add(event, "where", result->where != NULL ? json_object_new_string(result->where) : NULL);
    rm_json_add(event, "next", result->next != NULL ? json_object_new_string(result->next) : NULL);
    rm_json_add(event, "transport",
                result->transport != NULL ? json_object_new_string(result->transport) : NULL);
    rm_json_add(event, "metrics", metrics_object(metrics));
    return event;
}

static void print_summary(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics)
{
    g_autofree char *sent = rm_format_size(metrics->sent_bytes);
    double ms = 1e-3;
    print_line(reporter, stdout, "moved over %s in %.0f ms, paused for %.0f ms", result->transport,
               (double)metrics->total_us * ms, (double)metrics->downtime_us * ms);
    print_line(
        reporter, stdout,
        "  pause: stop %.1f, last scan %.1f, last writes %.1f, state save %.1f, state load %.1f, resume "
        "%.1f ms",
        (double)metrics->stop_us * ms, (double)metrics->last_scan_us * ms,
        (double)metrics->last_write_us * ms, (double)metrics->save_us * ms, (double)metrics->load_us * ms,
        (double)metrics->resume_us * ms);
    print_line(reporter, stdout,
               "  sent %s, %" G_GUINT64_FORMAT " zero pages, %" G_GUINT64_FORMAT
               " rounds; fences held the console %.1f ms "
               "(longest %.1f); %.2f CPU seconds",
               sent, metrics->zero_pages, metrics->rounds, (double)metrics->fence_us * ms,
               (double)metrics->fence_max_us * ms, metrics->cpu_s);
    if (metrics->verified_chunks > 0)
        print_line(reporter, stdout, "  verified %" G_GUINT64_FORMAT " chunk digests, 0 differ",
                   metrics->verified_chunks);
}

static void print_result(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics)
{
    if (result->detail != NULL)
        print_line(reporter, stderr, "rdmamig: %s: %s", rm_reason_name(result->reason), result->detail);
    if (result->dry_run)
        print_line(reporter, stdout, "all checks passed; RAM would travel over %s", result->transport);
    else if (result->state == RM_STATE_DONE && reporter->style != RM_STYLE_QUIET)
        print_summary(reporter, result, metrics);
    FILE *where = result->exit_status == 0 ? stdout : stderr;
    if (reporter->style == RM_STYLE_QUIET && result->exit_status == 0)
        return;
    print_line(reporter, where, "%s%s%s", result->where, result->next != NULL ? "; next: " : "",
               result->next ?: "");
}

static void log_result(RmReporter *reporter, const RmResult *result)
{
    GLogLevelFlags level = result->exit_status == 0 ? G_LOG_LEVEL_MESSAGE : G_LOG_LEVEL_WARNING;
    RmLogEvent event =
        result->dry_run && result->exit_status == 0 ? RM_LOG_CHECKED : rm_state_log_event(result->state);
    rm_log_event(event, level, result->reason, "session %s: %s%s%s; %s%s%s", reporter->session,
                 rm_reason_name(result->reason), result->detail != NULL ? ": " : "", result->detail ?: "",
                 result->where, result->next != NULL ? "; next: " : "", result->next ?: "");
}

gboolean rm_reporter_result(RmReporter *reporter, const RmResult *result, const RmMetrics *metrics,
                            const char *file, GError **error)
{
    gboolean ok = TRUE;
    rm_output_drain(reporter->output); /* the guest's place is settled: now this can wait for its reader */
    g_mutex_lock(&reporter->lock);
    json_object *event = result_object(reporter, result, metrics);
    if (file != NULL) {
        g_autoptr(GError) problem = NULL;
        g_autofree char *text =
            g_strconcat(json_object_to_json_string_ext(event, JSON_C_TO_STRING_PLAIN), "\n", NULL);
        ok = g_file_set_contents(file, text, -1, &problem) ||
             rm_fail(error, RM_REASON_CLEANUP, "--report: %s", problem->message);
    }
    if (reporter->style == RM_STYLE_JSON)
        print_json(reporter, g_steal_pointer(&event));
    else if (reporter->style != RM_STYLE_LOG)
        print_result(reporter, result, metrics);
    /* In a unit, or a hook of libvirt's: what was printed has no fields there. */
    if (reporter->style == RM_STYLE_LOG || rm_journald_is_stderr())
        log_result(reporter, result);
    json_object_put(event);
    g_mutex_unlock(&reporter->lock);
    return ok;
}
