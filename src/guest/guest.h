/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A guest, as the session sees it: where its RAM is, whether it can be moved, how to stop it, save it, load
 * it and let it run. Providers: qemu (a QMP socket); fake (tests).
 *
 * One thread, the session's, makes all calls. Each may block for as long as the VMM takes to answer, bounded
 * by the provider's time-out (a VMM that does not answer is an error, never a hang), and ends early if
 * `cancellable` (given at creation, may be NULL) is cancelled, save for the roll-back calls resume() and
 * quit(), which must run to their end, and run_state(), which tells afterwards where a guest is.
 */
#pragma once

#include "memory/block.h"

#include <gio/gio.h>
#include <json-c/json.h>

typedef struct RmGuest RmGuest;

typedef struct {
    char *name;         /* "" if the VMM knows none */
    char *uuid;         /* "" if none, or all zeroes */
    pid_t pid;          /* of the VMM */
    char *vmm;          /* for example "qemu 7.2.22" */
    GHashTable *traits; /* char* -> char*: what must be equal at both ends: "machine", "cpu", "vcpus", … */
} RmGuestInfo;

void rm_guest_info_free(RmGuestInfo *info);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmGuestInfo, rm_guest_info_free)

typedef struct {
    gboolean allow_nested;
    gboolean allow_untracked_writers;
} RmPreflightOptions;

typedef enum {
    RM_GUEST_RUNNING,
    RM_GUEST_PAUSED,  /* by an operator; may be moved, and stays paused */
    RM_GUEST_WAITING, /* a destination waiting for an incoming migration */
    RM_GUEST_SAVED,   /* state saved; runs again only by resume() */
    RM_GUEST_OTHER,   /* cannot be migrated in this run state */
} RmGuestRun;

