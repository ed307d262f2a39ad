/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settling at the destination. */
#include "destination/settle.h"

#include "../handover/altered-table.h"
#include "../handover/state-folder.h"
#include "guest/fake.h"

static const char *const one[] = {"ram0"};
static const uint64_t sizes[] = {1 << 20};

typedef struct {
    const RmState *states; /* how the session went, up to RM_STATE_COUNT */
    gboolean run, started, loaded;
    RmState expect;
    gboolean quit, runs;
    gboolean gone; /* its VMM */
} Row;

static RmJournal *journal_of(const Row *row)
{
    g_autoptr(GError) error = NULL;
    RmJournalFacts facts = {.session = (char *)SESSION,
                            .side = RM_SIDE_DESTINATION,
                            .guest = (char *)"g",
                            .pid = row->gone ? G_MAXINT : getpid(), /* that one nobody has */
                            .started = row->started};
    rm_journal_facts_stamp(&facts);
    RmJournal *journal = rm_journal_create(&facts, row->states[0], &error);
    g_assert_no_error(error);
    g_free(facts.host_boot);
    for (const RmState *state = row->states + 1; *state != RM_STATE_COUNT; state++)
        g_assert_true(rm_journal_move(journal, ~0u, *state, row->run, NULL, FALSE, NULL, &error));
    return journal;
}

static RmGuest *waiting_guest(gboolean loaded)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GByteArray) state = NULL;
    RmGuest *guest = rm_guest_fake_new(RM_GUEST_WAITING, one, sizes, 1, &error);
    g_autoptr(RmGuest) source = rm_guest_fake_new(RM_GUEST_PAUSED, one, sizes, 1, &error);
    g_assert_true(source->ops->save(source, &state, &error));
    if (loaded)
        g_assert_true(guest->ops->load(guest, state->data, state->len, &error));
    g_assert_no_error(error);
    return guest;
}

#define PATH(...) ((const RmState[]){__VA_ARGS__, RM_STATE_COUNT})
#define S(id) RM_STATE_##id

static void test_table(void)
{
    const Row rows[] = {
        {PATH(S(PRECOPY)), 0, 0, 0, S(FAILED), 0, 0}, /* can be asked again */
        {PATH(S(PRECOPY)), 0, 1, 0, S(FAILED), 1, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER)), 0, 0, 0, S(FAILED), 1, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER)), 0, 0, 1, S(FAILED), 1, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), 1, 0, 1, S(DONE), 0, 1},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), 0, 0, 1, S(DONE), 0, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), 1, 1, 1, S(DONE), 0, 1},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED), S(DONE)), 1, 1, 1, S(DONE), 0, 0},
        /* aborted by a query, whose daemon died before it ended the QEMU */
        {PATH(S(PRECOPY), S(FAILED)), 0, 0, 0, S(FAILED), 0, 0},
        {PATH(S(PRECOPY), S(FAILED)), 0, 1, 0, S(FAILED), 1, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(FAILED)), 0, 0, 1, S(FAILED), 1, 0},
        {PATH(S(PRECOPY), S(SWITCHOVER), S(CANCELLED)), 0, 0, 1, S(CANCELLED), 1, 0},
    };
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = journal_of(&rows[i]);
        g_autoptr(RmGuest) guest = waiting_guest(rows[i].loaded);
        for (int again = 0; again < 2; again++) {
            g_autoptr(GError) error = NULL;
            RmState state;
            g_test_message("row %u", i);
            rm_settle_destination(journal, guest, &state, &error);
            g_assert_no_error(error);
            g_assert_cmpint(state, ==, rows[i].expect);
            g_assert_cmpint(latest(journal), ==, rows[i].expect);
            g_assert_cmpint(rm_guest_fake_has_quit(guest), ==, rows[i].quit);
            g_assert_cmpint(rm_guest_fake_run(guest) == RM_GUEST_RUNNING, ==, rows[i].runs);
        }
        state_folder_free(folder);
    }
}

