/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session's figures as JSON. */
#include "source/figures.h"

#include "control/json.h"
#include "control/notice.h"

void rm_figures_add_round(json_object *object, const RmRoundStats *stats)
{
    rm_json_add_uint(object, "round", stats->round);
    rm_json_add_bool(object, "stopped", stats->stopped);
    rm_json_add_bool(object, "fenced", stats->fenced);
    rm_json_add_uint(object, "dirty_pages", stats->dirty_pages);
    rm_json_add_uint(object, "zero_pages", stats->zero_pages);
    rm_json_add_uint(object, "sent_bytes", stats->sent_bytes);
    rm_json_add_uint(object, "registrations", stats->registrations);
    rm_notice_add_ms(object, "scan_ms", stats->scan_us);
    rm_notice_add_ms(object, "fence_ms", stats->fence_us);
    rm_notice_add_ms(object, "send_ms", stats->send_us);
    rm_notice_add_ms(object, "registration_ms", stats->registration_us);
}

json_object *rm_figures_metrics(const RmMetrics *metrics)
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
        rm_notice_add_ms(object, times[i].key, times[i].us);
    for (guint i = 0; i < G_N_ELEMENTS(counts); i++)
        rm_json_add_uint(object, counts[i].key, counts[i].value);
    char text[32];
    g_snprintf(text, sizeof text, "%.3f", metrics->cpu_s);
    rm_json_add(object, "cpu_s", json_object_new_double_s(metrics->cpu_s, text));
    return object;
}

json_object *rm_figures_rounds(const GArray *rounds)
{
    json_object *array = json_object_new_array();
    for (guint i = 0; i < rounds->len; i++) {
        json_object *round = json_object_new_object();
        rm_figures_add_round(round, &g_array_index(rounds, RmRoundStats, i));
        json_object_array_add(array, round);
    }
    return array;
}

static void add_rate(json_object *object, const char *key, uint64_t bytes, int64_t us)
{
    char text[32];
    double rate = us > 0 ? (double)bytes / (1 << 20) / ((double)us / G_USEC_PER_SEC) : 0;
    g_snprintf(text, sizeof text, "%.1f", rate);
    rm_json_add(object, key, us > 0 ? json_object_new_double_s(rate, text) : NULL);
}

void rm_figures_add_rates(json_object *metrics, const GArray *rounds)
{
    const RmRoundStats *first = (const RmRoundStats *)(const void *)rounds->data;
    uint64_t bytes = 0;
    int64_t us = 0;
    for (guint i = 0; i < rounds->len; i++) {
        if (first[i].stopped) {
            bytes += first[i].sent_bytes;
            us += first[i].scan_us + first[i].send_us;
        }
    }
    add_rate(metrics, "bulk_mib_s", rounds->len > 0 ? first->sent_bytes : 0,
             rounds->len > 0 ? first->send_us : 0);
    add_rate(metrics, "last_round_mib_s", bytes, us);
}
