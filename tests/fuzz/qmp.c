/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client against a QEMU that says anything, from the greeting on: no call waits for what never comes,
 * an answer is that of the command that was given, and events stay in order. */
#include "fuzz.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "guest/qemu/events.h"
#include "guest/qemu/qmp-hmp.h"
#include "guest/qemu/qmp.h"

#include <unistd.h>

#define TIMEOUT_MS 20000 /* never reached: the input has an end */

static void converse(RmQmp *qmp)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *text = NULL;
    rm_autojson reply = NULL;
    gboolean has = FALSE;
    if (rm_qmp_run(qmp, "query-status", NULL, &reply, &error))
        g_assert_true(json_object_object_get_ex(reply, "return", NULL));
    if (error == NULL && rm_qmp_hmp(qmp, "info ramblock", &text, &error))
        g_assert_nonnull(text);
    if (error == NULL && rm_qmp_has(qmp, "quit", &has, &error))
        g_assert_true(rm_qmp_has(qmp, "quit", &has, NULL)); /* from memory */
}

static void check_events(RmQmp *qmp)
{
    RmEvents events = {0};
    while (rm_events_poll(&events, qmp, NULL))
        g_assert_null(rm_qmp_next_event(qmp)); /* it took them all, and the end is still to come */
    for (json_object *event; (event = rm_qmp_next_event(qmp)) != NULL; json_object_put(event))
        g_assert_true(json_object_object_get_ex(event, "event", NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    if (!fuzz_socket(data, size, fds))
        return 0;
    g_autoptr(GError) error = NULL;
    g_autoptr(RmQmp) qmp = rm_qmp_greet(fds[0], "fuzz", TIMEOUT_MS, &error);
    g_assert_true((qmp == NULL) == (error != NULL));
    if (qmp != NULL) {
        g_assert_nonnull(rm_qmp_version_text(qmp));
        converse(qmp);
        check_events(qmp);
        g_assert_false(rm_qmp_run(qmp, "stop", NULL, NULL, NULL)); /* nothing is left of the input */
    }
    close(fds[1]);
    return 0;
}
