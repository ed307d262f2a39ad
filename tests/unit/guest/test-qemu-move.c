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

static char *query_vector(Vm *vm)
{
    rm_autojson capabilities = vm_run(vm, "query-migrate-capabilities", NULL);
    rm_autojson parameters = vm_run(vm, "query-migrate-parameters", NULL);
    json_object_object_del(capabilities, "id");
    json_object_object_del(parameters, "id");
    return g_strconcat(json_object_to_json_string(capabilities), json_object_to_json_string(parameters),
                       NULL);
}

static void assert_vector(Vm *vm, const char *settings, gboolean same)
{
    g_autofree char *now = query_vector(vm);
    if (same)
        g_assert_cmpstr(now, ==, settings);
    else
        g_assert_cmpstr(now, !=, settings);
}

/* How many pipes QEMU has open: none of ours may stay. */
static unsigned count_pipes(Vm *vm)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/fd", (int)vm->pid);
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    unsigned n = 0;
    for (const char *name; dir != NULL && (name = g_dir_read_name(dir)) != NULL;) {
        g_autofree char *link = g_build_filename(path, name, NULL);
        g_autofree char *target = g_file_read_link(link, NULL);
        n += target != NULL && g_str_has_prefix(target, "pipe:");
    }
    return n;
}

static void test_move(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) a = vm_start(qemu, "");
    g_autoptr(Vm) b = vm_start_incoming(qemu, a, "");
    g_autoptr(RmGuest) source = vm_guest(a);
    g_autoptr(RmGuest) destination = vm_guest(b);
    g_autoptr(GPtrArray) from = vm_blocks(source, FALSE);
    g_autoptr(GPtrArray) to = vm_blocks(destination, TRUE);
    vm_assert_counts(from);

    /* Neither QEMU keeps our settings: x-ignore-shared left on would make the guest's next migration, by
     * whomever, leave its RAM behind. */
    g_autofree char *settings_a = query_vector(a), *settings_b = query_vector(b);
    unsigned pipes = count_pipes(b);
    for (int i = 0; i < 2; i++) { /* prepared twice, for nothing */
        g_assert_true(destination->ops->prepare_load(destination, &error));
        assert_vector(b, settings_b, FALSE);
        destination->ops->put_back(destination);
        assert_vector(b, settings_b, TRUE);
        g_assert_cmpuint(count_pipes(b), ==, pipes);
    }
    g_assert_true(source->ops->prepare_save(source, &error) &&
                  destination->ops->prepare_load(destination, &error));
    vm_assert_counts(from);
    g_autoptr(GByteArray) state = stop_and_save(source);
    guint32 at = vm_counter(from);
    copy_ram(from, to);
    destination->ops->load(destination, state->data, state->len, &error);
    g_assert_no_error(error);
    assert_vector(a, settings_a, FALSE);
    source->ops->put_back(source);
    assert_vector(a, settings_a, TRUE);
    vm_assert_status(b, "paused");
    g_assert_cmpuint(vm_counter(to), ==, at);
    destination->ops->activate(destination, &error);
    g_assert_no_error(error);
    vm_assert_status(b, "running");
    vm_assert_counts(to);
    destination->ops->put_back(destination);
    assert_vector(b, settings_b, TRUE);
    g_assert_cmpuint(vm_counter(from), ==, at); /* never two */
    g_assert_false(source->ops->activate(source, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_RESUME);
    g_clear_error(&error);
    vm_assert_status(a, "postmigrate");

    source->ops->quit(source, &error);
    g_assert_no_error(error);
    g_assert_cmpint(waitpid(a->pid, NULL, WNOHANG), ==, a->pid);
    a->pid = 0;
    source->ops->quit(source, &error);
    g_assert_no_error(error);
}

static void test_roll_back(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    vm_assert_counts(blocks);
    for (int i = 0; i < 2; i++) {
        g_autoptr(GByteArray) state = stop_and_save(guest);
        vm_resume(vm, guest, "running");
        vm_assert_counts(blocks);
    }
    vm_resume(vm, guest, "running"); /* idempotent */
}

