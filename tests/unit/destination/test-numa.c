/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* NUMA bindings, as the kernel shows them, and what is free on their nodes. */
#include "destination/numa.h"

#include "common/reason.h"

#include <glib/gstdio.h>

#define MIB (UINT64_C(1) << 20)

static const char maps[] =
    "55d0c8e00000 default file=/usr/bin/qemu-system-x86_64 mapped=40 N0=40 kernelpagesize_kB=4\n"
    "7f0000000000 bind:0 file=/dev/shm/a\\040bind:7 dirty=3 N0=3 kernelpagesize_kB=4\n"
    "7f0008000000 bind=static:1-2 file=/dev/shm/b\n"
    "7f0010000000 prefer:0 anon=3\n";

static void test_policies(void)
{
    static const struct {
        uint64_t hva;
        const char *nodes;
    } cases[] = {{0x55d0c8e00000, NULL},  {0x7f0000000000, "0"},  {0x7f0007fff000, "0"},
                 {0x7f0008000000, "1-2"}, {0x7f0010000000, NULL}, {0x1000, NULL}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *nodes = rm_numa_bound_to(maps, cases[i].hva);
        g_assert_cmpstr(nodes, ==, cases[i].nodes);
    }
}

typedef struct {
    char *root;
    GPtrArray *files; /* to be removed, in this order */
} Tree;

static void tree_add(Tree *tree, const char *path, const char *text)
{
    char *full = g_build_filename(tree->root, path, NULL);
    g_autofree char *folder = g_path_get_dirname(full);
    g_assert_cmpint(g_mkdir_with_parents(folder, 0700), ==, 0);
    g_assert_true(g_file_set_contents(full, text, -1, NULL));
    g_ptr_array_add(tree->files, full);
}

static void tree_init(Tree *tree)
{
    tree->root = g_dir_make_tmp("rdmamig-numa-XXXXXX", NULL);
    g_assert_nonnull(tree->root);
    tree->files = g_ptr_array_new_with_free_func(g_free);
    tree_add(tree, "proc/42/numa_maps", maps);
    for (unsigned node = 0; node < 3; node++) {
        g_autofree char *path = g_strdup_printf("sys/devices/system/node/node%u/meminfo", node);
        g_autofree char *text =
            g_strdup_printf("Node %u MemTotal: 99999 kB\nNode %u MemFree: %u kB\n"
                            "Node %u Active: 77777 kB\nNode %u Active(file): 1024 kB\n"
                            "Node %u Inactive(file): 512 kB\nNode %u SReclaimable: 512 kB\n",
                            node, node, (node + 1) * 1024, node, node, node, node);
        tree_add(tree, path, text);
        g_autofree char *huge =
            g_strdup_printf("sys/devices/system/node/node%u/hugepages/hugepages-2048kB/free_hugepages", node);
        tree_add(tree, huge, node == 2 ? "5\n" : "0\n");
    }
}

static void tree_clear(Tree *tree)
{
    for (guint i = 0; i < tree->files->len; i++) {
        char *path = tree->files->pdata[i];
        g_unlink(path);
        /* Folders go once they are empty. */
        for (g_autofree char *folder = g_path_get_dirname(path); g_str_has_prefix(folder, tree->root);) {
            if (g_rmdir(folder) != 0)
                break;
            char *parent = g_path_get_dirname(folder);
            g_free(folder);
            folder = parent;
        }
    }
    g_assert_false(g_file_test(tree->root, G_FILE_TEST_EXISTS));
    g_ptr_array_unref(tree->files);
    g_free(tree->root);
}

static void test_free(void)
{
    Tree tree;
    RmBlock small = {.page_size = RM_PAGE}, huge = {.page_size = 2 * MIB, .hugetlb = TRUE};
    tree_init(&tree);
    g_assert_cmpuint(rm_numa_free(tree.root, "0", &small), ==, 3 * MIB);
    g_assert_cmpuint(rm_numa_free(tree.root, "0,2", &small), ==, 8 * MIB);
    g_assert_cmpuint(rm_numa_free(tree.root, "0-2", &small), ==, 12 * MIB);
    g_assert_cmpuint(rm_numa_free(tree.root, "1-2", &huge), ==, 10 * MIB);
    g_assert_cmpuint(rm_numa_free(tree.root, "3", &small), ==, UINT64_MAX);
    g_assert_cmpuint(rm_numa_free(tree.root, "2-1", &small), ==, UINT64_MAX);
    g_assert_cmpuint(rm_numa_free(tree.root, "x", &small), ==, UINT64_MAX);
    tree_clear(&tree);
}

static void test_check(void)
{
    static const struct {
        uint64_t need;
        const char *node; /* the one that is short, or NULL */
    } cases[] = {{3 * MIB, NULL},
                 {103 * MIB, NULL}, /* may all be in the other block */
                 {104 * MIB, "node 0"}};
    Tree tree;
    g_autoptr(GPtrArray) blocks = g_ptr_array_new();
    RmBlock bound = {.name = (char *)"ram0", .size = 200 * MIB, .page_size = RM_PAGE, .hva = 0x7f0000001000};
    RmBlock loose = {.name = (char *)"ram1", .size = 100 * MIB, .page_size = RM_PAGE, .hva = 0x7f0010000000};
    g_ptr_array_add(blocks, &bound);
    g_ptr_array_add(blocks, &loose);
    tree_init(&tree);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        gboolean ok = rm_numa_check(tree.root, 42, blocks, cases[i].need, &error);
        g_assert_cmpint(ok, ==, cases[i].node == NULL);
        if (!ok) {
            g_assert_error(error, RM_ERROR, RM_REASON_MEMORY_SHORT);
            g_assert_nonnull(strstr(error->message, cases[i].node));
            g_assert_nonnull(strstr(error->message, "ram0"));
        }
    }
    g_assert_true(rm_numa_check(tree.root, 43, blocks, UINT64_MAX, NULL)); /* nothing is known */
    tree_clear(&tree);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/numa/policies", test_policies);
    g_test_add_func("/numa/free", test_free);
    g_test_add_func("/numa/check", test_check);
    return g_test_run();
}
