/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is told of a session at the destination: figures that add up, whatever their number. */
#include "destination/view.h"

#include "../handover/state-folder.h"

#include "control/json.h"
#include "handover/reports.h"
#include "memory/chunk.h"

static RmView *view_new(void)
{
    RmHello hello = {.session = (char *)SESSION, .guest_name = (char *)"guest"};
    return rm_view_new(&hello, "10.0.0.1:4711");
}

static uint64_t status_uint(RmView *view, const char *key, uint64_t landed)
{
    rm_autojson status = rm_view_status(view, landed);
    uint64_t value = UINT64_MAX;
    g_assert_true(rm_json_uint(status, key, &value, NULL));
    return value;
}

static void registered(RmView *view, gboolean released, const RmExtent *extents, guint n)
{
    g_autoptr(GArray) array = g_array_new(FALSE, FALSE, sizeof(RmExtent));
    g_array_append_vals(array, extents, n);
    rm_view_registered(view, array, released, 1000);
}

/* Whole granules, each once, however many extents share it. */
static void test_registered(void)
{
    const RmExtent extents[] = {{0, 4096},
                                {8192, 12288},
                                {RM_CHUNK_MIN - 4096, 2 * RM_CHUNK_MIN},
                                {5 * RM_CHUNK_MIN, 5 * RM_CHUNK_MIN + 1}};
    RmView *view = view_new();
    registered(view, FALSE, extents, G_N_ELEMENTS(extents));
    g_assert_cmpuint(status_uint(view, "registered_bytes", 0), ==, 3 * RM_CHUNK_MIN);
    registered(view, TRUE, extents, 1);
    g_assert_cmpuint(status_uint(view, "registered_bytes", 0), ==, 2 * RM_CHUNK_MIN);
    registered(view, TRUE, extents, G_N_ELEMENTS(extents)); /* never below nothing */
    g_assert_cmpuint(status_uint(view, "registered_bytes", 0), ==, 0);
    rm_view_free(view);
}

static void test_landed(void)
{
    g_autoptr(GArray) zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    RmView *view = view_new();
    rm_view_round(view, 1, 4096, zeroes);
    g_assert_cmpuint(status_uint(view, "landed_bytes", 8192), ==, 8192); /* newer */
    g_assert_cmpuint(status_uint(view, "landed_bytes", 0), ==, 4096);    /* the transport is gone */
    rm_view_free(view);
}

static void test_cancel(void)
{
    RmView *view = view_new();
    g_assert_true(rm_view_may_cancel(view));
    rm_view_state(view, RM_STATE_PREPARED);
    g_assert_true(rm_view_may_cancel(view));
    g_autoptr(GError) problem = g_error_new(RM_ERROR, RM_REASON_PEER_LOST, "gone");
    RmView *failed = view_new();
    rm_view_problem(failed, problem);
    g_assert_false(rm_view_may_cancel(failed));
    rm_view_free(failed);
    rm_view_state(view, RM_STATE_COMMITTED);
    g_assert_false(rm_view_may_cancel(view));
    rm_view_state(view, RM_STATE_DONE);
    g_assert_false(rm_view_may_cancel(view));
    rm_view_free(view);
}

/* Nothing is the destination's for having been checked. */
static void test_dry_run(void)
{
    RmHello hello = {.session = (char *)SESSION, .guest_name = (char *)"guest", .dry_run = TRUE};
    RmView *view = rm_view_new(&hello, "10.0.0.1:4711");
    rm_view_state(view, RM_STATE_DONE);
    rm_autojson status = rm_view_status(view, 0);
    const char *state, *owner;
    g_assert_true(rm_json_string(status, "state", &state, NULL));
    g_assert_true(rm_json_string(status, "owner", &owner, NULL));
    g_assert_cmpstr(state, ==, "preflight");
    g_assert_cmpstr(owner, ==, "source");
    rm_view_free(view);
}

/* A session that never converges: the report stays small, its sums stay right. */
static void test_many_rounds(void)
{
    enum { ROUNDS = 10000 };
    char *folder = state_folder_new();
    g_autoptr(GArray) zeroes = g_array_new(FALSE, FALSE, sizeof(RmZeroRange));
    RmJournal *journal = create(SESSION, RM_SIDE_DESTINATION, RM_STATE_PRECOPY);
    RmView *view = view_new();
    const RmZeroRange range = {0, 0, 3};
    g_array_append_val(zeroes, range);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        rm_view_round(view, round, (2 * round - 1) * 4096, zeroes); /* in two parts */
        rm_view_round(view, round, 2 * round * 4096, zeroes);
    }
    rm_view_state(view, RM_STATE_FAILED);
    rm_view_keep(view, journal);
    rm_autojson report = rm_reports_read_side(SESSION, RM_SIDE_DESTINATION);
    json_object *metrics, *rounds;
    uint64_t value;
    g_assert_true(rm_json_object(report, "metrics", &metrics, NULL));
    g_assert_true(rm_json_uint(metrics, "rounds", &value, NULL));
    g_assert_cmpuint(value, ==, ROUNDS);
    g_assert_true(rm_json_uint(metrics, "zero_pages", &value, NULL));
    g_assert_cmpuint(value, ==, 6 * ROUNDS);
    g_assert_true(rm_json_uint(metrics, "landed_bytes", &value, NULL));
    g_assert_cmpuint(value, ==, UINT64_C(2) * ROUNDS * 4096);
    g_assert_true(rm_json_array(report, "rounds", &rounds, NULL));
    g_assert_cmpuint(json_object_array_length(rounds), ==, RM_REPORT_ROUNDS_MAX);
    const struct {
        size_t index;
        uint64_t round;
    } kept[] = {{0, 1},
                {RM_REPORT_ROUNDS_MAX / 2 - 1, RM_REPORT_ROUNDS_MAX / 2},
                {RM_REPORT_ROUNDS_MAX / 2, ROUNDS - RM_REPORT_ROUNDS_MAX / 2 + 1},
                {RM_REPORT_ROUNDS_MAX - 1, ROUNDS}};
    for (guint i = 0; i < G_N_ELEMENTS(kept); i++) {
        json_object *each = json_object_array_get_idx(rounds, kept[i].index);
        g_assert_true(rm_json_uint(each, "round", &value, NULL));
        g_assert_cmpuint(value, ==, kept[i].round);
        g_assert_true(rm_json_uint(each, "landed_bytes", &value, NULL));
        g_assert_cmpuint(value, ==, 2 * 4096);
        g_assert_true(rm_json_uint(each, "zero_pages", &value, NULL));
        g_assert_cmpuint(value, ==, 6);
    }
    rm_view_free(view);
    rm_journal_close(journal);
    state_folder_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/view/registered", test_registered);
    g_test_add_func("/view/landed", test_landed);
    g_test_add_func("/view/cancel", test_cancel);
    g_test_add_func("/view/dry-run", test_dry_run);
    g_test_add_func("/view/many-rounds", test_many_rounds);
    return g_test_run();
}