/* Somebody's own migration is not ours to end, nor to disturb. */
static void test_busy_when_preparing(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    vm_do(vm, "migrate-set-parameters", "{\"max-bandwidth\": 1}");
    vm_do(vm, "migrate", "{\"uri\": \"exec:cat >/dev/null\"}");
    g_autofree char *before = query_vector(vm);
    g_assert_false(guest->ops->prepare_save(guest, &error));
    assert_reason(error, RM_REASON_GUEST_BUSY, "of its own");
    g_clear_error(&error);
    vm_resume(vm, guest, "running");
    assert_vector(vm, before, TRUE);
    rm_autojson reply = vm_run(vm, "query-migrate", NULL);
    g_test_message("%s", json_object_to_json_string(reply));
    g_assert_true(strstr(json_object_to_json_string(reply), "\"setup\"") != NULL ||
                  strstr(json_object_to_json_string(reply), "\"active\"") != NULL);
}

/* Leftovers of an earlier migration: each of these alone has cost somebody a guest. */
static const struct {
    const char *name;
    const char *capabilities; /* JSON lists; NULL for none */
    const char *parameters;
    const char *undo; /* capabilities, so that the next case starts clean */
} leftovers[] = {
    {"background-snapshot", "[{\"capability\": \"background-snapshot\", \"state\": true}]", NULL,
     "[{\"capability\": \"background-snapshot\", \"state\": false}]"},
    {"pause-before-switchover", "[{\"capability\": \"pause-before-switchover\", \"state\": true}]", NULL,
     "[{\"capability\": \"pause-before-switchover\", \"state\": false}]"},
    {"return-path", "[{\"capability\": \"return-path\", \"state\": true}]", NULL,
     "[{\"capability\": \"return-path\", \"state\": false}]"},
    {"multifd", "[{\"capability\": \"multifd\", \"state\": true}]", NULL,
     "[{\"capability\": \"multifd\", \"state\": false}]"},
    {"mapped-ram", "[{\"capability\": \"mapped-ram\", \"state\": true}]", NULL,
     "[{\"capability\": \"mapped-ram\", \"state\": false}]"},
    {"postcopy-ram", "[{\"capability\": \"postcopy-ram\", \"state\": true}]", NULL,
     "[{\"capability\": \"postcopy-ram\", \"state\": false}]"},
    {"xbzrle", "[{\"capability\": \"xbzrle\", \"state\": true}]", NULL,
     "[{\"capability\": \"xbzrle\", \"state\": false}]"},
    {"compress", "[{\"capability\": \"compress\", \"state\": true}]", NULL,
     "[{\"capability\": \"compress\", \"state\": false}]"},
    {"auto-converge", "[{\"capability\": \"auto-converge\", \"state\": true}]", NULL,
     "[{\"capability\": \"auto-converge\", \"state\": false}]"},
    {"release-ram", "[{\"capability\": \"release-ram\", \"state\": true}]", NULL,
     "[{\"capability\": \"release-ram\", \"state\": false}]"},
    {"dirty-bitmaps", "[{\"capability\": \"dirty-bitmaps\", \"state\": true}]", NULL,
     "[{\"capability\": \"dirty-bitmaps\", \"state\": false}]"},
    {"events", "[{\"capability\": \"events\", \"state\": true}]", NULL,
     "[{\"capability\": \"events\", \"state\": false}]"},
    {"x-ignore-shared", "[{\"capability\": \"x-ignore-shared\", \"state\": true}]", NULL, NULL},
    {"tls-creds", NULL, "{\"tls-creds\": \"tls0\", \"tls-hostname\": \"elsewhere\"}", NULL},
    {"max-bandwidth", NULL, "{\"tls-creds\": \"\", \"tls-hostname\": \"\", \"max-bandwidth\": 1}", NULL},
    {"downtime-limit", NULL, "{\"downtime-limit\": 0}", NULL},
    {"switchover-bandwidth", NULL, "{\"avail-switchover-bandwidth\": 1}", NULL},
    {"mode", NULL, "{\"mode\": \"cpr-reboot\"}", NULL},
    {"direct-io", NULL, "{\"mode\": \"normal\", \"direct-io\": true}", NULL},
};

/* FALSE if this QEMU does not have, or refuses, the capability or parameter. */
static gboolean try_set(Vm *vm, const char *capabilities, const char *parameters)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text =
        capabilities != NULL ? g_strdup_printf("{\"capabilities\": %s}", capabilities) : NULL;
    if ((text == NULL ||
         rm_qmp_run(vm->own, "migrate-set-capabilities", json_tokener_parse(text), NULL, &error)) &&
        (parameters == NULL ||
         rm_qmp_run(vm->own, "migrate-set-parameters", json_tokener_parse(parameters), NULL, &error)))
        return TRUE;
    g_test_message("not here: %s", error->message);
    return FALSE;
}

