/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * RAM blocks: the texts they are read from, and their mappings, which are this process's own here, with a
 * scripted QMP server to say where they are.
 */
#include "fake-qmp.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "guest/qemu/ramblock-text.h"
#include "guest/qemu/ramblock.h"
#include "guest/qemu/vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define MIB (1u << 20)
#define TIMEOUT_MS 20000

static void test_table(void)
{
    static const char text[] =
        "              Block Name    PSize              Offset               Used              Total         "
        "       HVA  RO\n"
        "           /objects/ram0    2 MiB  0x0000000000000000 0x0000000040300000 0x0000000040300000 "
        "0x00007f374ffff000  rw\n"
        "0000:00:03.0/virtio-net-pci.rom    4 KiB  0x0000000010080000 0x0000000000040000 0x0000000000040000 "
        "0x00007fe523200000  ro\n"
        "         an odd  name, 1    4 KiB  0x0000000010080000 0x0000000000001000 0x0000000000040000 "
        "0x00007fe523200000  ro\n"
        "                           4 KiB  0x0000000010080000 0x0000000000002000 0x0000000000040000 "
        "0x00007fe523200000  rw\n";
    g_autoptr(GArray) lines = NULL;
    g_autoptr(GError) error = NULL;
    rm_ram_parse_blocks(text, &lines, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(lines->len, ==, 4);
    const RmRamLine *line = (const RmRamLine *)lines->data;
    g_assert_cmpstr(line[0].name, ==, "/objects/ram0");
    g_assert_cmpuint(line[0].used, ==, 1027u * MIB);
    g_assert_cmpuint(line[0].hva, ==, 0x7f374ffff000);
    g_assert_cmpstr(line[1].name, ==, "0000:00:03.0/virtio-net-pci.rom");
    g_assert_cmpstr(line[2].name, ==, "an odd  name, 1");
    g_assert_cmpuint(line[2].used, ==, 4096);
    g_assert_cmpstr(line[3].name, ==, "");
}

static void test_old_table(void)
{
    g_autoptr(GArray) lines = NULL;
    g_autoptr(GError) error = NULL;
    rm_ram_parse_blocks("  ram    4 KiB  0x0000000000000000 0x0000000010000000 0x0000000010000000\n", &lines,
                        &error);
    g_assert_no_error(error);
    g_assert_cmpuint(lines->len, ==, 1);
    g_assert_cmpuint(((RmRamLine *)lines->data)->hva, ==, 0);
}

static void test_unknown_table(void)
{
    static const char *const texts[] = {
        "ram 4096 0 268435456\n",
        "ram    4 KiB  0x0 0x10000000000000000 0x1000\n", /* 17 digits: no number of QEMU's */
        "ram    4 KiB  0x0 0x1000 0x1000 0x10000000000000000  rw\n",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
        g_autoptr(GArray) lines = NULL;
        g_autoptr(GError) error = NULL;
        g_assert_false(rm_ram_parse_blocks(texts[i], &lines, &error));
        g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QEMU_VERSION);
    }
}

static void test_mtree(void)
{
    static const char text[] =
        "FlatView #0\n AS \"other\", root: other\n Root memory region: other\n"
        "  0000000000000000-0000000000000fff (prio 0, ram): ram1\n\n"
        "FlatView #1\n AS \"cpu-memory-0\", root: system\n AS \"memory\", root: system\n"
        "  0000000000000000-00000000000bffff (prio 0, ram): ram0 KVM\n"
        "  00000000000c0000-00000000000dffff (prio 1, rom): ram1\n"
        "  0000000000100000-000000003fffffff (prio 0, ram): ram1 @0000000000100000 KVM KVM\n"
        "  0000000140000000-000000017fffffff (prio 0, nv-ram): nv dimm @0000000000200000\n";
    uint64_t gpa = 1, offset = 1;
    g_assert_true(rm_ram_find_address(text, "ram0", &gpa, &offset));
    g_assert_cmpuint(gpa, ==, 0);
    g_assert_cmpuint(offset, ==, 0);
    g_assert_true(rm_ram_find_address(text, "ram1", &gpa, &offset)); /* neither the other space nor the ROM */
    g_assert_cmpuint(gpa, ==, 0x100000);
    g_assert_cmpuint(offset, ==, 0x100000);
    g_assert_true(rm_ram_find_address(text, "nv dimm", &gpa, &offset));
    g_assert_cmpuint(offset, ==, 0x200000);
    g_assert_false(rm_ram_find_address(text, "ram", &gpa, &offset));
}

