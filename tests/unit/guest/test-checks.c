/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Checks and events that no machine of ours can produce for real, by a scripted QMP server: passthrough
 * devices, nesting under KVM, versions of QEMU that are not installed, and each event.
 */
#include "fake-qmp.h"

#include "common/autoptr.h"
#include "common/reason.h"
#include "guest/qemu/events.h"
#include "guest/qemu/fence.h"
#include "guest/qemu/preflight.h"
#include "guest/qemu/vmm.h"

#define TIMEOUT_MS 20000

/* A guest that passes. Rules of a test come before these. */
#define SOUND                                                                                                \
    {"qom-list", "/machine/peripheral", "[]", NULL},                                                         \
        {"human-monitor-command", "info network", "\"\"", NULL},                                             \
        {"query-named-block-nodes", NULL, "[]", NULL},                                                       \
        {"query-status", NULL, "{\"status\": \"running\", \"running\": true}", NULL},                        \
        {"query-migrate", NULL, "{}", NULL},                                                                 \
        {"query-kvm", NULL, "{\"enabled\": true, \"present\": true}", NULL},                                 \
        {"query-cpus-fast", NULL, "[{\"thread-id\": 1, \"qom-path\": \"/cpu0\"}]", NULL},                    \
        {"qom-list", "cpu0",                                                                                 \
         "[{\"name\": \"vmx\", \"type\": \"bool\"}, {\"name\": \"svm\", \"type\": \"bool\"}]", NULL},        \
        {"qom-get", "cpu0", "false", NULL}, {"query-jobs", NULL, "[]", NULL},                                \
        {"query-block-exports", NULL, "[]", NULL},                                                           \
    {                                                                                                        \
        NULL                                                                                                 \
    }

#define DEVICE(id, type)                                                                                     \
    {                                                                                                        \
        "qom-list", "/machine/peripheral\"", "[{\"name\": \"" id "\", \"type\": \"child<" type ">\"}]", NULL \
    }

