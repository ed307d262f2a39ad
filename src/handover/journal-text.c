/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The lines of a journal. */
#include "handover/journal-text.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"

#include <string.h>

#define DEPTH_MAX 16

static const char *const sides[] = {[RM_SIDE_SOURCE] = "source", [RM_SIDE_DESTINATION] = "destination"};

void rm_journal_facts_clear(RmJournalFacts *facts)
{
    g_free(facts->session);
    g_free(facts->guest);
    g_free(facts->qmp);
    g_free(facts->host_boot);
    g_free(facts->peer);
    g_free(facts->token);
    g_free(facts->tls_creds);
    g_free(facts->tls_host);
    *facts = (RmJournalFacts){0};
}

void rm_journal_record_clear(RmJournalRecord *record)
{
    json_object_put(record->note);
    *record = (RmJournalRecord){0};
}

static char *finish_line(json_object *object)
{
    char *line = g_strconcat(json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN), "\n", NULL);
    json_object_put(object);
    return line;
}

char *rm_journal_text_facts(const RmJournalFacts *facts)
{
    json_object *object = json_object_new_object();
    rm_json_add_uint(object, "journal", RM_JOURNAL_VERSION);
    rm_json_add_string(object, "session", facts->session);
    rm_json_add_string(object, "side", sides[facts->side]);
    rm_json_add_string(object, "guest", facts->guest);
    rm_json_add_string(object, "qmp", facts->qmp);
    rm_json_add_uint(object, "pid", (uint64_t)facts->pid);
    rm_json_add_uint(object, "pid_start", facts->pid_start);
    rm_json_add_string(object, "host_boot", facts->host_boot);
    rm_json_add_string(object, "peer", facts->peer);
    rm_json_add_string(object, "token", facts->token);
    if (facts->tls_creds != NULL)
        rm_json_add_string(object, "tls_creds", facts->tls_creds);
    if (facts->tls_host != NULL)
        rm_json_add_string(object, "tls_host", facts->tls_host);
    rm_json_add_bool(object, "was_running", facts->was_running);
    rm_json_add_bool(object, "keep_source", facts->keep_source);
    rm_json_add_bool(object, "started", facts->started);
    rm_json_add_uint(object, "time_us", (uint64_t)facts->time_us);
    return finish_line(object);
}

char *rm_journal_text_record(RmState state, gboolean run, json_object *note, int64_t time_us)
{
    json_object *object = json_object_new_object();
    rm_json_add_string(object, "state", rm_state_name(state));
    rm_json_add_bool(object, "run", run);
    if (note != NULL)
        rm_json_add(object, "note", json_object_get(note));
    rm_json_add_uint(object, "time_us", (uint64_t)time_us);
    return finish_line(object);
}

/* ---- reading ---- */

static gboolean take_text(json_object *object, const char *key, char **ret_text, GError **error)
{
    const char *text = NULL;
    if (!rm_json_string_opt(object, key, &text, error))
        return FALSE;
    *ret_text = g_strdup(text);
    return TRUE;
}

static gboolean take_time(json_object *object, int64_t *ret_time, GError **error)
{
    uint64_t time = 0;
    if (!rm_json_uint(object, "time_us", &time, error))
        return FALSE;
    if (time > G_MAXINT64)
        return rm_fail(error, RM_REASON_JOURNAL, "`time_us` is beyond all time");
    *ret_time = (int64_t)time;
    return TRUE;
}

static gboolean take_identity(json_object *object, RmJournalFacts *facts, GError **error)
{
    uint64_t version, pid;
    const char *session, *side;
    if (!rm_json_uint(object, "journal", &version, error))
        return FALSE;
    if (version != RM_JOURNAL_VERSION)
        return rm_fail(error, RM_REASON_JOURNAL,
                       "it has version %" G_GUINT64_FORMAT ", this rdmamig reads version %d only", version,
                       RM_JOURNAL_VERSION);
    if (!rm_json_string(object, "session", &session, error) ||
        !rm_json_string(object, "side", &side, error) || !rm_json_uint(object, "pid", &pid, error) ||
        !rm_json_uint(object, "pid_start", &facts->pid_start, error))
        return FALSE;
    if (!g_uuid_string_is_valid(session))
        return rm_fail(error, RM_REASON_JOURNAL, "`session` is not a UUID");
    if (pid > G_MAXINT32)
        return rm_fail(error, RM_REASON_JOURNAL, "`pid` is no process");
    if (strcmp(side, sides[RM_SIDE_SOURCE]) != 0 && strcmp(side, sides[RM_SIDE_DESTINATION]) != 0)
        return rm_fail(error, RM_REASON_JOURNAL, "`side` is neither source nor destination");
    facts->side = strcmp(side, sides[RM_SIDE_SOURCE]) == 0 ? RM_SIDE_SOURCE : RM_SIDE_DESTINATION;
    facts->session = g_strdup(session);
    facts->pid = (pid_t)pid;
    return TRUE;
}