typedef struct {
    const char *name;

    /* Facts about the guest; caller frees. */
    gboolean (*describe)(RmGuest *guest, RmGuestInfo **ret_info, GError **error);
    gboolean (*run_state)(RmGuest *guest, RmGuestRun *ret_run, GError **error);

    /* The RAM blocks that we move, opened and mapped, in a stable order; caller unrefs the array (it frees
     * its blocks). `writable`: at the destination. Blocks that the VMM itself carries in its state (ROMs,
     * video RAM) are left out. Reasons ram-not-shared, ram-memfd, ram-backing, …, naming the block and the
     * fix. */
    gboolean (*blocks)(RmGuest *guest, gboolean writable, GPtrArray **ret_blocks, GError **error);

    /* Source: every check that can refuse before a byte moves. Each failure names the device or block and the
     * fix. */
    gboolean (*preflight)(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options,
                          GError **error);
    /* Source, after preflight(): the device that may give pages of RAM back to the host while the guest runs
     * (balloon, virtio-mem: design fact 9), for the operator's eyes; NULL if there is none. The guest's own.
     */
    const char *(*puncher)(RmGuest *guest);
    /* Source, straight after stop(), whose answers it uses: what would make save() harm the guest (jobs,
     * exports). Reason block-job. */
    gboolean (*check_save)(RmGuest *guest, GError **error);
    /* Source, after save() and before `commit`: those checks again whose answer can change (other mappings,
     * blocks, jobs, devices), and whether the guest is RM_GUEST_SAVED. */
    gboolean (*recheck)(RmGuest *guest, GPtrArray *blocks, const RmPreflightOptions *options, GError **error);

    /* Source: waits until no direct I/O is in flight that was submitted before the call (design fact 1). The
     * guest's console stands still for *ret_stall_us. A guest without block devices needs none: 0. */
    gboolean (*fence)(RmGuest *guest, int64_t *ret_stall_us, GError **error);

    /* Takes in the VMM's events without blocking. Fails with guest-reset, guest-shutdown, guest-panicked,
     * guest-gone, guest-changed (hotplug) when one of these has happened since the last call. */
    gboolean (*poll)(RmGuest *guest, GError **error);

    gboolean (*stop)(RmGuest *guest,
                     GError **error); /* vCPUs stopped, I/O drained; no-op on a paused guest */

    /* Source, running or stopped: what save() needs of the VMM and the guest need not stand still for. Sets a
     * known vector of migration capabilities and parameters, and remembers what it found. Idempotent. Reasons
     * state-save, guest-busy (another's migration). */
    gboolean (*prepare_save)(RmGuest *guest, GError **error);
    /* Source, stopped: the device state without RAM; prepares, if that was not done. On success the run state
     * is RM_GUEST_SAVED, unless somebody lets the guest run: recheck() looks. Reason state-save. */
    gboolean (*save)(RmGuest *guest, GByteArray **ret_state, GError **error);

    /* Source, saved; destination, prepared or loaded: restores the capabilities and parameters that were
     * found. Best effort: the guest is not kept back for it. Idempotent; resume() does it, too. */
    void (*put_back)(RmGuest *guest);

    /* `note` is called within prepare_save() and prepare_load(), before anything of the VMM is changed that
     * outlives us, with what recall() needs to put it back; FALSE from it makes them fail. */
    void (*set_note)(RmGuest *guest, gboolean (*note)(gpointer data, json_object *found, GError **error),
                     gpointer data);
    /* In another process than the one that called these: what it had noted (NULL: nothing), so that resume()
     * can roll back, or put_back() restore, from wherever that process died. */
    void (*recall)(RmGuest *guest, json_object *found);

    /* Source: roll back from any point: cancels a save, lets the guest run again if `run`, takes its disks
     * back, restores capabilities and parameters. Idempotent. Reason resume. */
    gboolean (*resume)(RmGuest *guest, gboolean run, GError **error);

    /* Destination, waiting: what load() needs of the VMM and the state need not be here for; as
     * prepare_save(). A VMM that is not asked to load after all is as it was after put_back(). Reasons
     * guest-state, state-load. */
    gboolean (*prepare_load)(RmGuest *guest, GError **error);
    /* Destination: loads the state into a waiting VMM; prepares, if that was not done; the guest stays
     * paused, its disks untouched. Whether or not it succeeds, the VMM is used up for another attempt
     * afterwards. Reason state-load with the VMM's words. */
    gboolean (*load)(RmGuest *guest, const uint8_t *state, gsize length, GError **error);
    /* Destination, loaded: takes the disks, runs, announces the guest on its networks. No-op on a guest that
     * runs; refused on one that was handed on since, stopped by itself, or was never loaded. Reason resume.
     */
    gboolean (*activate)(RmGuest *guest, GError **error);

    /* Ends the VMM. Succeeds if it is gone already. */
    gboolean (*quit)(RmGuest *guest, GError **error);

    /* The connection to the VMM, for another process to inherit and adopt after the end of this one; stays
     * the guest's, and is replaced if the guest has to connect anew. -1: none. */
    int (*connection)(RmGuest *guest);

    void (*free)(RmGuest *guest); /* closes our connection; the VMM goes on */
} RmGuestOps;

struct RmGuest {
    const RmGuestOps *ops;
};

/* Connects to QEMU's QMP socket at `path`. `timeout_ms` bounds each command. Reasons qmp-unreachable,
 * qmp-busy (no greeting within the time: another client holds the socket), qemu-version. */
RmGuest *rm_guest_qemu_new(const char *path, unsigned timeout_ms, GCancellable *cancellable, GError **error);

/* The same over a connection to `path` that another process, which has died, had opened and may have left in
 * the middle of a command or of its answer; takes `fd`. Connects to `path` itself if that connection has
 * ended, and accepts no other VMM there than `pid`: reason guest-gone. */
RmGuest *rm_guest_qemu_adopt(int fd, const char *path, pid_t pid, unsigned timeout_ms, GError **error);

static inline void rm_guest_free(RmGuest *guest)
{
    if (guest != NULL)
        guest->ops->free(guest);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmGuest, rm_guest_free)
