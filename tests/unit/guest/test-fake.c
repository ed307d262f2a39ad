/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fake guest keeps what sessions' tests rely on. */
#include "guest/fake.h"

#include <string.h>

static const char *const names[] = {"ram0", "ram1"};
static const uint64_t sizes[] = {1 << 20, 1 << 16};

static RmGuest *fake(RmGuestRun run)
{
    g_autoptr(GError) error = NULL;
    RmGuest *guest = rm_guest_fake_new(run, names, sizes, 2, &error);
    g_assert_no_error(error);
    return guest;
}

static void test_memory(void)
{
    g_autoptr(RmGuest) guest = fake(RM_GUEST_RUNNING);
    g_autoptr(GPtrArray) blocks = NULL;
    g_autoptr(GError) error = NULL;
    rm_guest_fake_memory(guest, 1)[4096] = 7;
    guest->ops->blocks(guest, TRUE, &blocks, &error);
    g_assert_no_error(error);
    const RmBlock *block = g_ptr_array_index(blocks, 1);
    g_assert_cmpuint(block->size, ==, sizes[1]);
    g_assert_cmpuint(block->map[4096], ==, 7);
    block->map[0] = 9;
    g_assert_cmpuint(rm_guest_fake_memory(guest, 1)[0], ==, 9);
}

static void test_handover(void)
{
    g_autoptr(RmGuest) source = fake(RM_GUEST_RUNNING), destination = fake(RM_GUEST_WAITING);
    g_autoptr(GByteArray) state = NULL;
    g_autoptr(GError) error = NULL;
    g_assert_false(source->ops->save(source, &state, &error)); /* still running */
    g_clear_error(&error);
    g_assert_false(destination->ops->activate(destination, &error)); /* nothing loaded */
    g_clear_error(&error);
    g_assert_true(source->ops->stop(source, &error) && source->ops->save(source, &state, &error));
    g_assert_cmpint(rm_guest_fake_run(source), ==, RM_GUEST_SAVED);
    g_assert_true(destination->ops->load(destination, state->data, state->len, &error));
    g_assert_cmpint(rm_guest_fake_run(destination), ==, RM_GUEST_PAUSED);
    g_assert_true(destination->ops->activate(destination, &error) && source->ops->quit(source, &error));
    g_assert_cmpint(rm_guest_fake_run(destination), ==, RM_GUEST_RUNNING);
    g_assert_true(rm_guest_fake_has_quit(source));
    g_assert_cmpstr(rm_guest_fake_calls(source), ==, "save stop save quit");
}

static void count_hook(RmGuest *guest, const char *op, gpointer data)
{
    if (strcmp(op, "fence") == 0)
        ++*(int *)data;
}

static void test_orders(void)
{
    g_autoptr(RmGuest) guest = fake(RM_GUEST_RUNNING);
    g_autoptr(GError) error = NULL;
    int64_t stall;
    int fences = 0;
    rm_guest_fake_set_hook(guest, count_hook, &fences);
    rm_guest_fake_fail(guest, "fence", RM_REASON_QMP_ERROR);
    g_assert_false(guest->ops->fence(guest, &stall, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_QMP_ERROR);
    g_clear_error(&error);
    g_assert_true(guest->ops->fence(guest, &stall, &error)); /* only once */
    g_assert_cmpint(fences, ==, 2);
}

static void test_bad_state(void)
{
    g_autoptr(RmGuest) guest = fake(RM_GUEST_WAITING);
    g_autoptr(GError) error = NULL;
    g_assert_false(guest->ops->load(guest, (const uint8_t *)"rubbish", 7, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_STATE_LOAD);
    g_clear_error(&error);
    g_assert_false(guest->ops->load(guest, (const uint8_t *)"rubbish", 7, &error)); /* used up */
    g_assert_error(error, RM_ERROR, RM_REASON_GUEST_STATE);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/guest/fake/memory", test_memory);
    g_test_add_func("/guest/fake/handover", test_handover);
    g_test_add_func("/guest/fake/orders", test_orders);
    g_test_add_func("/guest/fake/bad-state", test_bad_state);
    return g_test_run();
}
