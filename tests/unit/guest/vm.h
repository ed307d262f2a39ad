/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A real QEMU for a test: two QMP sockets (one for the code under test, one for the test), RAM in a nameless
 * file on /dev/shm, so that nothing is left over whatever happens, and a boot sector that counts at 0x8000
 * for ever.
 */
#pragma once

#include "common/autoptr.h"
#include "common/reason.h"
#include "control/json.h"
#include "guest/guest.h"
#include "guest/qemu/qmp.h"

#include <glib/gstdio.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define COUNTER 0x8000   /* guest-physical, of a 32-bit counter */
#define TIMEOUT_MS 20000 /* for one command, on a busy machine */

typedef struct {
    const char *name;     /* as in the tests' paths */
    const char *variable; /* of the environment: another program */
    const char *usual;
} Qemu;

static const Qemu qemus[] = {
    {"7.2", "RDMAMIG_QEMU_7", "/usr/bin/qemu-system-x86_64"},
    {"10.0", "RDMAMIG_QEMU_10", "/opt/qemu-10/root/usr/bin/qemu-system-x86_64"},
};

typedef struct {
    char *directory;
    char *qmp;  /* for the code under test */
    char *disk; /* the boot sector */
    pid_t pid;
    RmQmp *own;
} Vm;

static inline const char *vm_program(const Qemu *qemu)
{
    const char *wish = g_getenv(qemu->variable);
    return wish != NULL && *wish != '\0' ? wish : qemu->usual;
}

/* The start of a command line. A QEMU unpacked beside the system's looks for its data and libraries there. */
static inline char *vm_command(const Qemu *qemu)
{
    const char *program = vm_program(qemu), *end = strstr(program, "/usr/bin/");
    if (end == NULL || end == program)
        return g_strdup(program);
    g_autofree char *prefix = g_strndup(program, (gsize)(end - program));
    return g_strdup_printf("env LD_LIBRARY_PATH=%s/usr/lib/x86_64-linux-gnu:%s/lib/x86_64-linux-gnu %s "
                           "-L %s/usr/share/qemu -L /usr/share/seabios",
                           prefix, prefix, program, prefix);
}

/* Skips the test, with the reason, if this QEMU is not installed. */
static inline gboolean have(const Qemu *qemu)
{
    if (g_file_test(vm_program(qemu), G_FILE_TEST_IS_EXECUTABLE))
        return TRUE;
    g_autofree char *why = g_strdup_printf("%s is not installed", vm_program(qemu));
    g_test_skip(why);
    return FALSE;
}

static inline void vm_write_boot_sector(const char *path)
{
    static const guint8 code[] = {
        0x31, 0xc0,                   /* xor ax, ax */
        0x8e, 0xd8,                   /* mov ds, ax */
        0x66, 0xff, 0x06, 0x00, 0x80, /* inc dword [0x8000] */
        0xeb, 0xf9,                   /* jmp to the inc */
    };
    g_autofree guint8 *image = g_malloc0(1 << 20);
    memcpy(image, code, sizeof code);
    image[510] = 0x55;
    image[511] = 0xaa;
    g_assert_true(g_file_set_contents(path, (char *)image, 1 << 20, NULL));
}

static inline void die_with_parent(gpointer unused)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline void vm_kill(Vm *vm)
{
    if (vm->pid > 0) {
        kill(vm->pid, SIGKILL);
        waitpid(vm->pid, NULL, 0);
    }
    vm->pid = 0;
}

static inline void vm_free(Vm *vm)
{
    if (vm == NULL)
        return;
    g_clear_pointer(&vm->own, rm_qmp_free);
    vm_kill(vm);
    if (vm->directory != NULL) {
        g_autoptr(GDir) dir = g_dir_open(vm->directory, 0, NULL);
        for (const char *name; dir != NULL && (name = g_dir_read_name(dir)) != NULL;) {
            g_autofree char *path = g_build_filename(vm->directory, name, NULL);
            g_unlink(path);
        }
        g_rmdir(vm->directory);
    }
    g_free(vm->directory);
    g_free(vm->qmp);
    g_free(vm->disk);
    g_free(vm);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Vm, vm_free)

/* Starts `qemu` with `options`; @DIR@ stands for the VM's directory, @DISK@ for its boot disk. */
static inline Vm *vm_start_raw(const Qemu *qemu, const char *options)
{
    g_autoptr(GError) error = NULL;
    g_auto(GStrv) argv = NULL;
    Vm *vm = g_new0(Vm, 1);
    vm->directory = g_dir_make_tmp("rdmamig-guest-XXXXXX", &error);
    g_assert_no_error(error);
    vm->qmp = g_build_filename(vm->directory, "qmp", NULL);
    vm->disk = g_build_filename(vm->directory, "disk", NULL);
    vm_write_boot_sector(vm->disk);
    g_autofree char *command = vm_command(qemu);
    g_autoptr(GString) line = g_string_new(NULL);
    g_string_printf(line,
                    "%s -nodefaults -display none -qmp unix:@DIR@/qmp,server=on,wait=off "
                    "-qmp unix:@DIR@/own,server=on,wait=off %s",
                    command, options);
    g_string_replace(line, "@DIR@", vm->directory, 0);
    g_string_replace(line, "@DISK@", vm->disk, 0);
    g_assert_true(g_shell_parse_argv(line->str, NULL, &argv, &error));
    g_spawn_async(NULL, argv, NULL,
                  G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDOUT_TO_DEV_NULL,
                  die_with_parent, NULL, &vm->pid, &error);
    g_assert_no_error(error);
    g_autofree char *own = g_build_filename(vm->directory, "own", NULL);
    for (int i = 0; i < 2000 && vm->own == NULL; i++) {
        vm->own = rm_qmp_new(own, TIMEOUT_MS, NULL, NULL);
        if (vm->own == NULL) {
            g_assert_cmpint(waitpid(vm->pid, NULL, WNOHANG), ==, 0);
            g_usleep(10000);
        }
    }
    g_assert_nonnull(vm->own);
    return vm;
}

