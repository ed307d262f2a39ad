/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Reason codes: the one enum of why a session ended as it did.
 *
 * Every GError of rdmamig is in RM_ERROR and its code is an RmReason, so that the word an operator greps for
 * in --json, in the journal and in docs/ is the word that the failing place chose.
 */
#pragma once

#include <glib.h>

#define RM_REASONS(X)                                                                                         \
    X(NONE, "none")                                   /* no failure */                                        \
    X(INTERNAL, "internal")                           /* a fault of ours, or of this host */                  \
    X(USAGE, "usage")                                 /* wrong command line */                                \
    X(PEER_UNREACHABLE, "peer-unreachable")           /* no connection to the other daemon */                 \
    X(PEER_LOST, "peer-lost")                         /* connection ended in the middle */                    \
    X(PEER_TIMEOUT, "peer-timeout")                   /* nothing heard within the bound */                    \
    X(PROTOCOL, "protocol")                           /* the peer said something impossible */                \
    X(VERSION, "version-mismatch")                    /* no common protocol version */                        \
    X(TLS, "tls")                                     /* a certificate is missing, unfit or not accepted */   \
    X(LIMIT, "limit")                                 /* the destination takes no more sessions now */        \
    X(TRANSPORT, "transport")                         /* a data channel failed */                             \
    X(TRANSPORT_UNAVAILABLE, "transport-unavailable") /* the wanted transport is not there */                 \
    X(TOKEN, "token-rejected")                        /* a data channel could not prove itself */             \
    X(CHUNK_SIZE, "chunk-size")                       /* no chunk size suits both ends */                     \
    X(KERNEL, "kernel-unsupported")                   /* this kernel lacks what the tracker needs */          \
    X(PRIVILEGE, "privilege")                         /* a right or limit of this process is missing */       \
    X(ATTACH, "attach")                               /* the VMM could not be attached to */                  \
    X(TRACKER, "tracker")                             /* dirty tracking failed after the attach */            \
    X(QMP_UNREACHABLE, "qmp-unreachable")             /* no QEMU at the QMP socket */                         \
    X(QMP_BUSY, "qmp-busy")                           /* another client holds the QMP socket */               \
    X(QMP_ERROR, "qmp-error")                         /* QEMU answered a command with an error */             \
    X(GUEST_GONE, "guest-gone")                       /* QEMU ended */                                        \
    X(GUEST_NOT_FOUND, "guest-not-found")             /* no waiting QEMU for this guest */                    \
    X(GUEST_BUSY, "guest-busy")                       /* another session has this guest */                    \
    X(GUEST_STATE, "guest-state")                     /* run state that cannot be migrated */                 \
    X(GUEST_RESET, "guest-reset")                     /* the guest was reset during pre-copy */               \
    X(GUEST_SHUTDOWN, "guest-shutdown")               /* the guest powered itself off */                      \
    X(GUEST_PANIC, "guest-panicked")                  /* the guest panicked */                                \
    X(GUEST_CHANGED, "guest-changed")                 /* hotplug, resize, new writer since the preflight */   \
    X(QEMU_VERSION, "qemu-version")                   /* a QEMU that is too old, or unlike at both ends */    \
    X(RAM_NOT_SHARED, "ram-not-shared")               /* guest RAM is private or anonymous */                 \
    X(RAM_MEMFD, "ram-memfd")                         /* memfd RAM on QEMU 8.1 or newer */                    \
    X(RAM_BACKING, "ram-backing")                     /* RAM file is not on tmpfs or hugetlbfs */             \
    X(RAM_WRITERS, "ram-other-writers")               /* another process maps or holds the guest's RAM */     \
    X(UNFENCEABLE, "unfenceable-device")              /* a device whose DMA cannot be waited for */           \
    X(BLOCKED, "migration-blocked")                   /* QEMU itself names a blocker */                       \
    X(BALLOON, "balloon")                             /* balloon, virtio-mem: punches holes */                \
    X(NESTED, "nested-guest")                         /* vmx/svm exposed to the guest */                      \
    X(BLOCK_JOB, "block-job")                         /* running block job or writable export */              \
    X(MISMATCH, "guest-mismatch")                     /* RAM blocks, machine or CPU unlike at both ends */    \
    X(SAME_MEMORY, "same-memory")                     /* both ends are the same memory file */                \
    X(MEMORY_SHORT, "memory-short")                   /* not enough free memory or hugepages */               \
    X(NOT_CONVERGED, "not-converged")                 /* --max-rounds or --timeout reached */                 \
    X(MAX_PAUSE, "max-pause")                         /* paused for longer than --max-pause allows */         \
    X(VERIFY, "verify-mismatch")                      /* --verify found different bytes */                    \
    X(STATE_SAVE, "state-save")                       /* QEMU could not save its device state */              \
    X(STATE_LOAD, "state-load")                       /* the destination rejected the device state */         \
    X(JOURNAL, "journal")                             /* the session's record can't be kept */                \
    X(RESUME, "resume")                               /* the guest did not run again */                       \
    X(CANCELLED, "cancelled")                         /* by the operator, at either end */                    \
    X(DOUBTFUL, "doubtful")                           /* commit sent, answer unknown */                       \
    X(CLEANUP, "cleanup")                             /* moved, but something could not be tidied */

typedef enum {
#define X(id, name) RM_REASON_##id,
    RM_REASONS(X)
#undef X
        RM_REASON_COUNT
} RmReason;

#define RM_ERROR rm_error_quark()
GQuark rm_error_quark(void);

/* The code's name as operators see it, for example "ram-not-shared"; "internal" for a value out of range. */
const char *rm_reason_name(RmReason reason);

/* Returns whether `name` is a reason's name and stores it; the peer's words go through this. */
gboolean rm_reason_from_name(const char *name, RmReason *ret_reason);

/* The reason in `error`: RM_ERROR's code, RM_REASON_CANCELLED for G_IO_ERROR_CANCELLED, else internal. */
RmReason rm_error_reason(const GError *error);

/* Sets `error` to `reason` with the message and ": " + strerror(errno_value). Always returns false. */
gboolean rm_set_errno(GError **error, RmReason reason, int errno_value, const char *format, ...) G_GNUC_PRINTF(4, 5);

/* Sets `error` to `reason` with the message. Always returns false, so that `return rm_fail(...)` reads well. */
gboolean rm_fail(GError **error, RmReason reason, const char *format, ...) G_GNUC_PRINTF(3, 4);
