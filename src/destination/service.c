/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* sd_notify, from the main loop. */
#include "destination/service.h"

#include "config.h"

#if RM_SYSTEMD
#include <systemd/sd-daemon.h>

#define EXTENSION_S 30       /* more time, asked for at a time, and again after a third of it */
#define EXTENSIONS_MAX_S 600 /* QEMU answers within 30 s, or doesn't: more than a session's end can take */

typedef enum { STARTING, SERVING, STOPPING } Phase;

struct RmService {
    RmDaemon *daemon;
    guint timer;
    Phase phase;
    guint told;         /* sessions; G_MAXUINT: none told yet */
    gint64 since;       /* of the phase */
    gint64 extended;    /* when more time was asked for; 0: never in this phase */
    gint64 alive_every; /* 0: no watchdog */
    gint64 alive;       /* when it was told last */
};

static guint count_sessions(RmDaemon *daemon)
{
    g_mutex_lock(&daemon->lock);
    guint n = g_hash_table_size(daemon->sessions);
    g_mutex_unlock(&daemon->lock);
    return n;
}

static void tell_sessions(RmService *service)
{
    static const char *const doing[] = {"Starting; what an earlier rdmamigd left is settled", "Serving",
                                        "Stopping; no new sessions"};
    guint n = count_sessions(service->daemon);
    if (n == service->told)
        return;
    service->told = n;
    sd_notifyf(0, "STATUS=%s: %u session%s", doing[service->phase], n, n == 1 ? "" : "s");
}

static void ask_for_time(RmService *service, gint64 now)
{
    if (service->phase == SERVING || now - service->since > EXTENSIONS_MAX_S * G_USEC_PER_SEC ||
        (service->extended != 0 && now - service->extended < EXTENSION_S * G_USEC_PER_SEC / 3))
        return;
    service->extended = now;
    sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%" G_GINT64_FORMAT, (gint64)EXTENSION_S * G_USEC_PER_SEC);
}

static gboolean on_tick(gpointer data)
{
    RmService *service = data;
    gint64 now = g_get_monotonic_time();
    tell_sessions(service);
    ask_for_time(service, now);
    if (service->alive_every != 0 && now - service->alive >= service->alive_every) {
        service->alive = now;
        sd_notify(0, "WATCHDOG=1");
    }
    return G_SOURCE_CONTINUE;
}

static void enter(RmService *service, Phase phase)
{
    service->phase = phase;
    service->since = g_get_monotonic_time();
    service->extended = 0;
    service->told = G_MAXUINT;
    on_tick(service);
}

RmService *rm_service_new(RmDaemon *daemon)
{
    RmService *service = g_new0(RmService, 1);
    uint64_t watchdog_us = 0;
    service->daemon = daemon;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0)
        service->alive_every = (gint64)MIN(watchdog_us / 4, G_MAXINT64);
    service->timer = g_timeout_add_seconds(1, on_tick, service);
    enter(service, STARTING);
    return service;
}

void rm_service_free(RmService *service)
{
    if (service == NULL)
        return;
    g_source_remove(service->timer);
    g_free(service);
}

void rm_service_ready(RmService *service)
{
    if (service->phase != STARTING)
        return;
    enter(service, SERVING);
    sd_notify(0, "READY=1");
}

void rm_service_reloading(RmService *service)
{
    if (service->phase != SERVING)
        return;
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" G_GINT64_FORMAT, g_get_monotonic_time());
}

void rm_service_reloaded(RmService *service)
{
    if (service->phase != SERVING)
        return;
    sd_notify(0, "READY=1");
}

void rm_service_stopping(RmService *service)
{
    sd_notify(0, "STOPPING=1");
    enter(service, STOPPING);
}

#else

RmService *rm_service_new(G_GNUC_UNUSED RmDaemon *daemon)
{
    if (g_getenv("NOTIFY_SOCKET") != NULL)
        g_warning("built without libsystemd: systemd is not told that rdmamigd serves; its unit must not say "
                  "Type=notify");
    return NULL;
}

void rm_service_free(G_GNUC_UNUSED RmService *service)
{
}

void rm_service_ready(G_GNUC_UNUSED RmService *service)
{
}

void rm_service_reloading(G_GNUC_UNUSED RmService *service)
{
}

void rm_service_reloaded(G_GNUC_UNUSED RmService *service)
{
}

void rm_service_stopping(G_GNUC_UNUSED RmService *service)
{
}

#endif
