/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session at the destination, as others see it. */
#include "destination/view.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "control/notice.h"
#include "handover/reports.h"
#include "handover/table.h"
#include "memory/chunk.h"

typedef struct {
    uint64_t round, landed, zero_pages;
} Round;

struct RmView {
    char *session, *guest, *peer; /* immutable, with the times */
    gboolean dry_run;
    int64_t begin_us, begin_wall_us;

    GMutex lock; /* all below */
    RmState state;
    int64_t state_us;      /* since when; monotonic */
    const char *transport; /* NULL: none yet */
    GArray *rounds;        /* Round, at most RM_REPORT_ROUNDS_MAX: the first ones and the latest */
    uint64_t n_rounds, landed, landed_before; /* … the latest round */
    uint64_t zero_pages, state_bytes;
    uint64_t registrations, registered, registered_most; /* bytes, in granules */
    int64_t registration_us, load_us, activate_us;       /* -1: it did not come to that */
    GError *problem;
};

RmView *rm_view_new(const RmHello *hello, const char *peer)
{
    RmView *view = g_new0(RmView, 1);
    view->session = g_strdup(hello->session);
    view->guest = g_strdup(hello->guest_name);
    view->peer = g_strdup(peer);
    view->dry_run = hello->dry_run;
    view->state = hello->dry_run ? RM_STATE_PREFLIGHT : RM_STATE_CONNECTING;
    view->begin_us = g_get_monotonic_time();
    view->begin_wall_us = g_get_real_time();
    g_mutex_init(&view->lock);
    view->rounds = g_array_new(FALSE, FALSE, sizeof(Round));
    view->load_us = view->activate_us = -1;
    return view;
}

void rm_view_free(RmView *view)
{
    if (view == NULL)
        return;
    g_mutex_clear(&view->lock);
    g_array_unref(view->rounds);
    g_clear_error(&view->problem);
    g_free(view->session);
    g_free(view->guest);
    g_free(view->peer);
    g_free(view);
}

/* ---- what happens ---- */

static gboolean lock(RmView *view)
{
    if (view != NULL)
        g_mutex_lock(&view->lock);
    return view != NULL;
}

/* Checks are done, in the table's words, as soon as they have passed; the guest is its source's all the same.
 */
void rm_view_state(RmView *view, RmState state)
{
    if (view == NULL || view->dry_run)
        return;
    g_mutex_lock(&view->lock);
    int64_t now = g_get_monotonic_time();
    if (state == RM_STATE_PREPARED)
        view->load_us = now - view->state_us;
    view->state = state;
    view->state_us = now;
    g_mutex_unlock(&view->lock);
}

void rm_view_transport(RmView *view, const char *name)
{
    if (!lock(view))
        return;
    view->transport = rm_transport_find(name)->name;
    g_mutex_unlock(&view->lock);
}

/* Granules are what is registered; two extents may share one. */
static uint64_t granules(const GArray *extents)
{
    uint64_t count = 0, next = 0; /* the first granule that is not counted yet */
    for (guint i = 0; i < extents->len; i++) {
        const RmExtent *extent = &g_array_index(extents, RmExtent, i);
        uint64_t first = MAX(extent->start / RM_CHUNK_MIN, next);
        uint64_t end = (extent->end + RM_CHUNK_MIN - 1) / RM_CHUNK_MIN;
        if (end > first) {
            count += end - first;
            next = end;
        }
    }
    return count;
}

void rm_view_registered(RmView *view, const GArray *extents, gboolean released, int64_t us)
{
    uint64_t bytes = granules(extents) * RM_CHUNK_MIN;
    if (!lock(view))
        return;
    if (released) {
        view->registered -= MIN(bytes, view->registered);
    } else {
        view->registrations++;
        view->registration_us += us;
        view->registered += bytes;
        view->registered_most = MAX(view->registered_most, view->registered);
    }
    g_mutex_unlock(&view->lock);
}

static Round *round_of(RmView *view, uint64_t number)
{
    GArray *rounds = view->rounds;
    if (rounds->len > 0 && g_array_index(rounds, Round, rounds->len - 1).round == number)
        return &g_array_index(rounds, Round, rounds->len - 1);
    Round round = {.round = number};
    if (rounds->len >= RM_REPORT_ROUNDS_MAX)
        g_array_remove_index(rounds, RM_REPORT_ROUNDS_MAX / 2);
    g_array_append_val(rounds, round);
    view->n_rounds++;
    view->landed_before = view->landed;
    return &g_array_index(rounds, Round, rounds->len - 1);
}

void rm_view_round(RmView *view, uint64_t number, uint64_t landed, const GArray *zeroes)
{
    if (!lock(view))
        return;
    Round *round = round_of(view, number);
    view->landed = landed;
    round->landed = landed - view->landed_before;
    for (guint i = 0; i < zeroes->len; i++) {
        round->zero_pages += g_array_index(zeroes, RmZeroRange, i).count;
        view->zero_pages += g_array_index(zeroes, RmZeroRange, i).count;
    }
    g_mutex_unlock(&view->lock);
}

void rm_view_landed(RmView *view, uint64_t landed)
{
    if (!lock(view))
        return;
    view->landed = MAX(view->landed, landed);
    g_mutex_unlock(&view->lock);
}

