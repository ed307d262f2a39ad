/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each refusal of the preflight, on a real QEMU that deserves it, by reason and by a word of the message. */
#include "vm.h"

#include <fcntl.h>
#include <sys/mman.h>

#define NODES "{\"driver\": \"null-co\", \"node-name\": \"target\", \"size\": 1048576}"

typedef struct {
    const char *name;
    const char *options; /* whole; @DIR@ and @DISK@ as in vm_start_raw() */
    RmReason reason;     /* NONE: passes */
    const char *part;    /* of the message */
    struct {
        const char *command, *arguments;
    } setup[4];
    const char *wait_for; /* run state to wait for before asking */
    unsigned from, to;    /* QEMU versions, RM_QEMU_VERSION(); 0: all */
} Refusal;

#define RAM(type)                                                                                            \
    "-m 64 -object memory-backend-" type ",id=ram,size=64M,share=on -machine pc,memory-backend=ram "
#define BAD_DISK                                                                                             \
    "-blockdev "                                                                                             \
    "driver=blkdebug,node-name=d0,image.driver=file,image.filename=@DISK@,inject-error.0.event=none "        \
    "-device ide-hd,drive=d0,rerror=stop "

static const Refusal refusals[] = {
    {"running", VM_RAM VM_DISK, RM_REASON_NONE, "", .wait_for = "running"},
    {"paused", VM_RAM VM_DISK, RM_REASON_NONE, "", {{"stop", NULL}}, "paused"},
    {"private", "-m 64 -machine pc", RM_REASON_RAM_NOT_SHARED, "memory_backing_dir"},
    {"private-file",
     "-m 64 -object memory-backend-file,id=ram,size=64M,mem-path=/dev/shm,share=off "
     "-machine pc,memory-backend=ram",
     RM_REASON_RAM_NOT_SHARED, "RAM block ram (64 MiB)"},
    {"mem-path", "-m 64 -mem-path /dev/shm -machine pc", RM_REASON_RAM_NOT_SHARED, "share=on"},
    {"large-vram", VM_RAM "-device VGA,vgamem_mb=128", RM_REASON_RAM_NOT_SHARED, "vga.vram (128 MiB)",
     .from = RM_QEMU_VERSION(8, 0)},
    {"small-vram", VM_RAM "-device VGA", RM_REASON_NONE, ""},
    {"memfd-new", RAM("memfd"), RM_REASON_RAM_MEMFD, "memory-backend-file", .from = RM_QEMU_VERSION(8, 1)},
    {"memfd-old", RAM("memfd"), RM_REASON_NONE, "", .to = RM_QEMU_VERSION(8, 0)},
    {"nameless-new", RAM("ram"), RM_REASON_RAM_MEMFD, "memory-backend-ram", .from = RM_QEMU_VERSION(8, 1)},
    {"disk-file",
     "-m 64 -object memory-backend-file,id=ram,size=64M,mem-path=/var/tmp,share=on "
     "-machine pc,memory-backend=ram",
     RM_REASON_RAM_BACKING, "neither tmpfs nor hugetlbfs"},
    {"prelaunch", VM_RAM "-S", RM_REASON_GUEST_STATE, "\"prelaunch\""},
    {"inmigrate", VM_RAM "-incoming defer", RM_REASON_GUEST_STATE, "\"inmigrate\""},
    {"io-error", VM_RAM BAD_DISK, RM_REASON_GUEST_STATE, "\"io-error\"", .wait_for = "io-error"},
    {"shutdown",
     VM_RAM VM_DISK "-no-reboot -no-shutdown",
     RM_REASON_GUEST_STATE,
     "\"shutdown\"",
     {{"system_reset", NULL}},
     "shutdown"},
    {"panicked",
     VM_RAM VM_DISK "-device pvpanic -action panic=pause",
     RM_REASON_GUEST_STATE,
     "\"guest-panicked\"",
     {{"human-monitor-command", "{\"command-line\": \"o /b 0x505 1\"}"}},
     "guest-panicked"},
    {"busy",
     VM_RAM VM_DISK,
     RM_REASON_GUEST_BUSY,
     "migrate_cancel",
     {{"migrate-set-parameters", "{\"max-bandwidth\": 1}"},
      {"migrate", "{\"uri\": \"exec:cat >/dev/null\"}"}}},
    {"blocked", VM_RAM "-drive file=@DISK@,format=raw,if=none,id=d0 -device nvme,serial=1,drive=d0",
     RM_REASON_BLOCKED, "nvme"},
    {"ivshmem",
     VM_RAM "-object memory-backend-file,id=shm,size=1M,mem-path=/dev/shm,share=on "
            "-device ivshmem-plain,memdev=shm,master=on",
     RM_REASON_RAM_WRITERS, "ivshmem-plain"},
    {"job",
     VM_RAM VM_DISK,
     RM_REASON_BLOCK_JOB,
     "job j0 (mirror",
     {{"blockdev-add", NODES},
      {"blockdev-mirror",
       "{\"job-id\": \"j0\", \"device\": \"d0\", \"target\": \"target\", \"sync\": \"full\"}"}}},
    {"export",
     VM_RAM VM_DISK,
     RM_REASON_BLOCK_JOB,
     "block node target is exported by nbd",
     {{"blockdev-add", NODES},
      {"nbd-server-start", "{\"addr\": {\"type\": \"unix\", \"data\": {\"path\": \"@DIR@/nbd\"}}}"},
      {"block-export-add",
       "{\"type\": \"nbd\", \"id\": \"e0\", \"node-name\": \"target\", \"writable\": true}"}}},
    {"nested-tcg", VM_RAM VM_DISK "-cpu max", RM_REASON_NONE, ""},
};