static void test_leftovers(const Qemu *qemu)
{
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    unsigned tried = 0;
    for (size_t i = 0; i < G_N_ELEMENTS(leftovers); i++) {
        g_autoptr(GError) error = NULL;
        if (!try_set(vm, leftovers[i].capabilities, leftovers[i].parameters))
            continue;
        g_test_message("leftover %s", leftovers[i].name);
        tried++;
        g_autofree char *before = query_vector(vm);
        g_autoptr(GByteArray) state = stop_and_save(guest);
        vm_resume(vm, guest, "running");
        vm_assert_counts(blocks);
        g_autofree char *after = query_vector(vm);
        g_assert_cmpstr(before, ==, after);
        g_assert_true(leftovers[i].undo == NULL || try_set(vm, leftovers[i].undo, NULL));
    }
    g_assert_cmpuint(tried, >=, 12);
}

/* The operator's pause is kept, at both ends. */
static void test_paused(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(GPtrArray) blocks = NULL;
    vm_do(vm, "stop", NULL);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    blocks = vm_blocks(guest, FALSE);
    guest->ops->resume(guest, FALSE, &error); /* nothing was done yet */
    g_assert_no_error(error);
    vm_assert_status(vm, "paused");
    g_autoptr(GByteArray) state = stop_and_save(guest);
    guest->ops->resume(guest, FALSE, &error);
    g_assert_no_error(error);
    guint32 at = vm_counter(blocks);
    g_usleep(50000);
    g_assert_cmpuint(vm_counter(blocks), ==, at);
    vm_do(vm, "cont", NULL); /* the operator's */
    vm_assert_status(vm, "running");
    vm_assert_counts(blocks);
}

/* Somebody else pauses a running guest in the middle: that is theirs to end. */
static void test_paused_by_other(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    guest->ops->poll(guest, &error);
    g_assert_no_error(error);
    vm_do(vm, "stop", NULL);
    g_assert_false(guest->ops->poll(guest, &error));
    assert_reason(error, RM_REASON_GUEST_STATE, "paused by somebody else");
    g_clear_error(&error);
    vm_resume(vm, guest, "paused");
    /* A new instance, on a guest that an earlier process of ours may have left paused, does as it is told. */
    g_clear_pointer(&guest, rm_guest_free);
    guest = vm_guest(vm);
    vm_resume(vm, guest, "running");
}

#define RNG "-device virtio-rng-pci "

/* The destination rejects the state: words, and a source that runs again though that QEMU may still be there.
 */
static void test_rejected(const Qemu *qemu)
{
    static const struct {
        const char *more;
        gsize length;             /* bytes of the state that are passed on */
    } cases[] = {{"", G_MAXSIZE}, /* lacks a device */
                 {RNG, 20000},
                 {RNG, 1}};
    g_autoptr(Vm) a = vm_start(qemu, RNG);
    g_autoptr(RmGuest) source = vm_guest(a);
    g_autoptr(GPtrArray) from = vm_blocks(source, FALSE);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Vm) b = vm_start_incoming(qemu, a, cases[i].more);
        g_autoptr(RmGuest) destination = vm_guest(b);
        g_autoptr(GPtrArray) to = vm_blocks(destination, TRUE);
        vm_assert_counts(from);
        g_autoptr(GByteArray) state = stop_and_save(source);
        copy_ram(from, to);
        gsize length = MIN(cases[i].length, state->len);
        g_assert_false(destination->ops->load(destination, state->data, length, &error));
        assert_reason(error, RM_REASON_STATE_LOAD, "QEMU");
        g_clear_error(&error);
        vm_resume(a, source, "running");
        destination->ops->quit(destination, &error);
        g_assert_no_error(error);
    }
}

/* The state is loaded, but `commit` never comes: the source gets its disks back beside a destination that is
 * still there. */
