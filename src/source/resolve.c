/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * `rdmamig resolve`: journals found by id, and settled; or listed.
 *
 * One host can be both sides of a session (tests, a move between two QEMUs of one host): then the
 * destination's side is settled first, since the source's asks after it.
 */
#include "source/resolve.h"

#include "common/autoptr.h"
#include "common/printable.h"
#include "common/reason.h"
#include "control/json.h"
#include "destination/settle.h"
#include "handover/reach.h"
#include "source/report.h"
#include "source/settle.h"

#include <stdio.h>
#include <string.h>

#define QMP_TIMEOUT_MS 30000
#define LOOK_TIMEOUT_MS 2000 /* for the list */
#define ASK_FOR_MS 5000
#define TEXT_MAX 4096

enum { RESOLVED = 0, FAILED = 1, USAGE = 2, BUSY = 3, DOUBTFUL = 5, UNTIDY = 6 };

static const char *side_name(RmSide side)
{
    return side == RM_SIDE_SOURCE ? "source" : "destination";
}

/* ---- output ---- */

typedef struct {
    const RmJournalFacts *facts;
    const RmSettled *settled;
    RmReason reason;
    const char *detail; /* instead of settled's, or NULL */
} Result;

static void add_printable(json_object *event, const char *key, const char *text)
{
    g_autofree char *printable = rm_printable(text, TEXT_MAX);
    rm_json_add(event, key, text != NULL ? json_object_new_string(printable) : NULL);
}

static void print_json(const Result *result, const char *event_name)
{
    const RmSettled *settled = result->settled;
    rm_autojson event = rm_report_event(result->facts->session, result->facts->guest, event_name);
    rm_json_add_string(event, "side", side_name(result->facts->side));
    rm_json_add_string(event, "outcome",
                       settled->state < RM_STATE_COUNT ? rm_state_name(settled->state) : NULL);
    rm_json_add_string(event, "reason", rm_reason_name(result->reason));
    rm_json_add_string(event, "owner", rm_owner_name(settled->owner));
    add_printable(event, "detail", result->detail);
    add_printable(event, "where", settled->where);
    add_printable(event, "next", settled->next);
    puts(json_object_to_json_string_ext(event, JSON_C_TO_STRING_PLAIN));
}

static void print_text(const Result *result, int status)
{
    g_autofree char *detail = rm_printable(result->detail, TEXT_MAX);
    g_autofree char *where = rm_printable(result->settled->where, TEXT_MAX);
    g_autofree char *next = rm_printable(result->settled->next, TEXT_MAX);
    if (result->detail != NULL)
        fprintf(stderr, "rdmamig: %s: %s\n", rm_reason_name(result->reason), detail);
    fprintf(status == RESOLVED ? stdout : stderr, "%s%s%s\n", where, *next != '\0' ? "; next: " : "", next);
}

/* ---- settling one ---- */

/* The destination's side of it, in the source's words. */
static gboolean settle_destination(RmJournal *journal, RmGuest *guest, RmSettled *settled, GError **error)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmJournalRecord) record = {0};
    settled->state = RM_STATE_COUNT;
    gboolean ok = rm_settle_destination(journal, guest, &settled->state, error);
    if (settled->state == RM_STATE_COUNT)
        return FALSE;
    settled->owner = rm_state_owner(settled->state);
    if (settled->owner == RM_OWNER_SOURCE)
        settled->where = g_strdup_printf("guest %s is not on %s, and will not be: it is its source's",
                                         facts->guest, g_get_host_name());
    else if (guest != NULL)
        settled->where = rm_settle_whereabouts(guest, facts->guest);
    else
        settled->where = g_strdup_printf("guest %s is nowhere: it was %s's, and its QEMU (pid %d) has ended",
                                         facts->guest, g_get_host_name(), (int)facts->pid);
    if (settled->owner == RM_OWNER_DESTINATION && guest == NULL)
        settled->next = g_strdup("it is safe to start it here again");
    else if (settled->state == RM_STATE_DOUBTFUL)
        settled->next =
            g_strdup_printf("at its source, where it is paused: rdmamig resolve %s", facts->session);
    return ok;
}

static int status_of(gboolean ok, const RmSettled *settled)
{
    if (settled->state == RM_STATE_DOUBTFUL)
        return DOUBTFUL;
    if (settled->state == RM_STATE_COMMITTED || (settled->state == RM_STATE_DONE && !ok))
        return UNTIDY;
    return ok ? RESOLVED : FAILED;
}

static RmReason reason_of(const GError *error, int status)
{
    if (error != NULL)
        return rm_error_reason(error);
    return status == DOUBTFUL ? RM_REASON_DOUBTFUL : status == UNTIDY ? RM_REASON_CLEANUP : RM_REASON_NONE;
}

/* A VMM that is there but does not answer: nothing is due without it, so nothing is recorded either. */
static int report_unreachable(const RmJournalFacts *facts, const GError *problem, gboolean json)
{
    g_auto(RmSettled) settled = {.state = RM_STATE_COUNT, .owner = RM_OWNER_UNKNOWN};
    settled.where = g_strdup_printf("guest %s: its QEMU (pid %d) cannot be reached on %s", facts->guest,
                                    (int)facts->pid, g_get_host_name());
    settled.next =
        g_strdup_printf("free %s, and: rdmamig resolve %s", facts->qmp ?: "its QMP socket", facts->session);
    Result result = {facts, &settled, rm_error_reason(problem), problem->message};
    if (json)
        print_json(&result, "result");
    else
        print_text(&result, FAILED);
    return FAILED;
}