static void wait_for_status(Vm *vm, const char *wanted)
{
    g_autofree char *last = NULL;
    for (int i = 0; i < 3000 && g_strcmp0(last, wanted) != 0; i++) {
        rm_autojson reply = vm_run(vm, "query-status", NULL);
        json_object *body;
        const char *status;
        g_assert_true(rm_json_object(reply, "return", &body, NULL) &&
                      rm_json_string(body, "status", &status, NULL));
        g_free(last);
        last = g_strdup(status);
        if (strcmp(last, wanted) != 0)
            g_usleep(10000);
    }
    g_assert_cmpstr(last, ==, wanted);
}

static void set_up(Vm *vm, const Refusal *refusal)
{
    for (size_t i = 0; i < G_N_ELEMENTS(refusal->setup) && refusal->setup[i].command != NULL; i++) {
        g_autoptr(GString) arguments = g_string_new(refusal->setup[i].arguments);
        g_string_replace(arguments, "@DIR@", vm->directory, 0);
        vm_do(vm, refusal->setup[i].command, arguments->len > 0 ? arguments->str : NULL);
    }
    if (refusal->wait_for != NULL)
        wait_for_status(vm, refusal->wait_for);
}

static gboolean blocks_and_preflight(RmGuest *guest, const RmPreflightOptions *options, GError **error)
{
    g_autoptr(GPtrArray) blocks = NULL;
    return guest->ops->blocks(guest, FALSE, &blocks, error) &&
           guest->ops->preflight(guest, blocks, options, error);
}

typedef struct {
    const Qemu *qemu;
    const Refusal *refusal;
} Case;

static void test_refusal(gconstpointer data)
{
    const Case *item = data;
    const Refusal *refusal = item->refusal;
    g_autoptr(GError) error = NULL;
    RmPreflightOptions options = {0};
    if (!have(item->qemu))
        return;
    g_autoptr(Vm) vm = vm_start_raw(item->qemu, refusal->options);
    unsigned version = rm_qmp_version(vm->own);
    if ((refusal->from != 0 && version < refusal->from) || (refusal->to != 0 && version > refusal->to)) {
        g_test_skip("another QEMU version's case");
        return;
    }
    set_up(vm, refusal);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    gboolean passed = blocks_and_preflight(guest, &options, &error);
    if (refusal->reason == RM_REASON_NONE) {
        g_assert_no_error(error);
        g_assert_true(passed);
    } else {
        g_assert_false(passed);
        assert_reason(error, refusal->reason, refusal->part);
    }
}

