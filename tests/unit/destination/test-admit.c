/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Admission: a guest that does not fit is turned away before its place is emptied. */
#include "destination/admit.h"

#include "common/reason.h"
#include "guest/fake.h"

static const char *const names[] = {"ram0", "ram1"};
static const uint64_t sizes[] = {4 << 20, 8 << 20};

typedef struct {
    RmGuest *guest;
    RmGuestInfo *info;
    GPtrArray *blocks;
} Place;

static void place_init(Place *place)
{
    g_autoptr(GError) error = NULL;
    *place = (Place){.guest = rm_guest_fake_new(RM_GUEST_WAITING, names, sizes, 2, &error)};
    g_assert_no_error(error);
    g_assert_true(place->guest->ops->describe(place->guest, &place->info, &error));
    g_assert_true(place->guest->ops->blocks(place->guest, TRUE, &place->blocks, &error));
}

static void place_clear(Place *place)
{
    g_ptr_array_unref(place->blocks);
    rm_guest_info_free(place->info);
    rm_guest_free(place->guest);
}

static void test_fits(void)
{
    Place place;
    g_autoptr(GError) error = NULL;
    g_autoptr(RmHello) hello = rm_hello_new();
    place_init(&place);
    for (guint i = 0; i < 2; i++)
        rm_hello_add_block(hello, names[i], sizes[i], RM_PAGE, "another boot:0.0:1");
    rm_admit_guest(hello, place.info, place.blocks, &error);
    g_assert_no_error(error);
    place_clear(&place);
}

/* `here`: the block of ours whose file the source's `there` is in, too. */
static void test_same_memory(void)
{
    for (guint here = 0; here < 2; here++) {
        for (guint there = 0; there < 2; there++) {
            Place place;
            g_autoptr(GError) error = NULL;
            g_autoptr(RmHello) hello = rm_hello_new();
            place_init(&place);
            g_autofree char *backing = rm_backing_id(place.blocks->pdata[here]);
            for (guint i = 0; i < 2; i++)
                rm_hello_add_block(hello, names[i], sizes[i], RM_PAGE,
                                   i == there ? backing : "another boot:0.0:1");
            g_assert_false(rm_admit_guest(hello, place.info, place.blocks, &error));
            g_assert_error(error, RM_ERROR, RM_REASON_SAME_MEMORY);
            place_clear(&place);
        }
    }
}

static void test_blocks_differ(void)
{
    static const struct {
        const char *name;
        uint64_t size;
    } second[] = {{"ram2", 8 << 20}, {"ram1", 4 << 20}, {NULL, 0}};
    for (guint i = 0; i < G_N_ELEMENTS(second); i++) {
        Place place;
        g_autoptr(GError) error = NULL;
        g_autoptr(RmHello) hello = rm_hello_new();
        place_init(&place);
        rm_hello_add_block(hello, names[0], sizes[0], RM_PAGE, "another boot:0.0:1");
        if (second[i].name != NULL)
            rm_hello_add_block(hello, second[i].name, second[i].size, RM_PAGE, "another boot:0.0:2");
        g_assert_false(rm_admit_guest(hello, place.info, place.blocks, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_MISMATCH);
        g_assert_nonnull(strstr(error->message, "ram1")); /* named */
        place_clear(&place);
    }
}

static void test_trait_differs(void)
{
    Place place;
    g_autoptr(GError) error = NULL;
    g_autoptr(RmHello) hello = rm_hello_new();
    place_init(&place);
    g_hash_table_insert(hello->traits, g_strdup("machine"), g_strdup("q35"));
    for (guint i = 0; i < 2; i++)
        rm_hello_add_block(hello, names[i], sizes[i], RM_PAGE, "another boot:0.0:1");
    g_assert_false(rm_admit_guest(hello, place.info, place.blocks, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_MISMATCH);
    place_clear(&place);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/admit/fits", test_fits);
    g_test_add_func("/admit/same-memory", test_same_memory);
    g_test_add_func("/admit/blocks", test_blocks_differ);
    g_test_add_func("/admit/trait", test_trait_differs);
    return g_test_run();
}