static void test_due(void)
{
    const struct {
        Row row;
        gboolean due;
    } cases[] = {
        {{PATH(S(PRECOPY))}, TRUE},
        {{PATH(S(PRECOPY), S(COMMITTED))}, TRUE},
        {{PATH(S(PRECOPY), S(COMMITTED), S(DONE))}, FALSE},
        {{PATH(S(PRECOPY), S(FAILED))}, FALSE},
        {{PATH(S(PRECOPY), S(FAILED)), .started = TRUE}, TRUE}, /* its VMM, this process, still is */
        {{PATH(S(PRECOPY), S(SWITCHOVER), S(FAILED))}, TRUE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = journal_of(&cases[i].row);
        g_assert_cmpint(rm_settle_destination_due(journal), ==, cases[i].due);
        state_folder_free(folder);
    }
}

/* A guest that does not run yet stays the destination's, to be tried again. */
static void test_activate_fails(void)
{
    const Row row = {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), .run = TRUE};
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = journal_of(&row);
    g_autoptr(RmGuest) guest = waiting_guest(TRUE);
    g_autoptr(GError) error = NULL;
    RmState state;
    rm_guest_fake_fail(guest, "activate", RM_REASON_RESUME);
    g_assert_false(rm_settle_destination(journal, guest, &state, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_RESUME);
    g_assert_cmpint(state, ==, RM_STATE_COMMITTED);
    g_clear_error(&error);
    g_assert_true(rm_settle_destination(journal, guest, &state, &error));
    g_assert_cmpint(state, ==, RM_STATE_DONE);
    g_assert_cmpint(rm_guest_fake_run(guest), ==, RM_GUEST_RUNNING);
    state_folder_free(folder);
}

/* Its VMM is gone. Committed: the guest is lost with it, which nobody may call done, nor aborted. */
static void test_vmm_gone(void)
{
    const Row open = {PATH(S(PRECOPY), S(SWITCHOVER)), .gone = TRUE},
              committed = {PATH(S(PRECOPY), S(COMMITTED)), .run = TRUE, .gone = TRUE},
              silent = {PATH(S(PRECOPY), S(COMMITTED)), .run = TRUE};
    char *folder = state_folder_new();
    g_autoptr(GError) error = NULL;
    RmState state;
    RmJournal *journal = journal_of(&open);
    g_assert_true(rm_settle_destination(journal, NULL, &state, &error));
    g_assert_cmpint(state, ==, RM_STATE_FAILED);
    rm_journal_close(journal);
    state_folder_free(folder);
    folder = state_folder_new();
    journal = journal_of(&committed);
    g_assert_false(rm_settle_destination(journal, NULL, &state, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_GONE);
    g_assert_cmpint(latest(journal), ==, RM_STATE_DOUBTFUL);
    g_assert_cmpint(state, ==, RM_STATE_DOUBTFUL);
    g_assert_false(rm_settle_destination_due(journal));
    rm_journal_close(journal);
    state_folder_free(folder);
    /* It only doesn't answer: it is asked again later. */
    folder = state_folder_new();
    journal = journal_of(&silent);
    g_clear_error(&error);
    g_assert_false(rm_settle_destination(journal, NULL, &state, &error));
    g_assert_cmpint(latest(journal), ==, RM_STATE_COMMITTED);
    rm_journal_close(journal);
    state_folder_free(folder);
}

/* Somebody has let it run: whatever it is now, ending it could end the only copy of a guest. */
static void test_burnt_but_running(void)
{
    const Row row = {PATH(S(PRECOPY), S(SWITCHOVER))};
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = journal_of(&row);
    g_autoptr(RmGuest) guest = waiting_guest(TRUE);
    g_autoptr(GError) error = NULL;
    RmState state;
    g_assert_true(guest->ops->activate(guest, &error));
    g_assert_false(rm_settle_destination(journal, guest, &state, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_GUEST_STATE);
    g_assert_cmpint(latest(journal), ==, RM_STATE_FAILED);
    g_assert_false(rm_guest_fake_has_quit(guest));
    state_folder_free(folder);
}

/* What the daemon had changed of the VMM's settings: put back in one that waits on, and in the guest's new
 * home; one that has been taken into use since is left alone. */
static void test_note(void)
{
    static const struct {
        RmState state;
        gboolean loaded;
        const char *calls; /* the last of them */
    } rows[] = {
        {RM_STATE_PRECOPY, FALSE, "recall(" RM_GUEST_FAKE_NOTE ") put-back"},
        {RM_STATE_CANCELLED, FALSE, "recall(" RM_GUEST_FAKE_NOTE ") put-back"},
        {RM_STATE_CANCELLED, TRUE, "load"},
        {RM_STATE_COMMITTED, TRUE, "activate recall(" RM_GUEST_FAKE_NOTE ") put-back"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        char *folder = state_folder_new();
        const Row row = {PATH(S(PRECOPY)), .run = TRUE};
        g_autoptr(RmJournal) journal = journal_of(&row);
        g_autoptr(RmGuest) guest = waiting_guest(rows[i].loaded);
        g_autoptr(GError) error = NULL;
        json_object *note = json_tokener_parse(RM_GUEST_FAKE_NOTE);
        RmState state;
        g_assert_true(rm_journal_move(journal, ~0u, RM_STATE_PRECOPY, TRUE, note, FALSE, NULL, &error) &&
                      rm_journal_move(journal, ~0u, rows[i].state, TRUE, NULL, FALSE, NULL, &error) &&
                      rm_settle_destination(journal, guest, &state, &error));
        g_test_message("row %u: %s", i, rm_guest_fake_calls(guest));
        g_assert_true(g_str_has_suffix(rm_guest_fake_calls(guest), rows[i].calls));
        json_object_put(note);
        state_folder_free(folder);
    }
}

/* What is done is what the table says, whatever it says: the model has walked the table, not this code. */
static void test_altered(void)
{
    const struct {
        Row row; /* with what is to come of it */
        RmState state;
        RmEvent event;
        RmState to;
        unsigned duties;
    } cases[] = {
        {{PATH(S(PRECOPY), S(SWITCHOVER)), 1, 0, 1, S(FAILED), 0, 0},
         S(SWITCHOVER),
         RM_EVENT_SETTLE,
         S(FAILED),
         RM_DUTY(RECORD)},
        {{PATH(S(PRECOPY), S(SWITCHOVER)), 1, 0, 1, S(CANCELLED), 1, 0},
         S(SWITCHOVER),
         RM_EVENT_SETTLE,
         S(CANCELLED),
         RM_DUTY(RECORD) | RM_DUTY(END_SPENT)},
        {{PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), 1, 0, 1, S(COMMITTED), 0, 0},
         S(COMMITTED),
         RM_EVENT_SETTLE,
         S(COMMITTED),
         RM_DUTY(SYNC)},
        {{PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), 1, 0, 1, S(COMMITTED), 0, 1},
         S(COMMITTED),
         RM_EVENT_ACTIVATED,
         S(COMMITTED),
         RM_DUTY(REPLY)},
        {{PATH(S(PRECOPY), S(SWITCHOVER), S(FAILED)), 1, 0, 1, S(FAILED), 0, 0},
         S(FAILED),
         RM_EVENT_SETTLE,
         S(FAILED),
         0},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = journal_of(&cases[i].row);
        g_autoptr(RmGuest) guest = waiting_guest(TRUE);
        g_autoptr(GError) error = NULL;
        RmState state;
        Altered altered =
            alter(RM_SIDE_DESTINATION, cases[i].state, cases[i].event, cases[i].to, cases[i].duties);
        g_test_message("case %u", i);
        rm_settle_destination(journal, guest, &state, &error);
        put_right(altered);
        g_assert_no_error(error);
        g_assert_cmpint(latest(journal), ==, cases[i].row.expect);
        g_assert_cmpint(rm_guest_fake_has_quit(guest), ==, cases[i].row.quit);
        g_assert_cmpint(rm_guest_fake_run(guest) == RM_GUEST_RUNNING, ==, cases[i].row.runs);
        state_folder_free(folder);
    }
}

/* Without a row nothing is done, and that is said. A duty that is not one of this side's is none, either. */
static void test_no_row(void)
{
    const Row committed = {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), .run = TRUE},
              unknown = {PATH(S(PRECOPY), S(PREPARED))}; /* which is not recorded */
    for (guint i = 0; i < 3; i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = journal_of(i < 2 ? &committed : &unknown);
        g_autoptr(RmGuest) guest = waiting_guest(TRUE);
        g_autoptr(GError) error = NULL;
        Altered altered = i == 0 ? take_away(RM_SIDE_DESTINATION, S(COMMITTED), RM_EVENT_SETTLE)
                                 : alter(RM_SIDE_DESTINATION, S(COMMITTED), RM_EVENT_SETTLE, S(COMMITTED),
                                         RM_DUTY(RESUME) | RM_DUTY(RUN));
        g_assert_true(rm_settle_destination_due(journal)); /* so that it is told */
        g_assert_false(rm_settle_destination(journal, guest, NULL, &error));
        put_right(altered);
        g_assert_cmpint(rm_error_reason(error), ==, i == 1 ? RM_REASON_INTERNAL : RM_REASON_JOURNAL);
        g_assert_cmpint(latest(journal), ==, i < 2 ? S(COMMITTED) : S(PREPARED));
        g_assert_cmpint(rm_guest_fake_run(guest), ==, RM_GUEST_PAUSED);
        g_assert_false(rm_guest_fake_has_quit(guest));
        state_folder_free(folder);
    }
}

/* Only who holds the journal's lock may settle by it. */
static void test_looked_after(void)
{
    const Row row = {PATH(S(PRECOPY), S(SWITCHOVER), S(COMMITTED)), .run = TRUE};
    char *folder = state_folder_new();
    g_autoptr(RmJournal) journal = journal_of(&row);
    g_autoptr(RmJournal) other = rm_journal_open(RM_SIDE_DESTINATION, SESSION, NULL);
    g_autoptr(RmGuest) guest = waiting_guest(TRUE);
    g_autoptr(GError) error = NULL;
    g_assert_false(rm_settle_destination(other, guest, NULL, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_JOURNAL);
    g_assert_cmpint(rm_guest_fake_run(guest), ==, RM_GUEST_PAUSED);
    state_folder_free(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/settle/table", test_table);
    g_test_add_func("/settle/due", test_due);
    g_test_add_func("/settle/activate-fails", test_activate_fails);
    g_test_add_func("/settle/vmm-gone", test_vmm_gone);
    g_test_add_func("/settle/burnt-but-running", test_burnt_but_running);
    g_test_add_func("/settle/note", test_note);
    g_test_add_func("/settle/altered-table", test_altered);
    g_test_add_func("/settle/no-row", test_no_row);
    g_test_add_func("/settle/looked-after", test_looked_after);
    return g_test_run();
}