/* A child that has the guest's RAM, by a mapping or by a descriptor only. */
static pid_t hold(const RmBlock *block, gboolean mapped)
{
    int ready[2];
    char c;
    g_assert_cmpint(pipe(ready), ==, 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (mapped)
            close(block->fd); /* the mapping stays */
        else
            munmap(block->map, block->size);
        if (write(ready[1], "r", 1) == 1)
            pause();
        _exit(0);
    }
    g_assert_cmpint(child, >, 0);
    g_assert_cmpint(read(ready[0], &c, 1), ==, 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

/* As in a session: the guest is saved, looked at again, and here rolled back whatever was found. */
static gboolean recheck(Vm *vm, RmGuest *guest, GPtrArray *blocks, GError **error)
{
    RmPreflightOptions options = {0};
    g_autoptr(GByteArray) state = NULL;
    g_autoptr(GError) problem = NULL;
    if (!guest->ops->stop(guest, &problem) || !guest->ops->save(guest, &state, &problem))
        g_assert_no_error(problem);
    gboolean ok = guest->ops->recheck(guest, blocks, &options, error);
    guest->ops->resume(guest, TRUE, &problem);
    g_assert_no_error(problem);
    vm_assert_status(vm, "running");
    return ok;
}

static void test_writers(const Qemu *qemu)
{
    RmPreflightOptions options = {0}, lenient = {.allow_untracked_writers = TRUE};
    g_autoptr(Vm) vm = vm_start(qemu, "");
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    for (int mapped = 0; mapped < 2; mapped++) {
        g_autoptr(GError) error = NULL;
        pid_t child = hold(g_ptr_array_index(blocks, 0), mapped);
        g_autofree char *part = g_strdup_printf("process %d ", (int)child);
        g_assert_false(guest->ops->preflight(guest, blocks, &options, &error));
        assert_reason(error, RM_REASON_RAM_WRITERS, part);
        g_assert_nonnull(strstr(error->message, mapped ? " mapped" : " open"));
        g_clear_error(&error);
        guest->ops->preflight(guest, blocks, &lenient, &error);
        g_assert_no_error(error);
        g_assert_false(recheck(vm, guest, blocks, &error));
        assert_reason(error, RM_REASON_RAM_WRITERS, part);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    g_autoptr(GError) error = NULL;
    guest->ops->preflight(guest, blocks, &options, &error);
    g_assert_no_error(error);
}

/* Two backends on one file: the second is a way past the tracker. */
static void test_second_mapping(const Qemu *qemu)
{
    g_autoptr(GError) error = NULL;
    RmPreflightOptions options = {0};
    g_autofree char *path = g_strdup_printf("/dev/shm/rdmamig-test-%d", (int)getpid());
    g_autofree char *line =
        g_strdup_printf("-m 64 -object memory-backend-file,id=ram,size=64M,mem-path=%s,share=on "
                        "-object memory-backend-file,id=twin,size=64M,mem-path=%s,share=on "
                        "-machine pc,memory-backend=ram",
                        path, path);
    g_autoptr(Vm) vm = vm_start_raw(qemu, line);
    g_unlink(path);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_assert_false(blocks_and_preflight(guest, &options, &error));
    assert_reason(error, RM_REASON_RAM_WRITERS, "second time");
}

/* What changes between the preflight and the stop. */
static void test_recheck(const Qemu *qemu)
{
    static const struct {
        const char *command, *arguments, *part;
    } changes[] = {
        {"device_add", "{\"driver\": \"virtio-rng-pci\", \"id\": \"r0\"}", "/machine/peripheral/r0"},
        {"blockdev-add", NODES, "node target"},
        {"human-monitor-command",
         "{\"command-line\": \"object_add memory-backend-file,id=m1,size=64M,mem-path=/dev/shm,share=on\"}",
         NULL},
        {"device_add", "{\"driver\": \"pc-dimm\", \"id\": \"dimm1\", \"memdev\": \"m1\"}", "dimm1"},
    };
    RmPreflightOptions options = {0};
    g_autoptr(Vm) vm =
        vm_start_raw(qemu, "-m 64M,maxmem=256M,slots=2 -object "
                           "memory-backend-file,id=ram,size=64M,mem-path=/dev/shm,share=on -machine "
                           "pc,memory-backend=ram " VM_DISK);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    for (size_t i = 0; i < G_N_ELEMENTS(changes); i++) {
        g_autoptr(GError) error = NULL;
        guest->ops->preflight(guest, blocks, &options, &error);
        g_assert_no_error(error);
        recheck(vm, guest, blocks, &error);
        g_assert_no_error(error);
        vm_do(vm, changes[i].command, changes[i].arguments);
        if (changes[i].part == NULL)
            continue;
        g_assert_false(recheck(vm, guest, blocks, &error));
        assert_reason(error, RM_REASON_GUEST_CHANGED, changes[i].part);
    }
    /* A dimm plugged before the preflight is a block like any other, but `blocks` does not have it. */
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) now = vm_blocks(guest, FALSE);
    g_assert_cmpuint(now->len, ==, blocks->len + 1);
    g_assert_true(guest->ops->preflight(guest, now, &options, &error));
    g_assert_true(recheck(vm, guest, now, &error));
    g_assert_false(recheck(vm, guest, blocks, &error));
    assert_reason(error, RM_REASON_GUEST_CHANGED, "RAM blocks");
}

/* A job that began since would write on behind the save, to images that are inactive then. */
static void test_job_since(const Qemu *qemu)
{
    RmPreflightOptions options = {0};
    g_autoptr(GError) error = NULL;
    g_autoptr(Vm) vm = vm_start_raw(qemu, VM_RAM VM_DISK);
    g_autoptr(RmGuest) guest = vm_guest(vm);
    g_autoptr(GPtrArray) blocks = vm_blocks(guest, FALSE);
    vm_do(vm, "blockdev-add", NODES);
    guest->ops->preflight(guest, blocks, &options, &error);
    g_assert_no_error(error);
    g_assert_true(guest->ops->prepare_save(guest, &error));
    vm_do(vm, "blockdev-mirror",
          "{\"job-id\": \"j0\", \"device\": \"d0\", \"target\": \"target\", \"sync\": \"full\"}");
    g_assert_true(guest->ops->stop(guest, &error));
    g_assert_false(guest->ops->check_save(guest, &error));
    assert_reason(error, RM_REASON_BLOCK_JOB, "job j0 (mirror");
    vm_assert_status(vm, "paused"); /* not saved */
    g_clear_error(&error);
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
    vm_assert_status(vm, "running");
}

int main(int argc, char **argv)
{
    g_autofree Case *cases = g_new0(Case, G_N_ELEMENTS(qemus) * G_N_ELEMENTS(refusals));
    Case *next = cases;
    g_test_init(&argc, &argv, NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(qemus); i++) {
        for (size_t j = 0; j < G_N_ELEMENTS(refusals); j++, next++) {
            g_autofree char *path =
                g_strdup_printf("/guest/qemu-%s/refuse/%s", qemus[i].name, refusals[j].name);
            *next = (Case){&qemus[i], &refusals[j]};
            g_test_add_data_func(path, next, test_refusal);
        }
    }
    add_for_each("refuse/writers", test_writers);
    add_for_each("refuse/second-mapping", test_second_mapping);
    add_for_each("recheck", test_recheck);
    add_for_each("job-since", test_job_since);
    return g_test_run();
}
