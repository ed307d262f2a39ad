/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Counting, and the page. */
#include "destination/metrics.h"

#include "config.h"
#include "destination/metrics-text.h"

#define N_BOUNDS 12

/* Seconds: what either takes with a small guest at the one end, what --max-pause allows at the other. */
static const double bounds[N_BOUNDS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};

typedef struct {
    int64_t counts[N_BOUNDS + 1];
    int64_t sum_us;
} Histogram;

struct RmDaemonMetrics {
    /* Atomic, all. */
    int64_t values[RM_METRIC_COUNT];
    Histogram histograms[RM_HISTOGRAM_COUNT];
    int64_t current[RM_STATE_COUNT];
    int64_t ended[RM_STATE_COUNT][RM_REASON_COUNT];
    int64_t checks;
};

static void add(int64_t *number, int64_t by)
{
    __atomic_fetch_add(number, by, __ATOMIC_RELAXED);
}

/* A gauge may be seen between two threads' steps, and then below what is possible. */
static uint64_t get(const int64_t *number)
{
    return (uint64_t)MAX(0, __atomic_load_n(number, __ATOMIC_RELAXED));
}

RmDaemonMetrics *rm_daemon_metrics_new(void)
{
    return g_new0(RmDaemonMetrics, 1);
}

void rm_daemon_metrics_free(RmDaemonMetrics *metrics)
{
    g_free(metrics);
}

/* ---- counting ---- */

void rm_metrics_add(RmDaemonMetrics *metrics, RmMetric metric, int64_t by)
{
    if (metrics != NULL)
        add(&metrics->values[metric], by);
}

void rm_metrics_count(RmDaemonMetrics *metrics, RmMetric metric)
{
    rm_metrics_add(metrics, metric, 1);
}

void rm_metrics_count_refusal(RmDaemonMetrics *metrics, RmReason reason)
{
    switch (reason) {
    case RM_REASON_TLS:
        rm_metrics_count(metrics, RM_METRIC_REFUSED_TLS);
        break;
    case RM_REASON_TOKEN:
        rm_metrics_count(metrics, RM_METRIC_REFUSED_TOKEN);
        break;
    case RM_REASON_PEER_TIMEOUT:
    case RM_REASON_PEER_LOST:
        rm_metrics_count(metrics, RM_METRIC_REFUSED_SILENT);
        break;
    default:
        rm_metrics_count(metrics, RM_METRIC_REFUSED_STRANGER);
    }
}

void rm_metrics_observe(RmDaemonMetrics *metrics, RmHistogram histogram, int64_t since_us)
{
    int64_t us = MAX(0, g_get_monotonic_time() - since_us);
    unsigned i = 0;
    if (metrics == NULL)
        return;
    while (i < N_BOUNDS && (double)us / 1e6 > bounds[i])
        i++;
    add(&metrics->histograms[histogram].counts[i], 1);
    add(&metrics->histograms[histogram].sum_us, us);
}

void rm_session_meter_begin(RmSessionMeter *meter, RmDaemonMetrics *metrics)
{
    *meter = (RmSessionMeter){metrics, RM_STATE_CONNECTING};
    rm_metrics_count(metrics, RM_METRIC_CONNECTIONS_CONTROL);
    if (metrics != NULL)
        add(&metrics->current[meter->state], 1);
}

void rm_session_meter_move(RmSessionMeter *meter, RmState state)
{
    if (meter->metrics == NULL)
        return;
    add(&meter->metrics->current[meter->state], -1);
    add(&meter->metrics->current[state], 1);
    meter->state = state;
}

void rm_session_meter_end(RmSessionMeter *meter, RmState outcome, RmReason reason, gboolean dry_run)
{
    RmDaemonMetrics *metrics = meter->metrics;
    if (metrics == NULL)
        return;
    meter->metrics = NULL;
    add(&metrics->current[meter->state], -1);
    if (dry_run && outcome == RM_STATE_DONE)
        add(&metrics->checks, 1);
    else
        add(&metrics->ended[outcome][(unsigned)reason < RM_REASON_COUNT ? reason : RM_REASON_INTERNAL], 1);
}

/* ---- the page ---- */

