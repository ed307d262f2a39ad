/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sessions of this host. The order matters: what runs is asked first, so that a session which ends meanwhile
 * is found ended, and none is lost between the two.
 */
#include "source/look.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "control/notice.h"
#include "control/status-socket.h"
#include "handover/reports.h"
#include "handover/table.h"
#include "source/unresolved.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const RmLookOptions *options;
    RmLook *look;
    GHashTable *seen; /* char* "SIDE SESSION" */
} Search;

static void object_put(gpointer object)
{
    json_object_put(object);
}

void rm_look_clear(RmLook *look)
{
    GPtrArray **arrays[] = {&look->unresolved, &look->live, &look->ended, &look->daemons};
    for (guint i = 0; i < G_N_ELEMENTS(arrays); i++)
        g_clear_pointer(arrays[i], g_ptr_array_unref);
}

static const char *text_of(json_object *object, const char *key)
{
    const char *text = "";
    rm_json_string_opt(object, key, &text, NULL);
    return text;
}

static gboolean is_wanted(const Search *search, const char *session, const char *guest)
{
    const char *which = search->options->which;
    return which == NULL || g_str_has_prefix(session, which) || g_strcmp0(guest, which) == 0;
}

static gboolean is_new(Search *search, const char *side, const char *session)
{
    return g_hash_table_add(search->seen, g_strdup_printf("%s %s", side, session));
}

/* Takes `object`; what is not wanted is remembered as seen all the same. */
static void add(Search *search, GPtrArray *where, json_object *object)
{
    const char *session = text_of(object, "session");
    if (is_new(search, text_of(object, "side"), session) &&
        is_wanted(search, session, text_of(object, "guest")))
        g_ptr_array_add(where, object);
    else
        json_object_put(object);
}

/* Of a folder that is not ours nothing is listed, which must not look as if there were nothing. */
static void check_folder(Search *search, const char *kind, const char *name)
{
    g_autoptr(GError) error = NULL;
    rm_autofd folder = rm_statedir_open(kind, name, FALSE, &error);
    if (folder >= 0 || error == NULL)
        return;
    fprintf(stderr, "rdmamig: %s\n", error->message);
    search->look->unreadable = TRUE;
}

/* ---- daemons ---- */

static void add_sender(const char *path, json_object *answer, gpointer data)
{
    Search *search = data;
    add(search, search->look->live, json_object_get(answer));
}

static void add_receiver(const char *path, json_object *answer, gpointer data)
{
    Search *search = data;
    json_object *sessions;
    g_ptr_array_add(search->look->daemons, json_object_get(answer));
    if (!rm_json_array(answer, "sessions", &sessions, NULL))
        return;
    for (size_t i = 0; i < json_object_array_length(sessions); i++)
        add(search, search->look->live, json_object_get(json_object_array_get_idx(sessions, i)));
}

/* ---- journals ---- */

static json_object *object_of(const RmJournalFacts *facts, const RmJournalRecord *record, const char *event)
{
    json_object *object = rm_notice_new(facts->session, facts->guest, event);
    g_autofree char *start = rm_notice_time(facts->time_us);
    rm_json_add_string(object, "side", rm_side_name(facts->side));
    rm_json_add_bool(object, "ended", FALSE);
    rm_json_add_string(object, "state", rm_state_name(record->state));
    rm_json_add_string(object, "owner", rm_owner_name(rm_state_owner(record->state)));
    rm_notice_add_text(object, "peer", facts->peer);
    rm_json_add_string(object, "start", start);
    return object;
}

/* Somebody looks after it, and did not answer: its guardian, or a daemon that hangs. */
static json_object *silent(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    json_object *object = object_of(facts, record, "status");
    rm_json_add_bool(object, "answers", FALSE);
    rm_json_add_uint(object, "elapsed_ms", (uint64_t)MAX(g_get_real_time() - facts->time_us, 0) / 1000);
    return object;
}

/* The last report's words, if they are about the same state. */
static json_object *unresolved(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    json_object *object = object_of(facts, record, "unresolved");
    json_object *report = rm_reports_read_side(facts->session, facts->side);
    gboolean known = report != NULL && strcmp(text_of(report, "state"), rm_state_name(record->state)) == 0;
    g_autofree char *since = rm_notice_time(record->time_us);
    g_autofree char *where = rm_unresolved_where(facts, record);
    g_autofree char *next = g_strdup_printf("rdmamig resolve %s", facts->session);
    rm_json_add_string(object, "since", since);
    rm_json_add_string(object, "reason", known ? text_of(report, "reason") : rm_reason_name(RM_REASON_NONE));
    rm_notice_add_text(object, "where",
                       known && *text_of(report, "where") ? text_of(report, "where") : where);
    rm_notice_add_text(object, "detail",
                       known && *text_of(report, "detail") ? text_of(report, "detail") : NULL);
    rm_notice_add_text(object, "next", known && *text_of(report, "next") ? text_of(report, "next") : next);
    json_object_put(report);
    return object;
}

