/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the source: for each state in which a session can have been broken off. */
#include "source/settle.h"

#include "../handover/altered-table.h"
#include "guest/fake.h"
#include "oracle.h"

static const char *const one[] = {"ram0"};
static const uint64_t sizes[] = {1 << 20};

typedef struct {
    char *folder;
    Oracle *oracle;
    RmJournal *journal;
    RmGuest *guest;
    RmSettled settled;
    GError *error;
} Rig;

static RmGuest *stopped_guest(gboolean saved)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GByteArray) state = NULL;
    RmGuest *guest = rm_guest_fake_new(RM_GUEST_RUNNING, one, sizes, 1, &error);
    g_assert_true(guest->ops->stop(guest, &error));
    g_assert_true(!saved || guest->ops->save(guest, &state, &error));
    g_assert_no_error(error);
    return guest;
}

/* fate "": nobody listens. */
static Rig *rig_new(RmState state, const char *fate, gboolean done, gboolean was_running, gboolean keep)
{
    Rig *rig = g_new0(Rig, 1);
    rig->folder = state_folder_new();
    rig->oracle = oracle_new(fate, done);
    g_autofree char *peer = g_strdup_printf("127.0.0.1:%u", rig->oracle->port);
    if (fate != NULL && *fate == '\0')
        g_clear_pointer(&rig->oracle, oracle_free);
    RmJournalFacts facts = {.session = (char *)SESSION,
                            .side = RM_SIDE_SOURCE,
                            .guest = (char *)"g",
                            .peer = peer,
                            .token = (char *)TOKEN,
                            .was_running = was_running,
                            .keep_source = keep};
    rm_journal_facts_stamp(&facts);
    rig->journal = rm_journal_create(&facts, RM_STATE_ATTACHING, &rig->error);
    g_assert_no_error(rig->error);
    g_free(facts.host_boot);
    rm_journal_move(rig->journal, ~0u, state, TRUE, NULL, FALSE, NULL, &rig->error);
    g_assert_no_error(rig->error);
    rig->guest = stopped_guest(TRUE);
    return rig;
}

static gboolean settle(Rig *rig, gboolean force)
{
    rm_settled_clear(&rig->settled);
    g_clear_error(&rig->error);
    gboolean ok = rm_settle_source(rig->journal, rig->guest, force, 0, NULL, &rig->settled, &rig->error);
    g_test_message("%s | %s | %s | %s", rm_state_name(rig->settled.state), rig->settled.where,
                   rig->settled.detail, rig->settled.next);
    g_assert_nonnull(rig->settled.where);
    g_assert_true(ok == (rig->error == NULL));
    return ok;
}

static void rig_free(Rig *rig)
{
    rm_settled_clear(&rig->settled);
    g_clear_error(&rig->error);
    rm_guest_free(rig->guest);
    rm_journal_close(rig->journal);
    if (rig->oracle != NULL)
        oracle_free(rig->oracle);
    state_folder_free(rig->folder);
    g_free(rig);
}