#define PREFIX "rdmamigd_"

static void render_build(GString *text)
{
    const char *name = PREFIX "build_info";
    rm_metrics_text_family(text, name, "gauge", "Always 1; what this rdmamigd is, in its labels.");
    rm_metrics_text_uint(text, name, "", 1, "rdma", RM_RDMA ? "yes" : "no", "version", RM_VERSION, NULL);
}

static gboolean lasts(RmState state)
{
    return state != RM_STATE_PREFLIGHT && state != RM_STATE_ATTACHING && !rm_state_is_end(state);
}

/* The states that a session here passes through: with a 0 for those which it is not in, so that a graph has
 * no gaps. Of outcomes and reasons only those that there were, for most never occur. */
static void render_sessions(GString *text, const RmDaemonMetrics *metrics)
{
    const char *name = PREFIX "sessions";
    rm_metrics_text_family(text, name, "gauge", "Sessions now, by state.");
    for (unsigned state = 0; state < RM_STATE_COUNT; state++) {
        uint64_t n = get(&metrics->current[state]);
        if (n > 0 || lasts(state))
            rm_metrics_text_uint(text, name, "", n, "state", rm_state_name(state), NULL);
    }
    name = PREFIX "sessions_total";
    rm_metrics_text_family(
        text, name, "counter",
        "Sessions that have ended, by outcome and reason; done are guests that came here.");
    for (unsigned state = 0; state < RM_STATE_COUNT; state++) {
        for (unsigned reason = 0; reason < RM_REASON_COUNT; reason++) {
            uint64_t n = get(&metrics->ended[state][reason]);
            if (n > 0 || (state == RM_STATE_DONE && reason == RM_REASON_NONE))
                rm_metrics_text_uint(text, name, "", n, "outcome", rm_state_name(state), "reason",
                                     rm_reason_name(reason), NULL);
        }
    }
    name = PREFIX "checks_total";
    rm_metrics_text_family(text, name, "counter", "Checks by send --dry-run that this end has passed.");
    rm_metrics_text_uint(text, name, "", get(&metrics->checks), NULL);
}

static void render_gate(GString *text, const RmMetricsSample *sample)
{
    const char *name = PREFIX "connections_half_open";
    rm_metrics_text_family(text, name, "gauge", "Connections that have not said yet what they want.");
    rm_metrics_text_uint(text, name, "", sample->half_open, NULL);
    name = PREFIX "blocked_addresses";
    rm_metrics_text_family(text, name, "gauge", "Addresses that are blocked for too many failures.");
    rm_metrics_text_uint(text, name, "", sample->blocked, NULL);
}

static void render_connections(GString *text, const RmDaemonMetrics *metrics, const RmMetricsSample *sample)
{
    static const struct {
        const char *name, *type, *help;
        struct {
            RmMetric metric;
            const char *label, *value;
        } samples[8];
    } families[] = {
        {PREFIX "connections",
         "gauge",
         "Connections that are being served.",
         {{RM_METRIC_CONNECTIONS, NULL, NULL}}},
        {PREFIX "connections_total",
         "counter",
         "Connections that proved to be ours, by kind.",
         {{RM_METRIC_CONNECTIONS_CONTROL, "kind", "control"},
          {RM_METRIC_CONNECTIONS_DATA, "kind", "data"},
          {RM_METRIC_CONNECTIONS_QUERY, "kind", "query"}}},
        {PREFIX "connections_refused_total",
         "counter",
         "Connections that were turned away, by cause.",
         {{RM_METRIC_REFUSED_BUSY, "cause", "busy"},
          {RM_METRIC_REFUSED_SILENT, "cause", "silent"},
          {RM_METRIC_REFUSED_STRANGER, "cause", "stranger"},
          {RM_METRIC_REFUSED_TLS, "cause", "tls"},
          {RM_METRIC_REFUSED_TOKEN, "cause", "token"}}},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(families); i++) {
        rm_metrics_text_family(text, families[i].name, families[i].type, families[i].help);
        for (unsigned k = 0; k < G_N_ELEMENTS(families[i].samples); k++) {
            uint64_t value = get(&metrics->values[families[i].samples[k].metric]);
            if (k == 0 || families[i].samples[k].label != NULL)
                rm_metrics_text_uint(text, families[i].name, "", value, families[i].samples[k].label,
                                     families[i].samples[k].value, NULL);
        }
    }
    const char *name = PREFIX "connections_refused_total"; /* the last of the families, of which the gate
                                                              counts two */
    rm_metrics_text_uint(text, name, "", sample->half_open_ended, "cause", "half-open", NULL);
    rm_metrics_text_uint(text, name, "", sample->blocked_ended, "cause", "blocked", NULL);
}

