/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Windows of registered memory, and registering all of it, with the sender and the registrar. The fake
 * provider counts registered bytes, and takes it as a violation if a region is freed under a write into it.
 */
#include "window-rig.h"

#include "common/fault.h"
#include "transport/window.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void write_all(Path *path)
{
    for (unsigned i = 0; i < path->rig->from->len; i++)
        path_write(path, i, 0, rm_block_pages(rig_from(path->rig, i)));
}

/* Here and there: runs of up to 400 pages, some in every chunk. */
static void write_some(Path *path)
{
    for (unsigned i = 0; i < path->rig->from->len; i++) {
        uint64_t pages = rm_block_pages(rig_from(path->rig, i));
        for (uint64_t at = (uint64_t)g_test_rand_int_range(0, 300); at < pages;) {
            uint64_t wish = (uint64_t)g_test_rand_int_range(1, 400), count = MIN(pages - at, wish);
            path_write(path, i, at, count);
            at += count + (uint64_t)g_test_rand_int_range(0, 900);
        }
    }
}

/* One page in each granule. */
static void write_thinly(Path *path)
{
    for (unsigned i = 0; i < path->rig->from->len; i++)
        for (uint64_t at = 7; at < rm_block_pages(rig_from(path->rig, i)); at += RM_CHUNK_MIN / RM_PAGE)
            path_write(path, i, at, 1);
}

/* ---- windows ---- */

static void assert_within(const RigParams *params)
{
    FakeVerbsCounts counts = fake_verbs_counts();
    uint64_t messages = params->channels * 4096;
    if (params->max_pinned_to != 0)
        g_assert_cmpuint(counts.remote_most + messages, <=, params->max_pinned_to);
    if (params->max_pinned_from != 0)
        g_assert_cmpuint(counts.local_most + messages, <=, params->max_pinned_from);
    /* And made use of: by more than the copies' rings. */
    g_assert_cmpuint(counts.remote_most, >=, 2 * MIB);
    g_assert_cmpuint(counts.local_most, >, params->channels * MIB);
}

static void run_window(const RigParams *params)
{
    fake_verbs_reset();
    SET_KNOB(iwarp, g_test_rand_bit());
    g_autoptr(Path) path = path_up(params);
    write_all(path);
    path_round(path);
    for (unsigned i = 0; i < 3; i++) {
        write_some(path);
        path_round(path);
    }
    write_thinly(path); /* into many registrations, of which each holds much */
    path_round(path);
    write_all(path);
    path_round(path);
    assert_within(params);
    g_assert_cmpint(g_atomic_int_get(&path->releases) > 0, ==, params->max_pinned_to != 0);
    g_assert_cmpstr(fake_verbs_violation(), ==, NULL);
}

static void test_window_there(void)
{
    for (unsigned channels = 1; channels <= 3; channels++)
        run_window(&(RigParams){.channels = channels,
                                .chunk_size = 4 * MIB,
                                .max_pinned_to = 14 * MIB,
                                .sizes = {24 * MIB, 5 * MIB + PAGES(3)}});
}

static void test_window_here(void)
{
    for (unsigned channels = 1; channels <= 3; channels++)
        run_window(&(RigParams){.channels = channels,
                                .chunk_size = 4 * MIB,
                                .max_pinned_from = 14 * MIB,
                                .sizes = {24 * MIB, 5 * MIB + PAGES(3)}});
}

/* As small as can be, in chunks much smaller and much larger than that. */
static void test_tiny_windows(void)
{
    const uint64_t chunk_sizes[] = {MIB, 64 * MIB, 1024 * MIB};
    for (unsigned channels = 1; channels <= 2; channels++)
        for (unsigned i = 0; i < G_N_ELEMENTS(chunk_sizes); i++)
            run_window(&(RigParams){.channels = channels,
                                    .chunk_size = chunk_sizes[i],
                                    .max_pinned_from = channels * RM_PINNED_CHANNEL_MIN,
                                    .max_pinned_to = channels * RM_PINNED_CHANNEL_MIN,
                                    .sizes = {20 * MIB + PAGES(5), 3 * MIB}});
}

