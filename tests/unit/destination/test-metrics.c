/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Counting, and the text; tests/integration/prometheus.py reads the whole page as strictly as can be. */
#include "destination/metrics.h"

#include "destination/metrics-text.h"

#include <locale.h>
#include <string.h>

static void assert_line(const RmDaemonMetrics *metrics, const RmMetricsSample *sample, const char *line)
{
    static const RmMetricsSample none = {0};
    g_autofree char *page = rm_metrics_render(metrics, sample != NULL ? sample : &none);
    g_auto(GStrv) lines = g_strsplit(page, "\n", -1);
    if (!g_strv_contains((const char *const *)lines, line))
        g_error("no line `%s` in:\n%s", line, page);
}

static void assert_no_line(const RmDaemonMetrics *metrics, const char *start)
{
    static const RmMetricsSample none = {0};
    g_autofree char *page = rm_metrics_render(metrics, &none);
    g_assert_null(strstr(page, start));
}

static void test_counters(void)
{
    RmDaemonMetrics *metrics = rm_daemon_metrics_new();
    RmMetricsSample sample = {
        .received_bytes = UINT64_C(1) << 50,
        .registered_bytes = 4096,
        .process = {.cpu_s = 1.25, .start_s = 1796099485.53, .resident_bytes = 7, .open_fds = 3},
    };
    rm_metrics_count(metrics, RM_METRIC_CONNECTIONS_DATA);
    rm_metrics_count(metrics, RM_METRIC_CONNECTIONS_DATA);
    rm_metrics_add(metrics, RM_METRIC_CONNECTIONS, 3);
    rm_metrics_add(metrics, RM_METRIC_CONNECTIONS, -1);
    rm_metrics_add(metrics, RM_METRIC_REGISTRATION_US, 1500000);
    assert_line(metrics, NULL, "rdmamigd_connections_total{kind=\"data\"} 2");
    assert_line(metrics, NULL, "rdmamigd_connections_total{kind=\"query\"} 0");
    assert_line(metrics, NULL, "rdmamigd_connections 2");
    assert_line(metrics, NULL, "rdmamigd_registration_seconds_total 1.5");
    assert_line(metrics, &sample, "rdmamigd_received_bytes_total 1125899906842624");
    assert_line(metrics, &sample, "rdmamigd_registered_bytes 4096");
    assert_line(metrics, &sample, "process_cpu_seconds_total 1.25");
    assert_line(metrics, &sample, "process_start_time_seconds 1796099485.53");
    rm_metrics_add(metrics, RM_METRIC_CONNECTIONS, -3); /* seen between two threads' steps */
    assert_line(metrics, NULL, "rdmamigd_connections 0");
    rm_metrics_count(NULL, RM_METRIC_CONNECTIONS);
    rm_daemon_metrics_free(metrics);
}

static void test_refusals(void)
{
    static const struct {
        RmReason reason;
        const char *cause;
    } cases[] = {
        {RM_REASON_TLS, "tls"},          {RM_REASON_TOKEN, "token"},       {RM_REASON_PEER_TIMEOUT, "silent"},
        {RM_REASON_PEER_LOST, "silent"}, {RM_REASON_PROTOCOL, "stranger"}, {RM_REASON_INTERNAL, "stranger"}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        RmDaemonMetrics *metrics = rm_daemon_metrics_new();
        g_autofree char *line =
            g_strdup_printf("rdmamigd_connections_refused_total{cause=\"%s\"} 1", cases[i].cause);
        rm_metrics_count_refusal(metrics, cases[i].reason);
        assert_line(metrics, NULL, line);
        rm_daemon_metrics_free(metrics);
    }
}