static void test_hva(void)
{
    g_autoptr(GError) error = NULL;
    uint64_t hva = 0;
    g_assert_true(rm_ram_parse_hva("Host virtual address for 0x100000 (pc.ram) is 0x7fab980ff000\r\n",
                                   "pc.ram", &hva, NULL));
    g_assert_cmpuint(hva, ==, 0x7fab980ff000);
    g_assert_false(rm_ram_parse_hva("Host virtual address for 0x0 (pc.rom) is 0x7fab980ff000\r\n", "pc.ram",
                                    &hva, NULL));
    g_assert_false(rm_ram_parse_hva("Host virtual address for 0x0 (pc.ram) is 0x10000000000000000\r\n",
                                    "pc.ram", &hva, NULL));
    g_assert_false(rm_ram_parse_hva("No memory is mapped at address 0x0\r\n", "pc.ram", &hva, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_QEMU_VERSION);
}

/* Finds block "ram" of `size` bytes at `map`, with a QEMU 10.0 that has it as a memory-backend-file. */
static gboolean discover(const void *map, size_t size, GPtrArray **ret_blocks, GError **error)
{
    g_autofree char *table =
        g_strdup_printf("{\"human-readable-text\": \"ram 4 KiB 0x0000000000000000 0x%016zx 0x%016zx "
                        "0x%016zx  rw\\n\"}",
                        size, size, (size_t)(uintptr_t)map);
    FakeQmpRule rules[] = {
        {"x-query-ramblock", NULL, table, NULL},
        {"qom-list", NULL, "[{\"name\": \"ram\", \"type\": \"child<memory-backend-file>\"}]", NULL},
        {NULL},
    };
    FakeQmpScript script = {10, 0, rules};
    g_autoptr(FakeQmp) server = fake_qmp_new(fake_qmp_serve_script, &script, 1);
    g_autoptr(RmQmp) qmp = rm_qmp_new(server->path, TIMEOUT_MS, NULL, error);
    g_assert_nonnull(qmp);
    return rm_ram_blocks(qmp, getpid(), FALSE, ret_blocks, error);
}

/* Reserves `size` bytes of addresses between two gaps, so that the kernel merges nothing into them. */
static uint8_t *reserve(size_t size)
{
    uint8_t *area = mmap(NULL, size + 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g_assert_true(area != MAP_FAILED);
    return area + MIB;
}

static void put_file(uint8_t *at, size_t size, int fd, off_t offset, int flags)
{
    g_assert_true(mmap(at, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, offset) == at);
}

static int shm_file(const char *name, size_t size)
{
    g_autofree char *path = g_strdup_printf("/dev/shm/rdmamig %d%s", (int)getpid(), name);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    g_assert_cmpint(fd, >=, 0);
    unlink(path);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    return fd;
}

/* Whatever the file is called, and however its mapping is split, the block is the right bytes. */
static void test_split_vmas(void)
{
    static const char *const names[] = {"", " (deleted)", "\n7f00-7f01 rw-s 0 00:00 1 x", " with  blanks "};
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GPtrArray) blocks = NULL;
        rm_autofd fd = shm_file(names[i], 5 * MIB);
        uint8_t *map = reserve(4 * MIB);
        struct stat status;
        put_file(map, 4 * MIB, fd, MIB, MAP_SHARED);
        map[0] = 1;
        map[4 * MIB - 1] = 4;
        g_assert_cmpint(madvise(map + MIB, MIB, MADV_DONTDUMP), ==, 0); /* three mappings now */
        discover(map, 4 * MIB, &blocks, &error);
        g_assert_no_error(error);
        g_assert_cmpuint(blocks->len, ==, 1);
        const RmBlock *block = g_ptr_array_index(blocks, 0);
        fstat(fd, &status);
        g_assert_cmpuint(block->ino, ==, status.st_ino);
        g_assert_cmpuint(block->file_offset, ==, MIB);
        g_assert_cmpuint(block->map[0], ==, 1);
        g_assert_cmpuint(block->map[4 * MIB - 1], ==, 4);
        munmap(map, 4 * MIB);
    }
}

/* A block that is not one file in order, or not shared, is refused. */
static void test_bad_mappings(void)
{
    rm_autofd fd = shm_file("-a", 4 * MIB);
    rm_autofd other = shm_file("-b", 4 * MIB);
    for (int i = 0; i < 5; i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GPtrArray) blocks = NULL;
        uint8_t *map = reserve(2 * MIB);
        put_file(map, 2 * MIB, fd, 0, i == 4 ? MAP_PRIVATE : MAP_SHARED);
        switch (i) {
        case 0: /* the second half comes from another file */
            put_file(map + MIB, MIB, other, MIB, MAP_SHARED);
            break;
        case 1: /* … from another place of the same file */
            put_file(map + MIB, MIB, fd, 2 * MIB, MAP_SHARED);
            break;
        case 2: /* … is missing */
            munmap(map + MIB, MIB);
            break;
        case 3: /* … is private */
            put_file(map + MIB, MIB, fd, MIB, MAP_PRIVATE);
            break;
        }
        g_assert_false(discover(map, 2 * MIB, &blocks, &error));
        g_test_message("%s", error->message);
        g_assert_cmpint(rm_error_reason(error), ==, i == 4 ? RM_REASON_RAM_NOT_SHARED : RM_REASON_INTERNAL);
        munmap(map, 2 * MIB);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/guest/ramblock/table", test_table);
    g_test_add_func("/guest/ramblock/old-table", test_old_table);
    g_test_add_func("/guest/ramblock/unknown-table", test_unknown_table);
    g_test_add_func("/guest/ramblock/mtree", test_mtree);
    g_test_add_func("/guest/ramblock/hva", test_hva);
    g_test_add_func("/guest/ramblock/split-vmas", test_split_vmas);
    g_test_add_func("/guest/ramblock/bad-mappings", test_bad_mappings);
    return g_test_run();
}