static const struct {
    const char *name;
    FakeQmpRule rules[14];
    RmReason reason;
    const char *part;
    RmPreflightOptions options;
    const char *puncher;
    gboolean old; /* QEMU 8.0 */
} cases[] = {
    {"sound", {SOUND}, RM_REASON_NONE, ""},
    {"vfio", {DEVICE("gpu0", "vfio-pci"), SOUND}, RM_REASON_UNFENCEABLE, "gpu0 (vfio-pci)"},
    {"balloon",
     {DEVICE("b0", "virtio-balloon-pci"), SOUND},
     RM_REASON_NONE,
     "",
     .puncher = "device /machine/peripheral/b0 (virtio-balloon-pci)"},
    {"virtio-mem",
     {DEVICE("m0", "virtio-mem-pci"), SOUND},
     RM_REASON_NONE,
     "",
     .puncher = "device /machine/peripheral/m0 (virtio-mem-pci)"},
    {"virtio-mem-old",
     {DEVICE("m0", "virtio-mem-pci"), SOUND},
     RM_REASON_BALLOON,
     "8.1 or newer",
     .old = TRUE},
    {"hv-balloon", {DEVICE("b0", "hv-balloon"), SOUND}, RM_REASON_BALLOON, "b0 (hv-balloon)"},
    {"vhost-scsi", {DEVICE("s0", "vhost-scsi-pci"), SOUND}, RM_REASON_UNFENCEABLE, "virtio-scsi"},
    {"vdpa-device", {DEVICE("v0", "vhost-vdpa-device-pci"), SOUND}, RM_REASON_UNFENCEABLE, "v0"},
    {"virtiofs",
     {DEVICE("fs0", "vhost-user-fs-pci"), SOUND},
     RM_REASON_RAM_WRITERS,
     "--allow-untracked-writers"},
    {"virtiofs-allowed",
     {DEVICE("fs0", "vhost-user-fs-pci"), SOUND},
     RM_REASON_NONE,
     "",
     {.allow_untracked_writers = TRUE}},
    {"vfio-never-allowed",
     {DEVICE("gpu0", "vfio-pci"), SOUND},
     RM_REASON_UNFENCEABLE,
     "gpu0",
     {.allow_untracked_writers = TRUE, .allow_nested = TRUE}},
    {"vdpa-net",
     {{"human-monitor-command", "info network",
       "\"virtio-net-pci.0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56\\r\\n \\\\ n0: "
       "index=0,type=vhost-vdpa,vhost-vdpa\\r\\n\"",
       NULL},
      SOUND},
     RM_REASON_UNFENCEABLE,
     "netdev n0 (vhost-vdpa)"},
    {"vhost-user-net",
     {{"human-monitor-command", "info network", "\"n0: index=0,type=vhost-user,vhost-user0 to /tmp/x\\r\\n\"",
       NULL},
      SOUND},
     RM_REASON_RAM_WRITERS,
     "netdev n0"},
    {"tap",
     {{"human-monitor-command", "info network",
       "\"n0: index=0,type=tap,ifname=tap0,script=no,vhost=on\\r\\n\"", NULL},
      SOUND},
     RM_REASON_NONE,
     ""},
    {"nvme-node",
     {{"query-named-block-nodes", NULL, "[{\"node-name\": \"d0\", \"drv\": \"nvme\"}]", NULL}, SOUND},
     RM_REASON_UNFENCEABLE,
     "node d0 (nvme)"},
    {"blkio-node",
     {{"query-named-block-nodes", NULL, "[{\"node-name\": \"d0\", \"drv\": \"virtio-blk-vfio-pci\"}]", NULL},
      SOUND},
     RM_REASON_UNFENCEABLE,
     "node d0"},
    {"nested", {{"qom-get", "svm", "true", NULL}, SOUND}, RM_REASON_NESTED, "svm=off"},
    {"nested-allowed", {{"qom-get", "svm", "true", NULL}, SOUND}, RM_REASON_NONE, "", {.allow_nested = TRUE}},
    {"no-kvm",
     {{"qom-get", "vmx", "true", NULL},
      {"query-kvm", NULL, "{\"enabled\": false, \"present\": true}", NULL},
      SOUND},
     RM_REASON_NONE,
     ""},
    {"not-x86", {{"qom-list", "cpu0", "[]", NULL}, SOUND}, RM_REASON_NONE, ""},
    {"blockers",
     {{"query-migrate", NULL, "{\"blocked-reasons\": [\"VFIO device is bad\", \"So is 9p\"]}", NULL}, SOUND},
     RM_REASON_BLOCKED,
     "VFIO device is bad; So is 9p"},
    {"setup",
     {{"query-migrate", NULL, "{\"status\": \"setup\"}", NULL}, SOUND},
     RM_REASON_GUEST_BUSY,
     "\"setup\""},
    {"failed-before", {{"query-migrate", NULL, "{\"status\": \"failed\"}", NULL}, SOUND}, RM_REASON_NONE, ""},
    {"job-done",
     {{"query-jobs", NULL, "[{\"id\": \"j\", \"type\": \"backup\", \"status\": \"concluded\"}]", NULL},
      SOUND},
     RM_REASON_NONE,
     ""},
    {"watchdog",
     {{"query-status", NULL, "{\"status\": \"watchdog\", \"running\": false}", NULL}, SOUND},
     RM_REASON_GUEST_STATE,
     "\"watchdog\""},
    {"unheard-of",
     {{"query-status", NULL, "{\"status\": \"dreaming\", \"running\": false}", NULL}, SOUND},
     RM_REASON_GUEST_STATE,
     "\"dreaming\""},
    {"wrong-type", {{"query-jobs", NULL, "{}", NULL}, SOUND}, RM_REASON_PROTOCOL, "return"},
};