static int settle_one(RmJournal *journal, const RmResolveOptions *options)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_autoptr(GError) error = NULL;
    g_autoptr(RmGuest) guest = NULL;
    g_auto(RmSettled) settled = {0};
    if (!rm_journal_take(journal)) {
        fprintf(stderr,
                "rdmamig: session %s is being looked after at this moment (%s side): see rdmamig status\n",
                facts->session, side_name(facts->side));
        return BUSY;
    }
    if (!rm_reach_guest(facts, QMP_TIMEOUT_MS, &guest, &error))
        return report_unreachable(facts, error, options->json);
    gboolean ok = facts->side == RM_SIDE_SOURCE
                      ? rm_settle_source(journal, guest, options->force_resume, ASK_FOR_MS,
                                         options->tls_creds, &settled, &error)
                      : settle_destination(journal, guest, &settled, &error);
    if (settled.where == NULL) { /* the journal can't be read */
        fprintf(stderr, "rdmamig: %s: %s\n", rm_reason_name(rm_error_reason(error)), error->message);
        return FAILED;
    }
    int status = status_of(ok, &settled);
    Result result = {facts, &settled, reason_of(error, status),
                     error != NULL ? error->message : settled.detail};
    if (options->json)
        print_json(&result, "result");
    else
        print_text(&result, status);
    return status;
}

/* ---- the list ---- */

/* Nothing is changed for it, and nobody asked but this host's own VMMs. */
static gboolean list_one(RmJournal *journal, gboolean json)
{
    const RmJournalFacts *facts = rm_journal_facts(journal);
    g_auto(RmJournalRecord) record = {0};
    g_auto(RmSettled) settled = {0};
    g_autoptr(RmGuest) guest = NULL;
    if (!rm_journal_take(journal) || !rm_journal_read(journal, &record, NULL))
        return FALSE;
    gboolean lives = rm_journal_vmm_lives(facts);
    gboolean left = record.state == RM_STATE_DONE && lives && !facts->keep_source;
    if (facts->side == RM_SIDE_SOURCE
            ? rm_state_is_end(record.state) && record.state != RM_STATE_DOUBTFUL && !left
            : !rm_settle_destination_due(journal))
        return FALSE;
    settled.state = record.state;
    settled.owner = rm_state_owner(record.state);
    if (lives && rm_reach_guest(facts, LOOK_TIMEOUT_MS, &guest, NULL) && guest != NULL)
        settled.where = rm_settle_whereabouts(guest, facts->guest);
    else
        settled.where = g_strdup_printf(lives ? "guest %s: its QEMU does not answer on %s"
                                              : "guest %s has no QEMU on %s any more",
                                        facts->guest, g_get_host_name());
    settled.next = g_strdup_printf("rdmamig resolve %s", facts->session);
    Result result = {facts, &settled, RM_REASON_NONE, NULL};
    if (json) {
        print_json(&result, "unresolved");
    } else {
        printf("%s  %s side, %s, owner %s  ", facts->session, side_name(facts->side),
               rm_state_name(record.state), rm_owner_name(settled.owner));
        fflush(stdout);
        print_text(&result, RESOLVED);
    }
    return TRUE;
}

/* ---- finding ---- */

static void journal_close(gpointer journal)
{
    rm_journal_close(journal);
}

/* All of one side whose id begins so; *unreadable is set if one could not be read, which has been told. */
static void find(RmSide side, const char *prefix, GPtrArray *journals, gboolean *unreadable)
{
    g_autoptr(GPtrArray) sessions = rm_journal_list(side);
    for (guint i = 0; i < sessions->len; i++) {
        g_autoptr(GError) error = NULL;
        if (prefix != NULL && !g_str_has_prefix(sessions->pdata[i], prefix))
            continue;
        RmJournal *journal = rm_journal_open(side, sessions->pdata[i], &error);
        if (journal != NULL) {
            g_ptr_array_add(journals, journal);
        } else if (error != NULL) {
            fprintf(stderr, "rdmamig: journal: %s\n", error->message);
            *unreadable = TRUE;
        }
    }
}

static gboolean same_session(const GPtrArray *journals)
{
    for (guint i = 1; i < journals->len; i++) {
        if (strcmp(rm_journal_facts(journals->pdata[0])->session,
                   rm_journal_facts(journals->pdata[i])->session) != 0)
            return FALSE;
    }
    return TRUE;
}

static int resolve_session(GPtrArray *journals, const RmResolveOptions *options, gboolean unreadable)
{
    int worst = RESOLVED;
    if (journals->len == 0) {
        if (!unreadable)
            fprintf(stderr,
                    "rdmamig: no session here begins with `%s`; `rdmamig resolve` lists what there is\n",
                    options->session);
        return FAILED;
    }
    if (!same_session(journals)) {
        fprintf(stderr, "rdmamig: several sessions begin with `%s`; say more of its id\n", options->session);
        return USAGE;
    }
    for (guint i = 0; i < journals->len; i++) {
        int status = settle_one(journals->pdata[i], options);
        worst = worst == RESOLVED || status == DOUBTFUL ? status : worst;
    }
    return unreadable && worst == RESOLVED ? FAILED : worst;
}

int rm_resolve(const RmResolveOptions *options)
{
    g_autoptr(GPtrArray) journals = g_ptr_array_new_with_free_func(journal_close);
    gboolean unreadable = FALSE;
    guint unresolved = 0;
    find(RM_SIDE_DESTINATION, options->session, journals, &unreadable);
    find(RM_SIDE_SOURCE, options->session, journals, &unreadable);
    if (options->session != NULL)
        return resolve_session(journals, options, unreadable);
    for (guint i = 0; i < journals->len; i++)
        unresolved += list_one(journals->pdata[i], options->json) ? 1 : 0;
    if (unreadable)
        return FAILED;
    if (unresolved == 0 && !options->json)
        puts("nothing is to be resolved on this host");
    return unresolved == 0 ? RESOLVED : DOUBTFUL;
}