/* Each is settled twice: the second one finds what the first one did, as after a crash in between. */
static void test_table(void)
{
    static const struct {
        RmState state;
        const char *fate;
        gboolean done, force, was_running, keep;
        RmState expect;
        RmGuestRun run;
        gboolean quit;
    } cases[] = {
        {RM_STATE_SWITCHOVER, "", 0, 0, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0},
        {RM_STATE_SWITCHOVER, "committed", 1, 0, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0}, /* not asked */
        {RM_STATE_SWITCHOVER, "", 0, 0, 0, 0, RM_STATE_FAILED, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, "aborted", 0, 0, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0},
        {RM_STATE_DOUBTFUL, "aborted", 0, 0, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0},
        {RM_STATE_DOUBTFUL, "aborted", 1, 0, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0}, /* nonsense */
        {RM_STATE_COMMITTED, "committed", 1, 0, 1, 0, RM_STATE_DONE, RM_GUEST_SAVED, 1},
        {RM_STATE_DOUBTFUL, "committed", 1, 0, 1, 0, RM_STATE_DONE, RM_GUEST_SAVED, 1},
        {RM_STATE_COMMITTED, "committed", 1, 0, 1, 1, RM_STATE_DONE, RM_GUEST_SAVED, 0}, /* --keep-source */
        {RM_STATE_COMMITTED, "committed", 0, 0, 1, 0, RM_STATE_COMMITTED, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, "committed", 0, 1, 1, 0, RM_STATE_COMMITTED, RM_GUEST_SAVED,
         0}, /* forced, too */
        {RM_STATE_COMMITTED, "committed", 1, 1, 1, 0, RM_STATE_DONE, RM_GUEST_SAVED, 1},
        {RM_STATE_COMMITTED, "unknown", 0, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, "unknown", 1, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, "no such fate", 1, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, NULL, 0, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_COMMITTED, "", 0, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_DOUBTFUL, "", 0, 0, 1, 0, RM_STATE_DOUBTFUL, RM_GUEST_SAVED, 0},
        {RM_STATE_DOUBTFUL, "", 0, 1, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0},
        {RM_STATE_COMMITTED, "unknown", 0, 1, 1, 0, RM_STATE_FAILED, RM_GUEST_RUNNING, 0},
        {RM_STATE_DONE, "", 0, 0, 1, 0, RM_STATE_DONE, RM_GUEST_SAVED, 1}, /* died before the old VMM's end */
        {RM_STATE_DONE, "", 0, 0, 1, 1, RM_STATE_DONE, RM_GUEST_SAVED, 0},
        {RM_STATE_DONE, "", 0, 1, 1, 1, RM_STATE_DONE, RM_GUEST_SAVED, 0},
        {RM_STATE_FAILED, "", 0, 1, 1, 0, RM_STATE_FAILED, RM_GUEST_SAVED, 0},
        {RM_STATE_CANCELLED, "", 0, 0, 1, 0, RM_STATE_CANCELLED, RM_GUEST_SAVED, 0},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        Rig *rig = rig_new(cases[i].state, cases[i].fate, cases[i].done, cases[i].was_running, cases[i].keep);
        for (int again = 0; again < 2; again++) {
            g_test_message("case %u", i);
            g_assert_true(settle(rig, cases[i].force));
            g_assert_cmpint(rig->settled.state, ==, cases[i].expect);
            g_assert_cmpint(latest(rig->journal), ==, cases[i].expect);
            g_assert_cmpint(rig->settled.owner, ==, rm_state_owner(cases[i].expect));
            g_assert_cmpint(rm_guest_fake_has_quit(rig->guest), ==, cases[i].quit);
            if (!cases[i].quit)
                g_assert_cmpint(rm_guest_fake_run(rig->guest), ==, cases[i].run);
        }
        /* A guest that was paused before is rolled back, too. */
        gboolean rolled_back = strstr(rm_guest_fake_calls(rig->guest), "resume") != NULL;
        g_assert_cmpint(rolled_back, ==,
                        cases[i].expect == RM_STATE_FAILED && cases[i].state != RM_STATE_FAILED);
        rig_free(rig);
    }
}

/* Broken off before the guest was touched: not even a resume, which could undo an operator's pause. */
static void test_untouched(void)
{
    Rig *rig = rig_new(RM_STATE_ATTACHING, "", FALSE, TRUE, FALSE);
    g_assert_true(settle(rig, FALSE));
    g_assert_cmpint(latest(rig->journal), ==, RM_STATE_FAILED);
    g_assert_null(strstr(rm_guest_fake_calls(rig->guest), "resume"));
    rig_free(rig);
}

/* What save() had noted comes back to the provider before it rolls back. */
static void test_note(void)
{
    Rig *rig = rig_new(RM_STATE_ATTACHING, "", FALSE, TRUE, FALSE);
    rm_autojson note = json_tokener_parse(RM_GUEST_FAKE_NOTE);
    g_assert_true(rm_journal_move(rig->journal, ~0u, RM_STATE_SWITCHOVER, TRUE, note, FALSE, NULL, NULL));
    g_assert_true(rm_journal_move(rig->journal, ~0u, RM_STATE_SWITCHOVER, TRUE, NULL, FALSE, NULL, NULL));
    g_assert_true(settle(rig, FALSE));
    g_assert_nonnull(strstr(rm_guest_fake_calls(rig->guest), "recall(" RM_GUEST_FAKE_NOTE ") resume"));
    rig_free(rig);
}

/* A roll-back that fails is no end: the next one tries again. */
static void test_roll_back_fails(void)
{
    Rig *rig = rig_new(RM_STATE_SWITCHOVER, "", FALSE, TRUE, FALSE);
    rm_guest_fake_fail(rig->guest, "resume", RM_REASON_RESUME);
    g_assert_false(settle(rig, FALSE));
    g_assert_cmpint(latest(rig->journal), ==, RM_STATE_SWITCHOVER);
    g_assert_nonnull(strstr(rig->settled.next, "rdmamig resolve " SESSION));
    g_assert_true(settle(rig, FALSE));
    g_assert_cmpint(rm_guest_fake_run(rig->guest), ==, RM_GUEST_RUNNING);
    rig_free(rig);
}