void rm_view_state_bytes(RmView *view, uint64_t bytes)
{
    if (!lock(view))
        return;
    view->state_bytes = bytes;
    g_mutex_unlock(&view->lock);
}

void rm_view_activated(RmView *view)
{
    if (!lock(view))
        return;
    view->activate_us = g_get_monotonic_time() - view->state_us;
    g_mutex_unlock(&view->lock);
}

void rm_view_problem(RmView *view, const GError *problem)
{
    if (problem == NULL || !lock(view))
        return;
    if (view->problem == NULL)
        view->problem = g_error_copy(problem);
    g_mutex_unlock(&view->lock);
}

/* ---- status ---- */

json_object *rm_view_status(RmView *view, uint64_t landed)
{
    g_mutex_lock(&view->lock);
    json_object *status = rm_notice_new(view->session, view->guest, "status");
    rm_json_add_string(status, "side", rm_side_name(RM_SIDE_DESTINATION));
    rm_json_add_bool(status, "ended", FALSE);
    rm_json_add_string(status, "state", rm_state_name(view->state));
    rm_json_add_string(status, "owner", rm_owner_name(rm_state_owner(view->state)));
    rm_json_add_uint(status, "elapsed_ms", (uint64_t)(g_get_monotonic_time() - view->begin_us) / 1000);
    rm_notice_add_text(status, "peer", view->peer);
    rm_notice_add_text(status, "transport", view->transport);
    rm_json_add_bool(status, "dry_run", view->dry_run);
    rm_json_add_uint(status, "landed_bytes", MAX(landed, view->landed));
    rm_json_add_uint(status, "rounds", view->n_rounds);
    rm_json_add_uint(status, "registered_bytes", view->registered);
    g_mutex_unlock(&view->lock);
    return status;
}

gboolean rm_view_may_cancel(RmView *view)
{
    g_mutex_lock(&view->lock);
    gboolean may = view->problem == NULL && !rm_state_is_end(view->state) &&
                   rm_state_owner(view->state) == RM_OWNER_SOURCE;
    g_mutex_unlock(&view->lock);
    return may;
}

/* ---- the report ---- */

static json_object *metrics_object(const RmView *view)
{
    json_object *object = json_object_new_object();
    rm_notice_add_ms(object, "total_ms", g_get_monotonic_time() - view->begin_us);
    rm_notice_add_ms(object, "state_load_ms", view->load_us);
    rm_notice_add_ms(object, "resume_ms", view->activate_us);
    rm_notice_add_ms(object, "registration_ms", view->registration_us);
    rm_json_add_uint(object, "landed_bytes", view->landed);
    rm_json_add_uint(object, "zero_pages", view->zero_pages);
    rm_json_add_uint(object, "rounds", view->n_rounds);
    rm_json_add_uint(object, "state_bytes", view->state_bytes);
    rm_json_add_uint(object, "registrations", view->registrations);
    rm_json_add_uint(object, "registered_bytes", view->registered_most);
    return object;
}

static json_object *rounds_array(const RmView *view)
{
    json_object *array = json_object_new_array();
    for (guint i = 0; i < view->rounds->len; i++) {
        const Round *round = &g_array_index(view->rounds, Round, i);
        json_object *object = json_object_new_object();
        rm_json_add_uint(object, "round", round->round);
        rm_json_add_uint(object, "landed_bytes", round->landed);
        rm_json_add_uint(object, "zero_pages", round->zero_pages);
        json_object_array_add(array, object);
    }
    return array;
}

/* By the session's own knowledge: its QEMU may be slow to answer, or gone. */
static char *whereabouts(const RmView *view, const RmJournalFacts *facts, gboolean run)
{
    switch (view->state) {
    case RM_STATE_DONE:
        return g_strdup_printf("guest %s %s on %s", facts->guest, run ? "runs" : "is paused",
                               g_get_host_name());
    case RM_STATE_COMMITTED:
        return g_strdup_printf("guest %s is on %s, and does not run", facts->guest, g_get_host_name());
    default:
        return NULL;
    }
}

void rm_view_keep(RmView *view, RmJournal *journal)
{
    g_auto(RmJournalRecord) record = {0};
    if (journal == NULL || !rm_journal_read(journal, &record, NULL) || !lock(view))
        return;
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmSettled) settled = {.state = view->state};
    rm_settled_at_destination(&settled, facts, whereabouts(view, facts, record.run));
    if (!record.run)
        view->activate_us = -1;
    RmReport report = {
        .session = facts->session,
        .guest = facts->guest,
        .side = RM_SIDE_DESTINATION,
        .peer = view->peer,
        .start_us = view->begin_wall_us,
        .end_us = g_get_real_time(),
        .state = settled.state,
        .owner = settled.owner,
        .where = settled.where,
        .next = settled.next,
        .transport = view->transport,
        .by = RM_REPORT_BY_DAEMON,
        .metrics = metrics_object(view),
        .rounds = rounds_array(view),
    };
    if (settled.state != RM_STATE_DONE) {
        report.reason = view->problem != NULL ? rm_error_reason(view->problem) : RM_REASON_PEER_LOST;
        report.detail = view->problem != NULL ? view->problem->message : "the source left before `commit`";
    }
    rm_autojson object = rm_report_object(&report);
    g_mutex_unlock(&view->lock);
    rm_reports_write(object);
}