/* Small regions and slow registering on top. */
static void test_window_on_a_small_device(void)
{
    g_autoptr(Path) path = NULL;
    SET_KNOB(max_mr_size, 256 * KIB);
    SET_KNOB(max_qp_wr, 10);
    SET_KNOB(max_msg_sz, 32 * KIB);
    SET_KNOB(register_delay_us, 200);
    SET_KNOB(iwarp, TRUE);
    RigParams params = {.channels = 2,
                        .chunk_size = 2 * MIB,
                        .max_pinned_from = 10 * MIB,
                        .max_pinned_to = 9 * MIB,
                        .sizes = {16 * MIB}};
    path = path_up(&params);
    for (unsigned i = 0; i < 3; i++) {
        write_all(path);
        path_round(path);
    }
    assert_within(&params);
}

/* A registration that the guest's rounds need all the time stays, where the window has room for it. */
static void test_large_window(void)
{
    g_autoptr(Path) path = path_up(
        &(RigParams){.channels = 2, .chunk_size = MIB, .max_pinned_to = 32 * MIB, .sizes = {16 * MIB}});
    for (unsigned i = 0; i < 4; i++) {
        write_all(path);
        path_round(path);
    }
    g_assert_cmpint(g_atomic_int_get(&path->releases), ==, 0);
    g_assert_cmpuint(rm_sender_counts(path->sender).registrations, ==, 16);
}

/* The device state comes last, when the window is full. */
static void test_state(void)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Path) path =
        path_up(&(RigParams){.channels = 1, .chunk_size = MIB, .max_pinned_to = 4 * MIB, .sizes = {8 * MIB}});
    g_autoptr(GArray) none = g_array_new(FALSE, FALSE, sizeof(RmRegion));
    g_autoptr(RmBitmap) pages = rm_bitmap_new(6 * MIB / RM_PAGE);
    path->state = g_ptr_array_new_with_free_func((GDestroyNotify)rm_block_free);
    for (unsigned i = 0; i < 2; i++) {
        RmBlock *block = rm_block_new("state", 6 * MIB);
        block->map = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        g_ptr_array_add(path->state, block);
    }
    RmBlock *from = path->state->pdata[0], *to = path->state->pdata[1];
    write_all(path);
    path_round(path);
    path->rig->rx->ops->add_block(path->rig->rx, to);
    rm_registrar_add_block(path->registrar, to);
    memset(from->map, 0x5a, from->size);
    rm_bitmap_set(pages, 0, pages->n_bits);
    path_push(path, rm_sender_add_block(path->sender, from, none), from, pages);
    path_end_round(path, &error);
    g_assert_no_error(error);
    g_assert_cmpint(memcmp(from->map, to->map, from->size), ==, 0);
    g_assert_cmpuint(fake_verbs_counts().remote_most, <=, 4 * MIB);
}

/* ---- order ---- */

/* What these tests would show if a registration were ended before the writes into it are known to have
 * landed. */
static void test_release_before_mark(void)
{
#if RM_FAULTS
    if (g_test_subprocess()) {
        g_autoptr(GError) error = NULL;
        g_setenv("RDMAMIG_FAULT", "release-before-mark", TRUE);
        SET_KNOB(iwarp, TRUE);
        Path *path = path_up(
            &(RigParams){.channels = 1, .chunk_size = MIB, .max_pinned_to = 4 * MIB, .sizes = {24 * MIB}});
        for (unsigned i = 0; i < 20 && error == NULL && fake_verbs_violation() == NULL; i++) {
            write_all(path);
            path_try_round(path, &error);
        }
        g_assert_cmpstr(fake_verbs_violation(), ==, "a region was freed under a write into it");
        _exit(0);
    }
    g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
    g_test_trap_assert_passed();
#else
    g_test_skip("built without fault points");
#endif
}

/* The source can't use a key once it has given it up. */
static void test_no_stale_key(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 4 * MIB, .sizes = {4 * MIB}});
    RmRun one = {0, MIB}, other = {2 * MIB, MIB};
    RmExtent released = {0, MIB};
    rig_write(rig, 0, &one, 1);
    rig_write(rig, 0, &other, 1);
    g_assert_cmpint(rig->tx->ops->release(rig->tx, 0, 0, &released, 1), ==, 0);
    g_assert_cmpint(rig_post(rig, 0, &other, 1), ==, 0);
    rig_end_round(rig, 1);
    rig_write(rig, 0, &one, 1); /* asked for again: as good as new */
    rig_end_round(rig, 2);
    g_assert_cmpint(rig->tx->ops->release(rig->tx, 0, 0, &released, 1), ==, 0);
    g_assert_cmpint(rig_post(rig, 0, &one, 1), ==, -EINVAL);
    rig_assert_failed(rig, RM_REASON_INTERNAL, "*the destination has not registered it");
}