static void test_sessions(void)
{
    RmDaemonMetrics *metrics = rm_daemon_metrics_new();
    RmSessionMeter meters[4] = {{0}};
    for (guint i = 0; i < G_N_ELEMENTS(meters); i++) {
        rm_session_meter_move(&meters[i], RM_STATE_PRECOPY); /* not begun: nothing */
        rm_session_meter_end(&meters[i], RM_STATE_DONE, RM_REASON_NONE, FALSE);
        rm_session_meter_begin(&meters[i], metrics);
    }
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"connecting\"} 4");
    assert_line(metrics, NULL, "rdmamigd_connections_total{kind=\"control\"} 4");
    rm_session_meter_move(&meters[0], RM_STATE_PRECOPY);
    rm_session_meter_move(&meters[1], RM_STATE_PRECOPY);
    rm_session_meter_move(&meters[1], RM_STATE_COMMITTED);
    rm_session_meter_move(&meters[1], RM_STATE_DONE);
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"connecting\"} 2");
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"precopy\"} 1");
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"committed\"} 0");
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"done\"} 1");
    assert_line(metrics, NULL, "rdmamigd_sessions_total{outcome=\"done\",reason=\"none\"} 0");
    for (guint twice = 0; twice < 2; twice++) {
        rm_session_meter_end(&meters[0], RM_STATE_FAILED, RM_REASON_PEER_LOST, FALSE);
        rm_session_meter_end(&meters[1], RM_STATE_DONE, RM_REASON_NONE, FALSE);
        rm_session_meter_end(&meters[2], RM_STATE_DONE, RM_REASON_NONE, TRUE);
        rm_session_meter_end(&meters[3], RM_STATE_REFUSED, 9999, TRUE);
    }
    assert_line(metrics, NULL, "rdmamigd_sessions_total{outcome=\"failed\",reason=\"peer-lost\"} 1");
    assert_line(metrics, NULL, "rdmamigd_sessions_total{outcome=\"done\",reason=\"none\"} 1");
    assert_line(metrics, NULL, "rdmamigd_sessions_total{outcome=\"refused\",reason=\"internal\"} 1");
    assert_line(metrics, NULL, "rdmamigd_checks_total 1");
    assert_line(metrics, NULL, "rdmamigd_sessions{state=\"connecting\"} 0");
    assert_no_line(metrics, "rdmamigd_sessions{state=\"done\"}");
    rm_daemon_metrics_free(metrics);
}

static void test_histogram(void)
{
    RmDaemonMetrics *metrics = rm_daemon_metrics_new();
    gint64 now = g_get_monotonic_time();
    rm_metrics_observe(metrics, RM_HISTOGRAM_LOAD, now - 3 * G_USEC_PER_SEC);
    rm_metrics_observe(metrics, RM_HISTOGRAM_LOAD, now - (gint64)3000 * G_USEC_PER_SEC);
    rm_metrics_observe(metrics, RM_HISTOGRAM_LOAD, now + (gint64)3000 * G_USEC_PER_SEC); /* never negative */
    assert_line(metrics, NULL, "rdmamigd_state_load_seconds_bucket{le=\"0.005\"} 1");
    assert_line(metrics, NULL, "rdmamigd_state_load_seconds_bucket{le=\"2.5\"} 1");
    assert_line(metrics, NULL, "rdmamigd_state_load_seconds_bucket{le=\"30\"} 2");
    assert_line(metrics, NULL, "rdmamigd_state_load_seconds_bucket{le=\"+Inf\"} 3");
    assert_line(metrics, NULL, "rdmamigd_state_load_seconds_count 3");
    assert_line(metrics, NULL, "rdmamigd_commit_to_running_seconds_count 0");
    rm_daemon_metrics_free(metrics);
}

static void test_text(void)
{
    static const double bounds[] = {0.5, 1};
    static const uint64_t counts[] = {1, 2, 3};
    g_autoptr(GString) text = g_string_new(NULL);
    rm_metrics_text_family(text, "a", "gauge", "back\\slash, \"quote\"\nand line");
    rm_metrics_text_uint(text, "a", "", UINT64_MAX, "one", "back\\slash", "two", "\"quote\"\nand line", NULL);
    rm_metrics_text_double(text, "a", "", -0.25, NULL);
    rm_metrics_text_histogram(text, "h", bounds, 2, counts, 9.5);
    g_assert_cmpstr(text->str, ==,
                    "# HELP a back\\\\slash, \"quote\"\\nand line\n"
                    "# TYPE a gauge\n"
                    "a{one=\"back\\\\slash\",two=\"\\\"quote\\\"\\nand line\"} 18446744073709551615\n"
                    "a -0.25\n"
                    "h_bucket{le=\"0.5\"} 1\n"
                    "h_bucket{le=\"1\"} 3\n"
                    "h_bucket{le=\"+Inf\"} 6\n"
                    "h_sum 9.5\n"
                    "h_count 6\n");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    /* One that writes 1,5, where there is one: the format has 1.5 in each. */
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL)
        g_test_message("no de_DE.UTF-8 here: numbers are looked at in the C locale only");
    g_test_add_func("/metrics/counters", test_counters);
    g_test_add_func("/metrics/refusals", test_refusals);
    g_test_add_func("/metrics/sessions", test_sessions);
    g_test_add_func("/metrics/histogram", test_histogram);
    g_test_add_func("/metrics/text", test_text);
    return g_test_run();
}
