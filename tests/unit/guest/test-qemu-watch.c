/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a real QEMU tells while it runs: identity, RAM blocks, events, the fence, its end. */
#include "guest/qemu/qmp-hmp.h"
#include "vm.h"

#include <sys/stat.h>

static void test_describe(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmGuestInfo) info = NULL;
    g_autoptr(Vm) vm =
        vm_start(qemu, "-name guest=alpha -uuid 12345678-9abc-def0-1234-56789abcdef0 -smp 2 -cpu Nehalem");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    guest->ops->describe(guest, &info, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(info->name, ==, "alpha");
    g_assert_cmpstr(info->uuid, ==, "12345678-9abc-def0-1234-56789abcdef0");
    g_assert_cmpint(info->pid, ==, vm->pid);
    g_assert_true(g_str_has_prefix(info->vmm, "qemu "));
    g_assert_nonnull(strstr(info->vmm, qemu->name));
    g_autofree char *machine = g_strconcat("pc-i440fx-", qemu->name, NULL);
    g_assert_cmpstr(g_hash_table_lookup(info->traits, "machine"), ==, machine);
    g_assert_cmpstr(g_hash_table_lookup(info->traits, "cpu"), ==, "Nehalem-x86_64-cpu");
    g_assert_cmpstr(g_hash_table_lookup(info->traits, "vcpus"), ==, "2");
}

static void test_nameless(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RmGuestInfo) info = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "-incoming defer");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    RmGuestRun run = RM_GUEST_OTHER;
    guest->ops->describe(guest, &info, &error);
    g_assert_no_error(error);
    g_assert_cmpstr(info->name, ==, "");
    g_assert_cmpstr(info->uuid, ==, "");
    g_assert_true(guest->ops->run_state(guest, &run, &error));
    g_assert_cmpint(run, ==, RM_GUEST_WAITING);
}

/* The 32-bit word at a guest-physical address, as QEMU itself reads it. */
static guint32 peek(Vm *vm, guint64 gpa)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *line = g_strdup_printf("xp /1xw 0x%" G_GINT64_MODIFIER "x", gpa);
    g_autofree char *text = NULL;
    rm_qmp_hmp(vm->own, line, &text, &error);
    g_assert_no_error(error);
    const char *colon = strchr(text, ':');
    g_assert_nonnull(colon);
    return (guint32)g_ascii_strtoull(colon + 1, NULL, 16);
}

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* Two NUMA nodes of odd sizes, a third one that lies on both sides of the hole below 4 GiB, and a dimm:
 * checked by value. */
static void test_numa(const Qemu *qemu)
{
    static const struct {
        const char *name;
        guint64 size, offset, gpa;
    } expected[] = {
        {"dimm0", 128 * MIB, 4096, 6 * GIB + 4096}, /* device memory starts at the next GiB */
        {"ram0", 1027 * MIB, 1000 * MIB, 1000 * MIB},
        {"ram1", 509 * MIB, 508 * MIB, 1535 * MIB},
        {"ram2", 3584 * MIB, 3000 * MIB, 4 * GIB + (1027 + 509 + 3000) * MIB - 3 * GIB},
    };
    g_autoptr(Vm) vm =
        vm_start_raw(qemu, "-S -machine pc -m 5120M,maxmem=8G,slots=2 -smp 3 "
                           "-object memory-backend-file,id=ram0,size=1027M,mem-path=/dev/shm,share=on "
                           "-object memory-backend-file,id=ram1,size=509M,mem-path=/dev/shm,share=on "
                           "-object memory-backend-file,id=ram2,size=3584M,mem-path=/dev/shm,share=on "
                           "-numa node,memdev=ram0 -numa node,memdev=ram1 -numa node,memdev=ram2 "
                           "-object memory-backend-file,id=dimm0,size=128M,mem-path=/dev/shm,share=on "
                           "-device pc-dimm,memdev=dimm0,id=d0");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, TRUE);
    g_assert_cmpuint(blocks->len, ==, G_N_ELEMENTS(expected));
    for (guint i = 0; i < blocks->len; i++) {
        const RmBlock *block = g_ptr_array_index(blocks, i);
        struct stat status;
        g_assert_cmpstr(block->name, ==, expected[i].name);
        g_assert_cmpuint(block->size, ==, expected[i].size);
        g_assert_cmpuint(block->file_offset, ==, 0);
        g_assert_cmpint(fstat(block->fd, &status), ==, 0);
        g_assert_cmpuint(block->ino, ==, status.st_ino);
        *(guint32 *)(block->map + expected[i].offset) = 0xcafe0000 + i;
    }
    for (guint i = 0; i < blocks->len; i++)
        g_assert_cmphex(peek(vm, expected[i].gpa), ==, 0xcafe0000 + i);
}

static void test_pflash(const Qemu *qemu)
{
    g_autoptr(Vm) vm = vm_start(qemu, "-S -blockdev driver=null-co,node-name=f0,size=1048576,read-zeroes=on "
                                      "-machine pflash0=f0");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    g_assert_cmpuint(blocks->len, ==, 1); /* the flash travels in the device state */
    g_assert_cmpstr(((RmBlock *)g_ptr_array_index(blocks, 0))->name, ==, "ram");
}