static void *release_later(void *data)
{
    Rig *rig = data;
    RmExtent extent = {0, MIB};
    GError *error = NULL;
    g_assert_false(rig->rx->ops->release_chunk(rig->rx, 0, 0, &extent, 1, 1, &error));
    return error;
}

/* A release waits for its mark; the end of the session ends that. */
static void test_release_waits(void)
{
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    rig_write(rig, 0, &(RmRun){0, MIB}, 1);
    rig_end_round(rig, 1); /* which is not the mark */
    GThread *thread = g_thread_new("release", release_later, rig);
    g_usleep(20000);
    g_assert_cmpuint(fake_verbs_counts().remote_bytes, ==, MIB);
    rig->rx->ops->abort(rig->rx);
    g_autoptr(GError) error = g_thread_join(thread);
    g_assert_error(error, RM_ERROR, RM_REASON_CANCELLED);
}

static void test_bad_releases(void)
{
    const struct {
        uint32_t block;
        uint64_t chunk;
        RmExtent extent;
    } bad[] = {{1, 0, {0, MIB}},
               {0, 2, {8 * MIB, 9 * MIB}},
               {0, 0, {3 * MIB, 5 * MIB}},
               {0, 0, {0, MIB}} /* a part */,
               {0, 0, {MIB, 3 * MIB}} /* another */};
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = 4 * MIB, .sizes = {8 * MIB}});
    uint32_t mark;
    rig_write(rig, 0, &(RmRun){0, 2 * MIB}, 1);
    g_assert_cmpint(rig->tx->ops->mark(rig->tx, 0, &mark), ==, 0);
    g_assert_cmpuint(mark, ==, 1);
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(rig->rx->ops->release_chunk(rig->rx, bad[i].block, bad[i].chunk, &bad[i].extent, 1,
                                                   mark, &error));
        g_assert_error(error, RM_ERROR, RM_REASON_PROTOCOL);
    }
    g_assert_cmpuint(fake_verbs_counts().remote_bytes, ==, 2 * MIB);
    g_autoptr(GError) error = NULL;
    RmExtent both = {0, 4 * MIB};
    g_assert_true(rig->rx->ops->release_chunk(rig->rx, 0, 0, &both, 1, mark, &error));
    g_assert_cmpuint(fake_verbs_counts().remote_bytes, ==, 0);
    rig_end_round(rig, 1);
}

/* ---- registering ahead ---- */

static void test_post_registers_nothing(void)
{
    g_autoptr(Path) path = path_up(&(RigParams){.channels = 1, .chunk_size = 4 * MIB, .sizes = {8 * MIB}});
    write_some(path);
    path_round(path);
    unsigned before = fake_verbs_counts().mrs;
    g_autoptr(Rig) rig = rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {MIB}});
    unsigned with = fake_verbs_counts().mrs;
    RmRun run = {0, MIB};
    g_autoptr(GError) error = NULL;
    rig_register(rig, 0, &run, 1, &error);
    g_assert_no_error(error);
    g_assert_cmpint(rig_post(rig, 0, &run, 1), ==, 0); /* not prepared: by way of the ring */
    rig_end_round(rig, 1);
    g_assert_cmpuint(fake_verbs_counts().mrs, ==, with + 2);
    g_assert_false(fake_verbs_was_registered(rig_from(rig, 0)->map, MIB, 0));
    /* And the sender does prepare: nothing was copied, so there is no ring. */
    g_assert_cmpuint(before, >, 2);
    g_assert_true(fake_verbs_was_registered(rig_from(path->rig, 0)->map, 8 * MIB, 0));
}

