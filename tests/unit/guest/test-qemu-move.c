/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Moving a guest between two real QEMUs, and rolling it back. */
#include "vm.h"

#include <sys/mman.h>

/* What the session does with RAM, in one step. */
static void copy_ram(GPtrArray *from, GPtrArray *to)
{
    g_assert_cmpuint(from->len, ==, to->len);
    for (guint i = 0; i < from->len; i++) {
        const RmBlock *a = g_ptr_array_index(from, i), *b = g_ptr_array_index(to, i);
        g_assert_cmpstr(a->name, ==, b->name);
        g_assert_cmpuint(a->size, ==, b->size);
        memcpy(b->map, a->map, a->size);
    }
}

static GByteArray *stop_and_save(RmGuest *guest)
{
    g_autoptr(GError) error = NULL;
    GByteArray *state = NULL;
    RmGuestRun run;
    guest->ops->stop(guest, &error);
    g_assert_no_error(error);
    guest->ops->save(guest, &state, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(state->len, >, 10000);
    g_assert_cmpuint(state->len, <, 8 << 20); /* no RAM in it */
    guest->ops->run_state(guest, &run, &error);
    g_assert_no_error(error);
    g_assert_cmpint(run, ==, RM_GUEST_SAVED);
    return state;
}

static void test_move(gconstpointer data)
{
    const Qemu *qemu = data;
    g_autoptr(GError) error = NULL;
    if (!have(qemu))
        return;
    g_autoptr(Vm) a = vm_start(qemu, "");
    g_autofree char *incoming =
        g_strdup_printf(VM_RAM "-drive file=%s,format=raw,if=none,id=d0 -device ide-hd,drive=d0 "
                               "-incoming defer",
                        a->disk);
    g_autoptr(Vm) b = vm_start_raw(qemu, incoming);
    g_autoptr(RmGuest) source = vm_guest(a);
    g_autoptr(RmGuest) destination = vm_guest(b);
    g_autoptr(GPtrArray) from = vm_blocks(source, FALSE);
    g_autoptr(GPtrArray) to = vm_blocks(destination, TRUE);
    vm_assert_counts(from);

    g_autoptr(GByteArray) state = stop_and_save(source);
    guint32 at = vm_counter(from);
    copy_ram(from, to);
    destination->ops->load(destination, state->data, state->len, &error);
    g_assert_no_error(error);
    vm_assert_status(b, "paused");
    g_assert_cmpuint(vm_counter(to), ==, at);
    destination->ops->activate(destination, &error);
    g_assert_no_error(error);
    vm_assert_status(b, "running");
    vm_assert_counts(to);
    g_assert_cmpuint(vm_counter(from), ==, at); /* never two */

    source->ops->quit(source, &error);
    g_assert_no_error(error);
    g_assert_cmpint(waitpid(a->pid, NULL, WNOHANG), ==, a->pid);
    a->pid = 0;
    source->ops->quit(source, &error);
    g_assert_no_error(error);
}

static void test_roll_back(gconstpointer data)
{
    const Qemu *qemu = data;
    g_autoptr(GError) error = NULL;
    if (!have(qemu))
        return;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    vm_assert_counts(blocks);
    for (int i = 0; i < 2; i++) {
        g_autoptr(GByteArray) state = stop_and_save(guest);
        guest->ops->resume(guest, TRUE, &error);
        g_assert_no_error(error);
        vm_assert_status(vm, "running");
        vm_assert_counts(blocks);
    }
    guest->ops->resume(guest, TRUE, &error); /* idempotent */
    g_assert_no_error(error);
}

static void add(const char *name, void (*function)(gconstpointer))
{
    for (size_t i = 0; i < G_N_ELEMENTS(qemus); i++) {
        g_autofree char *path = g_strdup_printf("/guest/qemu-%s/%s", qemus[i].name, name);
        g_test_add_data_func(path, &qemus[i], function);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    add("move", test_move);
    add("roll-back", test_roll_back);
    return g_test_run();
}