/* The old VMM runs although the guest has gone: it is not ours to end. */
static void test_old_vmm_runs(void)
{
    Rig *rig = rig_new(RM_STATE_COMMITTED, "committed", TRUE, TRUE, FALSE);
    g_assert_true(rig->guest->ops->resume(rig->guest, TRUE, NULL));
    g_assert_false(settle(rig, FALSE));
    g_assert_cmpint(rm_error_reason(rig->error), ==, RM_REASON_GUEST_STATE);
    g_assert_false(rm_guest_fake_has_quit(rig->guest));
    rig_free(rig);
}

/* The VMM is gone, after a reboot for example: who may start the guest again? */
static void test_vmm_gone(void)
{
    static const struct {
        RmState state;
        const char *fate;
        gboolean done;
        RmState expect;
        gboolean safe;
    } cases[] = {
        {RM_STATE_SWITCHOVER, "", FALSE, RM_STATE_FAILED, TRUE},
        {RM_STATE_COMMITTED, "aborted", FALSE, RM_STATE_FAILED, TRUE},
        {RM_STATE_COMMITTED, "committed", TRUE, RM_STATE_DONE, FALSE},
        {RM_STATE_COMMITTED, "committed", FALSE, RM_STATE_DONE, FALSE},
        {RM_STATE_COMMITTED, "unknown", FALSE, RM_STATE_DOUBTFUL, FALSE},
        {RM_STATE_COMMITTED, "", FALSE, RM_STATE_DOUBTFUL, FALSE},
        {RM_STATE_DONE, "", FALSE, RM_STATE_DONE, FALSE},
        {RM_STATE_FAILED, "", FALSE, RM_STATE_FAILED, TRUE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        Rig *rig = rig_new(cases[i].state, cases[i].fate, cases[i].done, TRUE, FALSE);
        g_clear_pointer(&rig->guest, rm_guest_free);
        g_assert_true(settle(rig, FALSE));
        g_assert_cmpint(latest(rig->journal), ==, cases[i].expect);
        gboolean safe = rig->settled.next != NULL && strstr(rig->settled.next, "safe") != NULL;
        g_assert_cmpint(safe, ==, cases[i].safe);
        rig_free(rig);
    }
}

/* The operator's word is on record. */
static void test_forced_is_recorded(void)
{
    Rig *rig = rig_new(RM_STATE_COMMITTED, "", FALSE, TRUE, FALSE);
    g_auto(RmJournalRecord) record = {0};
    g_assert_true(settle(rig, TRUE));
    g_assert_true(rm_journal_read(rig->journal, &record, NULL));
    g_assert_true(json_object_get_boolean(json_object_object_get(record.note, "forced")));
    rig_free(rig);
}

/* What is done is what the table says, whatever it says: the model has walked the table, not this code. */
static void test_altered(void)
{
    const struct {
        RmState state;
        const char *fate;
        gboolean done;
        RmEvent event;
        RmState to;
        unsigned duties;
        const char *calls; /* of these, and no other */
        RmState expect;
    } cases[] = {
        {RM_STATE_SWITCHOVER, "", 0, RM_EVENT_SETTLE, RM_STATE_FAILED, RM_DUTY(RECORD), "", RM_STATE_FAILED},
        {RM_STATE_SWITCHOVER, "", 0, RM_EVENT_SETTLE, RM_STATE_CANCELLED, RM_DUTY(RECORD) | RM_DUTY(RESUME),
         "resume", RM_STATE_CANCELLED},
        {RM_STATE_SWITCHOVER, "", 0, RM_EVENT_SETTLE, RM_STATE_FAILED, RM_DUTY(RESUME), "resume",
         RM_STATE_SWITCHOVER},
        {RM_STATE_COMMITTED, "committed", 1, RM_EVENT_FATE_DONE, RM_STATE_DONE, RM_DUTY(RECORD), "",
         RM_STATE_DONE},
        {RM_STATE_COMMITTED, "committed", 0, RM_EVENT_FATE_COMMITTED, RM_STATE_DONE,
         RM_DUTY(RECORD) | RM_DUTY(END), "quit", RM_STATE_DONE},
        {RM_STATE_COMMITTED, "aborted", 0, RM_EVENT_FATE_ABORTED, RM_STATE_FAILED, RM_DUTY(RECORD), "",
         RM_STATE_FAILED},
        {RM_STATE_COMMITTED, "aborted", 0, RM_EVENT_SETTLE, RM_STATE_FAILED, RM_DUTY(RECORD), "",
         RM_STATE_FAILED}, /* not asked */
        {RM_STATE_COMMITTED, "", 0, RM_EVENT_FATE_UNKNOWN, RM_STATE_FAILED, RM_DUTY(RECORD) | RM_DUTY(RESUME),
         "resume", RM_STATE_FAILED},
        {RM_STATE_DONE, "", 0, RM_EVENT_SETTLE, RM_STATE_DONE, 0, "", RM_STATE_DONE},
    };
    static const char *const watched[] = {"resume", "quit"};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        Rig *rig = rig_new(cases[i].state, cases[i].fate, cases[i].done, TRUE, FALSE);
        Altered altered = alter(RM_SIDE_SOURCE, cases[i].state, cases[i].event, cases[i].to, cases[i].duties);
        g_test_message("case %u", i);
        g_assert_true(settle(rig, FALSE));
        put_right(altered);
        g_assert_cmpint(latest(rig->journal), ==, cases[i].expect);
        for (guint k = 0; k < G_N_ELEMENTS(watched); k++) {
            gboolean called = strstr(rm_guest_fake_calls(rig->guest), watched[k]) != NULL;
            g_assert_cmpint(called, ==, strcmp(cases[i].calls, watched[k]) == 0);
        }
        rig_free(rig);
    }
}