static void render_memory(GString *text, const RmDaemonMetrics *metrics, const RmMetricsSample *sample)
{
    const char *name = PREFIX "received_bytes_total";
    rm_metrics_text_family(text, name, "counter",
                           "Guest memory and device state that has landed (over RDMA: as of its last mark).");
    rm_metrics_text_uint(text, name, "", sample->received_bytes, NULL);
    name = PREFIX "registered_bytes";
    rm_metrics_text_family(text, name, "gauge", "Guest memory that is registered with RDMA devices.");
    rm_metrics_text_uint(text, name, "", sample->registered_bytes, NULL);
    name = PREFIX "registrations_total";
    rm_metrics_text_family(text, name, "counter", "Chunks that were made writable, or looked at for that.");
    rm_metrics_text_uint(text, name, "", get(&metrics->values[RM_METRIC_REGISTRATIONS]), NULL);
    name = PREFIX "registration_seconds_total";
    rm_metrics_text_family(text, name, "counter",
                           "Time that threads spent on that, populating memory included.");
    rm_metrics_text_double(text, name, "", (double)get(&metrics->values[RM_METRIC_REGISTRATION_US]) / 1e6,
                           NULL);
}

static void render_histograms(GString *text, const RmDaemonMetrics *metrics)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        [RM_HISTOGRAM_LOAD] = {PREFIX "state_load_seconds",
                               "How long a waiting QEMU took to load a guest's device state."},
        [RM_HISTOGRAM_COMMIT] = {PREFIX "commit_to_running_seconds",
                                 "From the source's commit to the guest's running here."},
    };
    for (unsigned i = 0; i < RM_HISTOGRAM_COUNT; i++) {
        const Histogram *histogram = &metrics->histograms[i];
        uint64_t counts[N_BOUNDS + 1];
        for (unsigned k = 0; k <= N_BOUNDS; k++)
            counts[k] = get(&histogram->counts[k]);
        rm_metrics_text_family(text, families[i].name, "histogram", families[i].help);
        rm_metrics_text_histogram(text, families[i].name, bounds, N_BOUNDS, counts,
                                  (double)get(&histogram->sum_us) / 1e6);
    }
}

/* Under the names that all programs have for these. */
static void render_process(GString *text, const RmProcessUsage *usage)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } samples[] = {
        {"process_cpu_seconds_total", "counter", "User and system CPU time spent.", usage->cpu_s},
        {"process_start_time_seconds", "gauge", "When the process was started, since 1970.", usage->start_s},
        {"process_resident_memory_bytes", "gauge",
         "Resident memory, that of guests which are coming included.", (double)usage->resident_bytes},
        {"process_virtual_memory_bytes", "gauge", "Virtual memory.", (double)usage->virtual_bytes},
        {"process_open_fds", "gauge", "Open file descriptors.", (double)usage->open_fds},
        {"process_max_fds", "gauge", "Most file descriptors that may be open.", (double)usage->max_fds},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(samples); i++) {
        rm_metrics_text_family(text, samples[i].name, samples[i].type, samples[i].help);
        rm_metrics_text_double(text, samples[i].name, "", samples[i].value, NULL);
    }
}

char *rm_metrics_render(const RmDaemonMetrics *metrics, const RmMetricsSample *sample)
{
    GString *text = g_string_new(NULL);
    render_build(text);
    render_sessions(text, metrics);
    render_gate(text, sample);
    render_connections(text, metrics, sample);
    render_memory(text, metrics, sample);
    render_histograms(text, metrics);
    render_process(text, &sample->process);
    return g_string_free(text, FALSE);
}
