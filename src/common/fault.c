/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fault points read from RDMAMIG_FAULT. */
#include "common/fault.h"

#if RM_FAULTS
#include "common/fault-points.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define HELD_MOST_MS 60000
#define LOOK_MS 10
#define EXIT_STATUS 70 /* none of ours */

#define PREFIX_STATE "state-"
#define PREFIX_SEND "send-"
#define PREFIX_RECEIVE "receive-"
#define PREFIX_PLACE ""
#define PREFIX_SWITCH ""

static const char *const names[] = {
#define X(end, kind, name) PREFIX_##kind name,
    RM_FAULT_POINTS(X)
#undef X
};

static gint off;

static void check(const char *name)
{
    for (gsize i = 0; i < G_N_ELEMENTS(names); i++) {
        if (strcmp(names[i], name) == 0)
            return;
    }
    g_error("RDMAMIG_FAULT: there is no fault point `%s`", name);
}

static GHashTable *load(void)
{
    static gsize once;
    static GHashTable *points;
    if (g_once_init_enter(&once)) {
        points = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
        g_auto(GStrv) items = g_strsplit(g_getenv("RDMAMIG_FAULT") ?: "", ",", -1);
        for (char **item = items; *item != NULL; item++) {
            char **pair = g_strsplit(*item, "=", 2);
            if (pair[0] != NULL) {
                check(pair[0]);
                g_hash_table_insert(points, g_strdup(pair[0]), g_strdup(pair[1] ?: ""));
            }
            g_strfreev(pair);
        }
        g_once_init_leave(&once, 1);
    }
    return points;
}

gboolean rm_fault(const char *name)
{
    return g_hash_table_contains(load(), name);
}

const char *rm_fault_value(const char *name)
{
    return g_hash_table_lookup(load(), name);
}

unsigned rm_fault_number(const char *name, unsigned usual)
{
    const char *value = rm_fault_value(name);
    return value != NULL ? (unsigned)g_ascii_strtoull(value, NULL, 10) : usual;
}

static void act(const char *name, const char *value)
{
    g_printerr("fault point %s: %s\n", name, value); /* a test reads by it whether it was reached */
    if (strcmp(value, "exit") == 0)
        _exit(EXIT_STATUS);
    else if (strcmp(value, "kill") == 0)
        raise(SIGKILL);
    else if (strcmp(value, "stop") == 0)
        kill(getpid(), SIGSTOP);
    else if (value[0] != '/')
        g_usleep(g_ascii_strtoull(value, NULL, 10) * 1000);
    else
        for (unsigned i = 0; i < HELD_MOST_MS / LOOK_MS && g_file_test(value, G_FILE_TEST_EXISTS); i++)
            g_usleep(LOOK_MS * 1000);
}

void rm_fault_pause(const char *name)
{
    const char *value = rm_fault_value(name);
    if (value != NULL && !g_atomic_int_get(&off))
        act(name, value);
}

/* The first time that any thread gets to `name`, its value; afterwards NULL. */
static const char *take(const char *name)
{
    static GMutex lock;
    static GHashTable *taken;
    const char *value = rm_fault_value(name);
    if (value == NULL || g_atomic_int_get(&off))
        return NULL;
    g_mutex_lock(&lock);
    if (taken == NULL)
        taken = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    if (!g_hash_table_add(taken, g_strdup(name)))
        value = NULL;
    g_mutex_unlock(&lock);
    return value;
}

void rm_fault_state(const char *state)
{
    g_autofree char *name = g_strconcat(PREFIX_STATE, state, NULL);
    const char *value = take(name);
    if (value != NULL)
        act(name, value);
}

RmFaultFate rm_fault_message(const char *way, const char *type)
{
    g_autofree char *name = g_strconcat(way, "-", type, NULL);
    const char *value = take(name);
    if (value == NULL)
        return RM_FAULT_PASS;
    act(name, value);
    if (strcmp(value, "drop") == 0)
        return RM_FAULT_DROP;
    return strcmp(value, "short") == 0 ? RM_FAULT_SHORT : RM_FAULT_PASS;
}

void rm_fault_off(void)
{
    g_atomic_int_set(&off, 1);
}
#endif