/* Whatever the chunk size, the destination holds a granule for each one written into, and no more. */
static void test_sparse_bound(void)
{
    const uint64_t chunk_sizes[] = {MIB, 8 * MIB, 64 * MIB, 1024 * MIB};
    for (unsigned i = 0; i < G_N_ELEMENTS(chunk_sizes); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Path) path = path_up(
            &(RigParams){.channels = 1, .chunk_size = chunk_sizes[i], .sparse = TRUE, .sizes = {128 * MIB}});
        RmBlock *from = rig_from(path->rig, 0), *to = rig_to(path->rig, 0);
        uint64_t granules = 0;
        /* More than half of some chunks, little of others; in each granule some small runs. */
        for (uint64_t granule = 0; granule < 128; granule += granule % 64 < 32 ? 1 + granule % 2 : 11) {
            for (unsigned page = 0; page < 256; page += 37)
                path_write(path, 0, granule * 256 + page, 1);
            granules++;
        }
        path_try_round(path, &error);
        g_assert_no_error(error);
        g_assert_cmpuint(rig_allocated(from), ==, granules * PAGES(7));
        g_assert_cmpuint(fake_verbs_counts().remote_bytes, ==, granules * MIB);
        g_assert_cmpuint(rig_allocated(to), ==, granules * MIB);
        path->rig->rx->ops->stop(path->rig->rx);
        g_assert_cmpuint(rig_allocated(to), <=, granules * MIB);
        blocks_assert_equal(path->rig, 0);
    }
}

/* ---- all at once ---- */

static void run_pin_all(const RigParams *params)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Path) path = path_up(params);
    RmBlock *from = rig_from(path->rig, 0), *to = rig_to(path->rig, 0);
    write_all(path);
    rm_block_zero(from, 5 * MIB + PAGES(3), 2 * MIB, TRUE, &error); /* granules 5, 6 and 7 are not whole */
    g_assert_no_error(error);
    rm_bitmap_clear(path->pages->pdata[0], 5 * 256 + 3, 512);
    uint64_t allocated = rig_allocated(from);
    rm_sender_pin_all(path->sender);
    path_try_round(path, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(rig_allocated(from), ==, allocated); /* holes are not registered */
    g_assert_cmpuint(fake_verbs_counts().remote_bytes, ==, from->size);
    /* The rings to copy through: with a window each channel's, else of the one whose granules are not whole.
     */
    uint64_t rings = params->max_pinned_from != 0 ? params->channels * MIB : RM_POST_BYTES_MAX;
    g_assert_cmpuint(fake_verbs_counts().local_bytes, ==, from->size - 3 * MIB + rings);
    g_assert_false(fake_verbs_was_registered(from->map + 5 * MIB, 3 * MIB, 0));
    g_assert_cmpuint(rig_allocated(to), ==, to->size);
    for (unsigned i = 0; i < 3; i++) {
        path_try_round(path, &error);
        g_assert_no_error(error);
        g_assert_cmpint(memcmp(from->map + 8 * MIB, to->map + 8 * MIB, from->size - 8 * MIB), ==, 0);
        write_some(path);
    }
    path_round(path);
    g_assert_cmpint(g_atomic_int_get(&path->releases), ==, 0);
}

static void test_pin_all(void)
{
    for (unsigned channels = 1; channels <= 3; channels += 2) {
        RigParams params = {
            .channels = channels, .chunk_size = 4 * MIB, .pin_all = TRUE, .sizes = {18 * MIB + PAGES(9)}};
        run_pin_all(&params);
        fake_verbs_reset();
        /* With windows that are just large enough. */
        params.max_pinned_from = params.max_pinned_to = params.sizes[0] + channels * RM_PINNED_CHANNEL_MIN;
        run_pin_all(&params);
        fake_verbs_reset();
    }
}

/* Whichever of the registrations at the destination fails, the first round does, and nothing waits on. */
static void test_pin_all_fails(void)
{
    for (unsigned nth = 1; nth <= 8; nth++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Path) path = path_up(&(RigParams){
            .channels = 2, .chunk_size = MIB, .pin_all = TRUE, .copy = TRUE, .sizes = {8 * MIB}});
        fake_verbs_lock();
        fake_verbs_knobs.register_fail_in = nth;
        fake_verbs_knobs.register_errno = ENOMEM;
        fake_verbs_unlock();
        write_some(path);
        rm_sender_pin_all(path->sender);
        g_assert_false(path_try_round(path, &error));
        g_assert_nonnull(error);
        fake_verbs_reset();
    }
}

/* ---- refusals ---- */

static void assert_refused(const RigParams *params, const char *pattern)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(params);
    g_assert_false(rig_start(rig, &error) && rig_connect(rig, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PRIVILEGE);
    if (!g_pattern_match_simple(pattern, error->message))
        g_assert_cmpstr(error->message, ==, pattern);
    g_assert_cmpuint(fake_verbs_counts().remote_most, ==, 0);
}

