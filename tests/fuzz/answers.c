/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is read out of QEMU's answers: facts, devices, settings. The input is the answers, one a line, without
 * their ids. */
#include "fuzz.h"

#include "common/autoptr.h"
#include "control/json.h"
#include "guest/qemu/devices.h"
#include "guest/qemu/facts.h"
#include "guest/qemu/qom.h"
#include "guest/qemu/state.h"
#include "guest/qemu/vector.h"

#include <string.h>
#include <unistd.h>

/* The answers as QEMU gives them, behind its greeting: with the ids that the client is going to count up. */
static GString *script(const uint8_t *data, size_t size)
{
    g_autofree char *text = fuzz_text(data, size);
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    GString *all = g_string_new("{\"QMP\":{\"version\":{\"qemu\":{\"major\":7,\"minor\":2,\"micro\":0}}}}\n"
                                "{\"return\":{},\"id\":1}\n");
    for (unsigned i = 0; lines[i] != NULL; i++)
        g_string_append_printf(all, "{\"return\":%s,\"id\":%u}\n", lines[i], i + 2);
    return all;
}

static void ask(RmQmp *qmp, uint8_t what)
{
    g_autoptr(RmGuestInfo) info = NULL;
    g_autoptr(RmDevices) devices = NULL, others = NULL;
    g_auto(RmVector) wanted = {0}, found = {0};
    g_autofree char *status = NULL, *run = NULL;
    rm_autojson reply = NULL;
    gboolean active = FALSE;
    if (what % 4 == 0 && rm_facts_describe(qmp, 1, &info, NULL))
        g_assert_true(info->name != NULL && info->uuid != NULL && g_hash_table_size(info->traits) == 4);
    if (what % 4 == 1 && rm_devices_list(qmp, &devices, NULL)) {
        rm_devices_check(devices, &(RmPreflightOptions){0}, NULL);
        g_assert_true(rm_devices_compare(devices, devices, NULL));
        if (rm_devices_list(qmp, &others, NULL))
            rm_devices_compare(devices, others, NULL);
    }
    if (what % 4 == 2 && rm_vector_compare(qmp, what & 4, &wanted, &found, NULL)) {
        g_auto(RmVector) again = {0};
        json_object *json = rm_vector_to_json(&found);
        rm_vector_from_json(json, &again);
        fuzz_assert_same(json, rm_vector_to_json(&again));
    }
    if (what % 4 == 3 && rm_state_query_run(qmp, &run, NULL) &&
        rm_state_query_migration(qmp, &active, &status, &reply, NULL))
        g_assert_true(run != NULL && status != NULL && reply != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];
    uint8_t what = fuzz_byte(&data, &size);
    g_autoptr(GString) all = script(data, size);
    if (!fuzz_socket((const uint8_t *)all->str, all->len, fds))
        return 0;
    g_autoptr(RmQmp) qmp = rm_qmp_greet(fds[0], "fuzz", 20000, NULL);
    if (qmp != NULL)
        ask(qmp, what);
    close(fds[1]);
    return 0;
}