#define VM_RAM                                                                                               \
    "-m 64 -object memory-backend-file,id=ram,size=64M,mem-path=/dev/shm,share=on -machine "                 \
    "pc,memory-backend=ram "
#define VM_DISK "-drive file=@DISK@,format=raw,if=none,id=d0 -device ide-hd,drive=d0 "

static inline Vm *vm_start(const Qemu *qemu, const char *more)
{
    g_autofree char *options = g_strconcat(VM_RAM VM_DISK, more, NULL);
    return vm_start_raw(qemu, options);
}

/* One that waits for `source`'s guest, on the same disk. */
static inline Vm *vm_start_incoming(const Qemu *qemu, const Vm *source, const char *more)
{
    g_autofree char *options =
        g_strdup_printf(VM_RAM "-drive file=%s,format=raw,if=none,id=d0 -device ide-hd,drive=d0 "
                               "-incoming defer %s",
                        source->disk, more);
    return vm_start_raw(qemu, options);
}

/* Runs a command of the test's own; arguments as JSON text. Returns the reply, caller puts. */
static inline json_object *vm_run(Vm *vm, const char *command, const char *arguments)
{
    g_autoptr(GError) error = NULL;
    json_object *reply = NULL;
    json_object *parsed = arguments != NULL ? json_tokener_parse(arguments) : NULL;
    g_assert_true((arguments == NULL) == (parsed == NULL));
    rm_qmp_run(vm->own, command, parsed, &reply, &error);
    g_assert_no_error(error);
    return reply;
}

static inline void vm_do(Vm *vm, const char *command, const char *arguments)
{
    json_object_put(vm_run(vm, command, arguments));
}

static inline void vm_assert_status(Vm *vm, const char *expected)
{
    rm_autojson reply = vm_run(vm, "query-status", NULL);
    json_object *body;
    const char *status;
    g_assert_true(rm_json_object(reply, "return", &body, NULL) &&
                  rm_json_string(body, "status", &status, NULL));
    g_assert_cmpstr(status, ==, expected);
}

static inline RmGuest *vm_guest(Vm *vm)
{
    g_autoptr(GError) error = NULL;
    RmGuest *guest = rm_guest_qemu_new(vm->qmp, TIMEOUT_MS, NULL, &error);
    g_assert_no_error(error);
    return guest;
}

/* Gives the guest back, as a session that failed does, which had found it running. */
static inline void vm_resume(Vm *vm, RmGuest *guest, const char *expected_status)
{
    g_autoptr(GError) error = NULL;
    guest->ops->resume(guest, TRUE, &error);
    g_assert_no_error(error);
    vm_assert_status(vm, expected_status);
}

static inline GPtrArray *vm_blocks(RmGuest *guest, gboolean writable)
{
    g_autoptr(GError) error = NULL;
    GPtrArray *blocks = NULL;
    guest->ops->blocks(guest, writable, &blocks, &error);
    g_assert_no_error(error);
    return blocks;
}

static inline guint32 vm_counter(GPtrArray *blocks)
{
    const RmBlock *block = g_ptr_array_index(blocks, 0);
    return *(volatile guint32 *)(block->map + COUNTER);
}

/* Waits until the counter moves on from what it is now. */
static inline void vm_assert_counts(GPtrArray *blocks)
{
    guint32 before = vm_counter(blocks);
    for (int i = 0; i < 3000 && vm_counter(blocks) == before; i++)
        g_usleep(10000);
    g_assert_cmpuint(vm_counter(blocks), !=, before);
}

typedef struct {
    const Qemu *qemu;
    void (*run)(const Qemu *qemu);
} QemuTest;

static inline void run_with_qemu(gconstpointer data)
{
    const QemuTest *test = data;
    if (have(test->qemu))
        test->run(test->qemu);
}

/* Registers a test once for each QEMU; where one is not installed, it is skipped. */
static inline void add_for_each(const char *name, void (*run)(const Qemu *qemu))
{
    for (size_t i = 0; i < G_N_ELEMENTS(qemus); i++) {
        g_autofree char *path = g_strdup_printf("/guest/qemu-%s/%s", qemus[i].name, name);
        QemuTest *test = g_new(QemuTest, 1);
        *test = (QemuTest){&qemus[i], run};
        g_test_add_data_func_full(path, test, run_with_qemu, g_free);
    }
}

#define assert_reason(error, reason, part)                                                                   \
    G_STMT_START                                                                                             \
    {                                                                                                        \
        g_assert_nonnull(error);                                                                             \
        g_test_message("%s", (error)->message);                                                              \
        g_assert_cmpstr(rm_reason_name(rm_error_reason(error)), ==, rm_reason_name(reason));                 \
        if (strstr((error)->message, part) == NULL)                                                          \
            g_error("\"%s\" is not in \"%s\"", part, (error)->message);                                      \
    }                                                                                                        \
    G_STMT_END