static void test_case(gconstpointer data)
{
    gsize i = GPOINTER_TO_SIZE(data);
    FakeQmpScript script = {cases[i].old ? 8 : 10, 0, cases[i].rules};
    g_autoptr(FakeQmp) server = fake_qmp_new(fake_qmp_serve_script, &script, 1);
    g_autoptr(GError) error = NULL;
    g_autoptr(RmQmp) qmp = rm_qmp_new(server->path, TIMEOUT_MS, NULL, &error);
    g_assert_no_error(error);
    g_autoptr(GPtrArray) blocks = g_ptr_array_new();
    g_autoptr(RmDevices) devices = NULL;
    gboolean passed = rm_preflight(qmp, getpid(), blocks, &cases[i].options, &devices, &error);
    if (error != NULL)
        g_test_message("%s", error->message);
    g_assert_cmpstr(rm_reason_name(rm_error_reason(error)), ==, rm_reason_name(cases[i].reason));
    g_assert_true(passed == (cases[i].reason == RM_REASON_NONE));
    g_assert_cmpstr(passed ? rm_devices_puncher(devices) : NULL, ==, cases[i].puncher);
    g_assert_true(passed || strstr(error->message, cases[i].part) != NULL);
}

static const struct {
    const char *events; /* lines */
    RmReason reason;    /* of the poll that takes them in */
    unsigned own_stops, own_resumes;
    gboolean paused_by_other;
} event_cases[] = {
    {"", RM_REASON_NONE},
    {"{\"event\": \"POWERDOWN\"}\n{\"event\": \"RTC_CHANGE\"}\n", RM_REASON_NONE},
    {"{\"event\": \"RESET\", \"data\": {\"guest\": true, \"reason\": \"guest-reset\"}}\n",
     RM_REASON_GUEST_RESET},
    {"{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true}}\n", RM_REASON_GUEST_SHUTDOWN},
    {"{\"event\": \"GUEST_PANICKED\", \"data\": {\"action\": \"pause\"}}\n{\"event\": \"STOP\"}\n",
     RM_REASON_GUEST_PANIC, .paused_by_other = TRUE},
    {"{\"event\": \"SUSPEND\"}\n", RM_REASON_GUEST_STATE},
    {"{\"event\": \"DEVICE_DELETED\", \"data\": {\"path\": \"/x\"}}\n", RM_REASON_GUEST_CHANGED},
    {"{\"event\": \"ACPI_DEVICE_OST\", \"data\": {}}\n", RM_REASON_GUEST_CHANGED},
    {"{\"event\": \"MEMORY_DEVICE_SIZE_CHANGE\", \"data\": {}}\n", RM_REASON_NONE},
    {"{\"event\": \"BALLOON_CHANGE\", \"data\": {\"actual\": 1}}\n", RM_REASON_NONE},
    {"{\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"action\": \"report\"}}\n", RM_REASON_NONE},
    {"{\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"action\": \"stop\"}}\n{\"event\": \"STOP\"}\n",
     RM_REASON_GUEST_STATE, .paused_by_other = TRUE},
    {"{\"event\": \"STOP\"}\n", RM_REASON_GUEST_STATE, .paused_by_other = TRUE},
    {"{\"event\": \"STOP\"}\n", RM_REASON_NONE, .own_stops = 1},
    {"{\"event\": \"STOP\"}\n{\"event\": \"RESUME\"}\n", RM_REASON_NONE, .own_stops = 1, .own_resumes = 1},
    {"{\"event\": \"STOP\"}\n{\"event\": \"RESUME\"}\n", RM_REASON_GUEST_STATE, .own_stops = 1},
    {"{\"event\": \"STOP\"}\n{\"event\": \"RESUME\"}\n{\"event\": \"STOP\"}\n", RM_REASON_GUEST_STATE,
     .own_stops = 1, .own_resumes = 1, .paused_by_other = TRUE},
    /* the first is what counts */
    {"{\"event\": \"RESET\"}\n{\"event\": \"SHUTDOWN\"}\n", RM_REASON_GUEST_RESET},
};