static void test_hugepages(const Qemu *qemu)
{
    g_autofree char *free_pages = NULL;
    if (!g_file_test("/dev/hugepages", G_FILE_TEST_IS_DIR) ||
        !g_file_get_contents("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", &free_pages, NULL,
                             NULL) ||
        g_ascii_strtoull(free_pages, NULL, 10) < 40) {
        g_test_skip("fewer than 40 free 2 MiB hugepages (vm.nr_hugepages)");
        return;
    }
    g_autoptr(Vm) vm =
        vm_start_raw(qemu, "-m 64 -machine pc,memory-backend=ram -object "
                           "memory-backend-file,id=ram,size=64M,mem-path=/dev/hugepages,share=on");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    const RmBlock *block = g_ptr_array_index(blocks, 0);
    g_assert_true(block->hugetlb);
    g_assert_cmpuint(block->page_size, ==, 2 * MIB);
}

/* Polls until the event's error comes. */
static void assert_event(RmGuest *guest, RmReason reason, const char *part)
{
    g_autoptr(GError) error = NULL;
    for (int i = 0; i < 2000 && guest->ops->poll(guest, &error); i++)
        g_usleep(10000);
    assert_reason(error, reason, part);
}

static void test_events(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "-device qemu-xhci -device usb-tablet,id=t0");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    vm_do(vm, "system_powerdown", NULL);
    guest->ops->stop(guest, &error);
    g_assert_no_error(error);
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
    guest->ops->poll(guest, &error); /* a request, and our own doings */
    g_assert_no_error(error);
    vm_do(vm, "device_del", "{\"id\": \"t0\"}");
    assert_event(guest, RM_REASON_GUEST_CHANGED, "unplugged");
    vm_do(vm, "stop", NULL);
    assert_event(guest, RM_REASON_GUEST_STATE, "paused by somebody");
    vm_do(vm, "cont", NULL);
    assert_event(guest, RM_REASON_GUEST_STATE, "resumed by somebody");
    vm_do(vm, "quit", NULL);
    assert_event(guest, RM_REASON_GUEST_SHUTDOWN, "shut down");
    assert_event(guest, RM_REASON_GUEST_GONE, "ended");
}

static void test_reset(const Qemu *qemu)
{
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    vm_do(vm, "system_reset", NULL);
    assert_event(guest, RM_REASON_GUEST_RESET, "reset");
}

static guint64 reads_done(Vm *vm)
{
    rm_autojson reply = vm_run(vm, "query-blockstats", NULL);
    json_object *list, *stats;
    uint64_t n;
    g_assert_true(rm_json_array(reply, "return", &list, NULL));
    g_assert_true(rm_json_object(json_object_array_get_idx(list, 0), "stats", &stats, NULL));
    g_assert_true(rm_json_uint(stats, "rd_operations", &n, NULL));
    return n;
}

#define SLOW_DISK                                                                                            \
    "-drive driver=null-co,latency-ns=1500000000,size=1M,id=s0,if=none -device virtio-blk,drive=s0 "
#define READ_SLOWLY "{\"command-line\": \"qemu-io s0 \\\"aio_read 0 512\\\"\"}"

/* A read takes 1.5 s: it is in flight before the fence, and has ended after it. */
static void test_fence(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    int64_t stall = -1;
    g_autoptr(Vm) vm = vm_start_raw(qemu, VM_RAM SLOW_DISK "-S");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    for (int i = 0; i < 10; i++) {
        guint64 before = reads_done(vm);
        vm_do(vm, "human-monitor-command", READ_SLOWLY);
        if (reads_done(vm) != before)
            continue; /* a machine so busy that the read is over already proves nothing */
        guest->ops->fence(guest, &stall, &error);
        g_assert_no_error(error);
        g_assert_cmpuint(reads_done(vm), ==, before + 1);
        g_assert_cmpint(stall, >, 0);
        vm_assert_status(vm, "prelaunch");
        return;
    }
    g_test_skip("this machine is too busy to catch a read of 1.5 s in flight");
}

static void test_fence_without_disk(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    int64_t stall = -1;
    g_autoptr(Vm) vm = vm_start_raw(qemu, VM_RAM);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    guest->ops->fence(guest, &stall, &error);
    g_assert_no_error(error);
    g_assert_cmpint(stall, ==, 0);
}

/* One monitor serves one client. */
static void test_busy(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_assert_null(rm_guest_qemu_new(vm->qmp, 500, NULL, &error));
    assert_reason(error, RM_REASON_QMP_BUSY, "another client");
    g_clear_error(&error);
    g_clear_pointer(&guest, rm_guest_free);
    guest = vm_guest(vm); /* free again */
}

static void test_quit_hung(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = rm_guest_qemu_new(vm->qmp, 1000, NULL, &error);
    g_assert_no_error(error);
    kill(vm->pid, SIGSTOP);
    g_assert_false(guest->ops->quit(guest, &error));
    assert_reason(error, RM_REASON_CLEANUP, "did not end");
    kill(vm->pid, SIGCONT);
    g_clear_error(&error);
    guest->ops->quit(guest, &error);
    g_assert_no_error(error);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    add_for_each("describe", test_describe);
    add_for_each("nameless", test_nameless);
    add_for_each("numa", test_numa);
    add_for_each("pflash", test_pflash);
    add_for_each("hugepages", test_hugepages);
    add_for_each("events", test_events);
    add_for_each("reset", test_reset);
    add_for_each("fence", test_fence);
    add_for_each("fence-without-disk", test_fence_without_disk);
    add_for_each("busy", test_busy);
    add_for_each("quit-hung", test_quit_hung);
    return g_test_run();
}