/* Without a row nothing is done, and that is said; what comes before is no guide. */
static void test_no_row(void)
{
    static const struct {
        RmState state;
        RmEvent event;
        const char *fate;
    } cases[] = {
        {RM_STATE_SWITCHOVER, RM_EVENT_SETTLE, ""},
        {RM_STATE_COMMITTED, RM_EVENT_SETTLE, "aborted"},
        {RM_STATE_COMMITTED, RM_EVENT_FATE_ABORTED, "aborted"},
        {RM_STATE_DOUBTFUL, RM_EVENT_FATE_UNKNOWN, "unknown"},
        {RM_STATE_PREPARED, RM_EVENT_COUNT, ""}, /* a state that is not recorded */
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        Rig *rig = rig_new(cases[i].state, cases[i].fate, FALSE, TRUE, FALSE);
        Altered altered;
        if (cases[i].event != RM_EVENT_COUNT)
            altered = take_away(RM_SIDE_SOURCE, cases[i].state, cases[i].event);
        g_assert_false(settle(rig, TRUE));
        if (cases[i].event != RM_EVENT_COUNT)
            put_right(altered);
        g_assert_cmpint(rm_error_reason(rig->error), ==, RM_REASON_JOURNAL);
        g_assert_nonnull(strstr(rig->error->message, rm_state_name(cases[i].state)));
        g_assert_cmpint(latest(rig->journal), ==, cases[i].state);
        g_assert_null(strstr(rm_guest_fake_calls(rig->guest), "resume"));
        rig_free(rig);
    }
}

/* Only who holds the journal's lock may settle by it. */
static void test_looked_after(void)
{
    Rig *rig = rig_new(RM_STATE_SWITCHOVER, "", FALSE, TRUE, FALSE);
    g_autoptr(RmJournal) other = rm_journal_open(RM_SIDE_SOURCE, SESSION, NULL);
    g_autoptr(GError) error = NULL;
    g_auto(RmSettled) settled = {0};
    g_assert_false(rm_settle_source(other, rig->guest, TRUE, 0, NULL, &settled, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_cmpint(latest(rig->journal), ==, RM_STATE_SWITCHOVER);
    g_assert_null(strstr(rm_guest_fake_calls(rig->guest), "resume"));
    rig_free(rig);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/settle/table", test_table);
    g_test_add_func("/settle/untouched", test_untouched);
    g_test_add_func("/settle/note", test_note);
    g_test_add_func("/settle/roll-back-fails", test_roll_back_fails);
    g_test_add_func("/settle/old-vmm-runs", test_old_vmm_runs);
    g_test_add_func("/settle/vmm-gone", test_vmm_gone);
    g_test_add_func("/settle/forced", test_forced_is_recorded);
    g_test_add_func("/settle/altered-table", test_altered);
    g_test_add_func("/settle/no-row", test_no_row);
    g_test_add_func("/settle/looked-after", test_looked_after);
    return g_test_run();
}