/* Its report, unless there is none, or the journal knows better. */
static json_object *ended(const RmJournalFacts *facts, const RmJournalRecord *record)
{
    json_object *report = rm_reports_read_side(facts->session, facts->side);
    if (report != NULL && strcmp(text_of(report, "state"), rm_state_name(record->state)) == 0)
        return report;
    json_object_put(report);
    json_object *object = object_of(facts, record, "report");
    g_autofree char *end = rm_notice_time(record->time_us);
    rm_json_add_bool(object, "ended", TRUE);
    rm_json_add_string(object, "end", end);
    rm_json_add_string(object, "by", "journal");
    return object;
}

static void add_journal(Search *search, RmJournal *journal, guint *n_ended)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmJournalRecord) record = {0};
    g_autofree char *key = g_strdup_printf("%s %s", rm_side_name(facts->side), facts->session);
    if (!is_wanted(search, facts->session, facts->guest) || g_hash_table_contains(search->seen, key))
        return;
    gboolean taken = rm_journal_is_taken(journal); /* before: else its last record might be missed */
    if (!rm_journal_read(journal, &record, NULL))
        return;
    if (taken)
        add(search, search->look->live, silent(facts, &record));
    else if (rm_unresolved_is_due(journal, &record))
        add(search, search->look->unresolved, unresolved(facts, &record));
    else if (search->options->all || (*n_ended)++ < RM_LOOK_ENDED)
        add(search, search->look->ended, ended(facts, &record));
}

static void add_journals(Search *search, RmSide side)
{
    g_autoptr(GPtrArray) sessions = rm_journal_list(side);
    guint n_ended = 0;
    check_folder(search, "journal", rm_side_name(side));
    for (guint i = 0; i < sessions->len; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(RmJournal) journal = rm_journal_open(side, sessions->pdata[i], &error);
        if (journal != NULL) {
            add_journal(search, journal, &n_ended);
        } else if (error != NULL) {
            fprintf(stderr, "rdmamig: journal: %s\n", error->message);
            search->look->unreadable = TRUE;
        }
    }
}

/* ---- reports of sessions that have no journal: refused ones ---- */

static void add_reports(Search *search)
{
    g_autoptr(GPtrArray) sessions = rm_reports_list();
    guint n = 0;
    check_folder(search, "reports", NULL);
    for (guint i = 0; i < sessions->len && (search->options->all || n < RM_LOOK_ENDED); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GPtrArray) reports = rm_reports_read(sessions->pdata[i], &error);
        if (reports == NULL) {
            fprintf(stderr, "rdmamig: report: %s\n", error->message);
            search->look->unreadable = TRUE;
            continue;
        }
        for (guint j = 0; j < reports->len; j++) {
            guint before = search->look->ended->len;
            add(search, search->look->ended, json_object_get(reports->pdata[j]));
            n += search->look->ended->len - before;
        }
    }
}

static int newest_first(gconstpointer a, gconstpointer b)
{
    return strcmp(text_of(*(json_object *const *)b, "end"), text_of(*(json_object *const *)a, "end"));
}

void rm_look(const RmLookOptions *options, RmLook *ret_look)
{
    *ret_look = (RmLook){
        .unresolved = g_ptr_array_new_with_free_func(object_put),
        .live = g_ptr_array_new_with_free_func(object_put),
        .ended = g_ptr_array_new_with_free_func(object_put),
        .daemons = g_ptr_array_new_with_free_func(object_put),
    };
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    Search search = {options, ret_look, seen};
    rm_status_each(RM_STATUS_SEND, add_sender, &search);
    rm_status_each(RM_STATUS_RECV, add_receiver, &search);
    add_journals(&search, RM_SIDE_SOURCE);
    add_journals(&search, RM_SIDE_DESTINATION);
    add_reports(&search);
    g_ptr_array_sort(ret_look->ended, newest_first);
    if (!options->all && ret_look->ended->len > RM_LOOK_ENDED)
        g_ptr_array_set_size(ret_look->ended, RM_LOOK_ENDED);
}
