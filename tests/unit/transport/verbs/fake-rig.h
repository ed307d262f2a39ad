/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rig on the fake provider: each test on a fresh device; and it must leave nothing, and break no rule. */
#pragma once

#include "rig.h"

#include "fake-verbs.h"

#define SET_KNOB(knob, value)                                                                                \
    do {                                                                                                     \
        fake_verbs_lock();                                                                                   \
        fake_verbs_knobs.knob = (value);                                                                     \
        fake_verbs_unlock();                                                                                 \
    } while (0)

typedef struct {
    const char *path;
    void (*run)(void);
    gboolean untidy; /* leaves warnings, or objects of the device behind, on purpose */
} FakeTest;

static inline void fake_run_one(gconstpointer data)
{
    const FakeTest *test = data;
    fake_verbs_reset();
    FakeVerbsCounts before = fake_verbs_counts();
    test->run();
    FakeVerbsCounts after = fake_verbs_counts();
    g_assert_cmpstr(fake_verbs_violation(), ==, NULL);
    g_assert_cmpuint(after.ids + after.channels, ==, before.ids + before.channels);
    if (test->untidy) {
        rig_assert_warned("*");
        return;
    }
    rig_assert_warned(NULL);
    g_assert_cmpuint(after.mrs + after.qps + after.cqs + after.pds, ==,
                     before.mrs + before.qps + before.cqs + before.pds);
}

static inline int fake_run(int argc, char **argv, const FakeTest *tests, unsigned n)
{
    g_test_init(&argc, &argv, NULL);
    rig_log_init();
    for (unsigned i = 0; i < n; i++)
        g_test_add_data_func(tests[i].path, &tests[i], fake_run_one);
    return g_test_run();
}