static void test_events(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(event_cases); i++) {
        const FakeQmpRule rules[] = {{"x", NULL, "{}", event_cases[i].events},
                                     {"y", NULL, "{}", NULL}, /* its reply comes behind the events */
                                     {NULL}};
        FakeQmpScript script = {7, 2, rules};
        RmEvents events = {.own_stops = event_cases[i].own_stops, .own_resumes = event_cases[i].own_resumes};
        g_autoptr(FakeQmp) server = fake_qmp_new(fake_qmp_serve_script, &script, 1);
        g_autoptr(GError) error = NULL;
        g_autoptr(RmQmp) qmp = rm_qmp_new(server->path, TIMEOUT_MS, NULL, NULL);
        g_assert_true(rm_qmp_run(qmp, "x", NULL, NULL, NULL) && rm_qmp_run(qmp, "y", NULL, NULL, NULL));
        g_test_message("%s", event_cases[i].events);
        rm_events_poll(&events, qmp, &error);
        g_assert_cmpstr(rm_reason_name(rm_error_reason(error)), ==, rm_reason_name(event_cases[i].reason));
        g_assert_cmpint(events.paused_by_other, ==, event_cases[i].paused_by_other);
        g_clear_error(&error);
        g_assert_true(rm_events_poll(&events, qmp, &error)); /* told once */
    }
}

/* Which way the fence takes, by what the server was asked. */
static const FakeQmpRule fence_rules[] = {
    {"query-named-block-nodes", NULL, "[{\"node-name\": \"d0\", \"drv\": \"raw\"}]", NULL},
    {"query-status", NULL, "{\"status\": \"running\", \"running\": true}", NULL},
    {"transaction", "\"actions\":[]", "{}", "{\"event\": \"TRANSACTION\"}\n"},
    {"stop", NULL, "{}", "{\"event\": \"STOP\"}\n"},
    {"cont", NULL, "{}", "{\"event\": \"RESUME\"}\n"},
    {NULL},
};

static void test_fence_by_version(void)
{
    static const struct {
        unsigned major, minor;
        gboolean by_stop;
    } versions[] = {{7, 1, TRUE}, {7, 2, FALSE}, {8, 0, FALSE}, {10, 2, FALSE}, {11, 0, TRUE}};
    for (size_t i = 0; i < G_N_ELEMENTS(versions); i++) {
        FakeQmpScript script = {versions[i].major, versions[i].minor, fence_rules};
        RmEvents events = {0};
        int64_t stall = -1;
        unsigned transactions = 0, stops = 0;
        g_autoptr(FakeQmp) server = fake_qmp_new(fake_qmp_serve_script, &script, 1);
        g_autoptr(GError) error = NULL;
        g_autoptr(RmQmp) qmp = rm_qmp_new(server->path, TIMEOUT_MS, NULL, NULL);
        rm_fence(qmp, &events, &stall, &error);
        g_assert_no_error(error);
        g_assert_cmpint(stall, >=, 0);
        g_assert_true(rm_qmp_run(qmp, "query-status", NULL, NULL, NULL)); /* all events are here now */
        for (json_object *event; (event = rm_qmp_next_event(qmp)) != NULL; json_object_put(event)) {
            const char *text = json_object_to_json_string(event);
            transactions += strstr(text, "TRANSACTION") != NULL;
            stops += strstr(text, "STOP") != NULL || strstr(text, "RESUME") != NULL;
        }
        g_assert_cmpuint(transactions, ==, versions[i].by_stop ? 0 : 1);
        g_assert_cmpuint(stops, ==, versions[i].by_stop ? 2 : 0);
        g_assert_cmpuint(events.own_stops, ==, versions[i].by_stop);
    }
}

static void test_find_vmm(void)
{
    pid_t pid = 0;
    g_autoptr(GError) error = NULL;
    /* the socket's maker has the vCPU's thread: no need to look like QEMU */
    g_assert_true(rm_vmm_find(getpid(), gettid(), &pid, &error));
    g_assert_cmpint(pid, ==, getpid());
    /* a maker that is some other program, and a thread number that means nothing here */
    g_assert_false(rm_vmm_find(1, getpid(), &pid, &error));
    g_assert_cmpint(rm_error_reason(error), ==, RM_REASON_INTERNAL);
    g_clear_error(&error);
    g_assert_false(rm_vmm_find(0, 0, &pid, &error));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *path = g_strconcat("/guest/checks/", cases[i].name, NULL);
        g_test_add_data_func(path, GSIZE_TO_POINTER(i), test_case);
    }
    g_test_add_func("/guest/events", test_events);
    g_test_add_func("/guest/fence/by-version", test_fence_by_version);
    g_test_add_func("/guest/find-vmm", test_find_vmm);
    return g_test_run();
}
