/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls a fuzz target with each file of a folder, in TAP: the seeds, and the inputs that once found
 * something. */
#include "fuzz.h"

static int by_name(gconstpointer a, gconstpointer b)
{
    return g_strcmp0(*(char *const *)a, *(char *const *)b);
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GDir) folder = argc == 2 ? g_dir_open(argv[1], 0, &error) : NULL;
    if (folder == NULL)
        g_error("%s", error != NULL ? error->message : "usage: replay FOLDER");
    LLVMFuzzerInitialize(&argc, &argv);
    for (const char *name; (name = g_dir_read_name(folder)) != NULL;)
        g_ptr_array_add(names, g_build_filename(argv[1], name, NULL));
    g_ptr_array_sort(names, by_name);
    g_print("TAP version 13\n1..%u\n", names->len + 1);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    g_print("ok 1 - empty\n");
    for (guint i = 0; i < names->len; i++) {
        g_autofree char *text = NULL, *base = g_path_get_basename(names->pdata[i]);
        gsize length;
        if (!g_file_get_contents(names->pdata[i], &text, &length, &error))
            g_error("%s", error->message);
        /* Of its own size, without the NUL that GLib adds: a byte read past the end is to be found. */
        g_autofree uint8_t *exact = g_memdup2(text, length);
        LLVMFuzzerTestOneInput(exact, length);
        g_print("ok %u - %s\n", i + 2, base);
    }
    return 0;
}