static void test_refusals(void)
{
    RigParams params = {.channels = 3, .chunk_size = MIB, .sizes = {32 * MIB}};
    params.max_pinned_to = 11 * MIB;
    assert_refused(&params, "11 MiB of registered*3 data channels need 12 MiB*");
    params.max_pinned_to = 12 * MIB;
    params.no_release = TRUE;
    assert_refused(&params, "12 MiB of registered*44 MiB*too old*");
    params.no_release = FALSE;
    params.pin_all = TRUE;
    assert_refused(&params, "12 MiB of registered*--pin all needs 44 MiB for the guest's 32 MiB*--pin lazy*");
    params.max_pinned_from = 43 * MIB;
    params.max_pinned_to = 0;
    assert_refused(&params, "43 MiB of registered*--pin all needs 44 MiB for the guest's 32 MiB*--pin lazy*");
    params.pin_all = FALSE;
    params.max_pinned_from = 11 * MIB;
    assert_refused(&params, "11 MiB of registered*3 data channels need 12 MiB*");
}

static void test_pin_all_and_few_regions(void)
{
    g_autoptr(GError) error = NULL;
    SET_KNOB(max_mr, 12);
    g_autoptr(Rig) rig =
        rig_up(&(RigParams){.channels = 1, .chunk_size = MIB, .pin_all = TRUE, .sizes = {16 * MIB}});
    g_assert_false(rig_register(rig, 0, &(RmRun){0, MIB}, 1, &error));
    g_assert_true(g_pattern_match_simple("--pin all needs 16 memory regions*12 (max_mr)*--chunk-size*",
                                         error->message));
}

static void limit_memlock(uint64_t bytes)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    struct rlimit limit = {bytes, bytes};
    g_assert_cmpint(syscall(SYS_capget, &header, data), ==, 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    g_assert_cmpint(syscall(SYS_capset, &header, data), ==, 0);
    g_assert_cmpint(setrlimit(RLIMIT_MEMLOCK, &limit), ==, 0);
}

/* A limit of locked memory that the guest does not fit in: a window there, copies here, and a warning on
 * either side. */
static void test_memlock(void)
{
    if (!g_test_subprocess()) {
        g_test_trap_subprocess(NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
        g_test_trap_assert_passed();
        return;
    }
    limit_memlock(7 * MIB);
    g_autoptr(Path) path = path_up(&(RigParams){.channels = 1, .chunk_size = MIB, .sizes = {16 * MIB}});
    rig_assert_warned("*RLIMIT_MEMLOCK) is 7 MiB*needs 20 MiB*at a time*LimitMEMLOCK=*has 16 MiB*copied*");
    write_all(path);
    path_round(path);
    g_assert_cmpuint(fake_verbs_counts().remote_most, <=, 7 * MIB);
    g_assert_false(fake_verbs_was_registered(rig_from(path->rig, 0)->map, 16 * MIB, 0));
    RigParams all = {.channels = 1, .chunk_size = MIB, .pin_all = TRUE, .sizes = {16 * MIB}};
    g_autoptr(GError) error = NULL;
    g_autoptr(Rig) rig = rig_new(&all);
    g_assert_false(rig_start(rig, &error));
    g_assert_error(error, RM_ERROR, RM_REASON_PRIVILEGE);
    g_assert_true(g_pattern_match_simple("*RLIMIT_MEMLOCK) is 7 MiB*LimitMEMLOCK=*--pin all needs 20 MiB*",
                                         error->message));
}

static const FakeTest tests[] = {
    {"/window/there", test_window_there},
    {"/window/here", test_window_here},
    {"/window/tiny", test_tiny_windows},
    {"/window/small-device", test_window_on_a_small_device},
    {"/window/large", test_large_window},
    {"/window/state", test_state},
    {"/window/release-before-mark", test_release_before_mark},
    {"/window/no-stale-key", test_no_stale_key},
    {"/window/release-waits", test_release_waits},
    {"/window/bad-releases", test_bad_releases},
    {"/window/post-registers-nothing", test_post_registers_nothing},
    {"/window/sparse-bound", test_sparse_bound},
    {"/window/pin-all", test_pin_all},
    {"/window/pin-all-fails", test_pin_all_fails},
    {"/window/refusals", test_refusals},
    {"/window/few-regions", test_pin_all_and_few_regions},
    {"/window/memlock", test_memlock},
};

int main(int argc, char **argv)
{
    return fake_run(argc, argv, tests, G_N_ELEMENTS(tests));
}