static gboolean parse_facts(json_object *object, RmJournalFacts *facts, GError **error)
{
    return take_identity(object, facts, error) && take_text(object, "guest", &facts->guest, error) &&
           take_text(object, "qmp", &facts->qmp, error) &&
           take_text(object, "host_boot", &facts->host_boot, error) &&
           take_text(object, "peer", &facts->peer, error) &&
           take_text(object, "token", &facts->token, error) &&
           take_text(object, "tls_creds", &facts->tls_creds, error) &&
           take_text(object, "tls_host", &facts->tls_host, error) &&
           rm_json_bool_opt(object, "was_running", &facts->was_running, error) &&
           rm_json_bool_opt(object, "keep_source", &facts->keep_source, error) &&
           rm_json_bool_opt(object, "started", &facts->started, error) &&
           take_time(object, &facts->time_us, error);
}

static gboolean parse_record(json_object *object, RmJournalRecord *record, GError **error)
{
    const char *name;
    json_object *note = NULL;
    unsigned state = 0;
    if (!rm_json_string(object, "state", &name, error))
        return FALSE;
    while (state < RM_STATE_COUNT && strcmp(name, rm_state_name(state)) != 0)
        state++;
    if (state == RM_STATE_COUNT)
        return rm_fail(error, RM_REASON_JOURNAL, "`state` is none that this rdmamig knows");
    record->run = FALSE;
    if (!rm_json_bool_opt(object, "run", &record->run, error) ||
        !take_time(object, &record->time_us, error) ||
        (json_object_object_get_ex(object, "note", NULL) && !rm_json_object(object, "note", &note, error)))
        return FALSE;
    if (note != NULL) {
        json_object_put(record->note);
        record->note = json_object_get(note);
    }
    record->state = state;
    record->past |= 1u << state;
    return TRUE;
}

/* Every failure within is one of the journal's, whatever the reason of the place that found it. */
static gboolean parse_line(const char *line, gsize length, unsigned number, RmJournalFacts *facts,
                           RmJournalRecord *record, GError **error)
{
    g_autoptr(GError) problem = NULL;
    rm_autojson object = rm_json_parse(line, length, DEPTH_MAX, &problem);
    if (object != NULL &&
        (number == 1 ? parse_facts(object, facts, &problem) : parse_record(object, record, &problem)))
        return TRUE;
    return rm_fail(error, RM_REASON_JOURNAL, "line %u: %s", number, problem->message);
}

gboolean rm_journal_text_parse(const char *text, gsize length, RmJournalFacts *ret_facts,
                               RmJournalRecord *ret_record, gsize *ret_used, GError **error)
{
    g_auto(RmJournalFacts) facts = {0};
    g_auto(RmJournalRecord) record = {0};
    gsize used = 0;
    unsigned lines = 0;
    for (const char *end; (end = memchr(text + used, '\n', length - used)) != NULL;) {
        if (!parse_line(text + used, (gsize)(end - text) - used, ++lines, &facts, &record, error))
            return FALSE;
        used = (gsize)(end - text) + 1;
    }
    if (lines < 2) /* it gets its name only once both are on disk: rm_journal_create() */
        return rm_fail(error, RM_REASON_JOURNAL, "it ends after %u lines, without a state", lines);
    if (ret_facts != NULL) {
        *ret_facts = facts;
        facts = (RmJournalFacts){0};
    }
    *ret_record = record;
    record = (RmJournalRecord){0};
    *ret_used = used;
    return TRUE;
}
