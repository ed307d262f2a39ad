/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Actors that go by the journal: one that somebody else gets in the way of. */
#include "handover/actor.h"

#include "state-folder.h"

typedef struct {
    RmActor actor;
    RmState meanwhile; /* what somebody else records when it is asked to resume; RM_STATE_COUNT: nothing */
    GString *did;
} Rig;

static gboolean duty_resume(RmActor *actor, G_GNUC_UNUSED GError **error)
{
    Rig *rig = (Rig *)actor;
    g_autoptr(RmJournal) other = rm_journal_open(RM_SIDE_SOURCE, SESSION, NULL);
    g_string_append(rig->did, "resume ");
    if (rig->meanwhile != RM_STATE_COUNT)
        move(other, ~0u, rig->meanwhile, FALSE);
    rig->meanwhile = RM_STATE_COUNT;
    return TRUE;
}

static gboolean duty_ask(RmActor *actor, G_GNUC_UNUSED GError **error)
{
    g_string_append(((Rig *)actor)->did, "ask ");
    return TRUE;
}

static const RmDutyFunc duties[RM_DUTY_COUNT] = {
    [RM_DUTY_INDEX_RESUME] = duty_resume, [RM_DUTY_INDEX_ASK] = duty_ask};

/* It does nothing more of that row, and goes by what it finds. */
static void test_overtaken(void)
{
    static const struct {
        RmState meanwhile, expect;
        const char *did;
    } cases[] = {
        {RM_STATE_COUNT, RM_STATE_FAILED, "resume "},
        {RM_STATE_CANCELLED, RM_STATE_CANCELLED, "resume "},
        {RM_STATE_COMMITTED, RM_STATE_COMMITTED, "resume ask "},
        {RM_STATE_ATTACHING, RM_STATE_FAILED, "resume "},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        char *folder = state_folder_new();
        g_autoptr(RmJournal) journal = create(SESSION, RM_SIDE_SOURCE, RM_STATE_SWITCHOVER);
        g_autoptr(GError) error = NULL;
        Rig rig = {{.journal = journal, .duties = duties}, cases[i].meanwhile, g_string_new("")};
        g_assert_true(rm_actor_look(&rig.actor, &error));
        rm_actor_take(&rig.actor, RM_EVENT_SETTLE, &error);
        g_assert_no_error(error);
        g_assert_cmpint(rig.actor.record.state, ==, cases[i].expect);
        g_assert_cmpint(latest(journal), ==, cases[i].expect);
        g_assert_cmpstr(rig.did->str, ==, cases[i].did);
        g_string_free(rig.did, TRUE);
        rm_actor_clear(&rig.actor);
        state_folder_free(folder);
    }
}

static void test_idle(void)
{
    g_assert_true(rm_actor_is_idle(RM_SIDE_SOURCE, RM_STATE_FAILED));
    g_assert_false(rm_actor_is_idle(RM_SIDE_SOURCE, RM_STATE_DONE)); /* the old VMM */
    g_assert_false(rm_actor_is_idle(RM_SIDE_SOURCE, RM_STATE_DOUBTFUL));
    g_assert_false(rm_actor_is_idle(RM_SIDE_SOURCE, RM_STATE_PREPARED)); /* no row, but no end */
    g_assert_true(rm_actor_is_idle(RM_SIDE_DESTINATION, RM_STATE_DONE));
    g_assert_true(rm_actor_is_idle(RM_SIDE_DESTINATION, RM_STATE_DOUBTFUL));
    g_assert_false(rm_actor_is_idle(RM_SIDE_DESTINATION, RM_STATE_FAILED));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/actor/overtaken", test_overtaken);
    g_test_add_func("/actor/idle", test_idle);
    return g_test_run();
}