static void test_loaded_not_committed(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) a = vm_start(qemu, "");
    g_autoptr(Vm) b = vm_start_incoming(qemu, a, "");
    g_autoptr(RmGuest) source = vm_guest(a), destination = vm_guest(b);
    g_autoptr(GPtrArray) from = vm_blocks(source, FALSE), to = vm_blocks(destination, TRUE);
    g_autoptr(GByteArray) state = stop_and_save(source);
    copy_ram(from, to);
    destination->ops->load(destination, state->data, state->len, &error);
    g_assert_no_error(error);
    vm_resume(a, source, "running");
    vm_assert_counts(from);
    vm_assert_status(b, "paused");
    destination->ops->quit(destination, &error);
    g_assert_no_error(error);
}

static void test_load_wrong_state(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_assert_false(guest->ops->load(guest, (const uint8_t *)"x", 1, &error));
    assert_reason(error, RM_REASON_GUEST_STATE, "-incoming defer");
    vm_assert_status(vm, "running");
}

static gpointer cancel_after(gpointer data)
{
    GCancellable *cancellable = data;
    g_usleep((gulong)GPOINTER_TO_UINT(g_object_get_data(data, "us")));
    g_cancellable_cancel(cancellable);
    return NULL;
}

/* Cancelled anywhere in the save: the guest runs again, and QEMU is as it was. */
static void test_cancelled_anywhere(const Qemu *qemu)
{
    unsigned cancelled = 0;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autofree char *before = query_vector(vm);
    unsigned pipes = count_pipes(vm);
    for (unsigned us = 0; us < 24000; us += 1500) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GCancellable) cancellable = g_cancellable_new();
        g_autoptr(RmGuest) guest = rm_guest_qemu_new(vm->qmp, TIMEOUT_MS, cancellable, &error);
        g_assert_no_error(error);
        g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
        g_autoptr(GByteArray) state = NULL;
        g_object_set_data(G_OBJECT(cancellable), "us", GUINT_TO_POINTER(us));
        g_assert_true(guest->ops->stop(guest, NULL));
        GThread *thread = g_thread_new("cancel", cancel_after, cancellable);
        if (!guest->ops->save(guest, &state, &error)) {
            g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_CANCELLED);
            g_clear_error(&error);
            cancelled++;
        }
        g_thread_join(thread);
        vm_resume(vm, guest, "running");
        vm_assert_counts(blocks);
        g_autofree char *after = query_vector(vm);
        g_assert_cmpstr(before, ==, after);
    }
    g_test_message("%u cancelled", cancelled);
    g_assert_cmpuint(count_pipes(vm), ==, pipes);
    g_assert_cmpuint(cancelled, >, 0);
}

/* QEMU stands still for longer than the time-out, then answers late. */
static void test_unresponsive(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GByteArray) state = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = rm_guest_qemu_new(vm->qmp, 2000, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    kill(vm->pid, SIGSTOP);
    g_assert_false(guest->ops->stop(guest, &error));
    assert_reason(error, RM_REASON_QMP_UNREACHABLE, "did not answer");
    g_clear_error(&error);
    kill(vm->pid, SIGCONT);
    g_clear_pointer(&state, g_byte_array_unref);
    state = stop_and_save(guest);
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
    vm_assert_counts(blocks);
}

static void test_gone(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    int64_t stall;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    vm_kill(vm);
    g_assert_false(guest->ops->poll(guest, &error));
    assert_reason(error, RM_REASON_GUEST_GONE, "QEMU ended");
    g_clear_error(&error);
    g_assert_false(guest->ops->fence(guest, &stall, &error));
    assert_reason(error, RM_REASON_GUEST_GONE, "");
    g_clear_error(&error);
    g_assert_false(guest->ops->resume(guest, TRUE, &error));
    assert_reason(error, RM_REASON_GUEST_GONE, "");
    g_clear_error(&error);
    guest->ops->quit(guest, &error);
    g_assert_no_error(error);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    add_for_each("move", test_move);
    add_for_each("roll-back", test_roll_back);
    add_for_each("busy-when-preparing", test_busy_when_preparing);
    add_for_each("leftovers", test_leftovers);
    add_for_each("paused", test_paused);
    add_for_each("paused-by-other", test_paused_by_other);
    add_for_each("rejected", test_rejected);
    add_for_each("loaded-not-committed", test_loaded_not_committed);
    add_for_each("load-wrong-state", test_load_wrong_state);
    add_for_each("cancelled-anywhere", test_cancelled_anywhere);
    add_for_each("unresponsive", test_unresponsive);
    add_for_each("gone", test_gone);
    return g_test_run();
}
