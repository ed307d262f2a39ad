/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session at the source: one guest, one destination, from `connecting` to an end state.
 *
 * It runs in one thread from top to bottom (session.c), and the parts it calls are in files of their own:
 * negotiate (hello and accept), round (scan, fence, send, end), converge (another round, or stop?),
 * switchover (stop to running), verify (digests). The sender's threads and the control channel's are the only
 * others.
 *
 * Cancelling: the main thread, or the control channel when the peer is lost, cancels `cancel`; everything
 * that blocks takes it, up to the moment before `commit` is sent. From then on nothing may end the session
 * but the destination's word.
 */
#pragma once

#include "common/bitmap.h"
#include "control/channel.h"
#include "control/message.h"
#include "guest/guest.h"
#include "handover/guardian.h"
#include "handover/journal.h"
#include "handover/table.h"
#include "memory/populated.h"
#include "source/connect.h"
#include "source/options.h"
#include "source/report.h"
#include "source/sender.h"
#include "tracker/tracker.h"
#include "transport/transport.h"

/* What the rounds keep of each block; the session thread's own, but read by the sender during a round. */
typedef struct {
    RmBitmap *todo;    /* this round's pages */
    RmBitmap *suspect; /* read since their last protection without a fence in between (design fact 2) */
    RmBitmap *scratch; /* peeks, holes */
    RmPopulated *populated;
    uint8_t *verified; /* one byte a chunk: equal at both ends since it was last written */
} RmBlockRounds;

typedef struct {
    const RmSendOptions *options; /* immutable */
    char *id;                     /* UUID */
    RmReporter *reporter;
    GCancellable *cancel;
    gint operator_cancelled; /* atomic */
    gint pause_exceeded;     /* atomic */

    /* the session thread's */
    RmState state;
    RmGuest *guest;
    RmGuestInfo *info;
    GPtrArray *blocks; /* RmBlock* */
    gboolean was_running;
    gboolean guest_touched; /* stopped by us, or about to be: roll back */
    int64_t stop_us;        /* when stopping it began */
    gboolean moved_stopped; /* since it did not converge, and that was wished */
    GSource *pause_timer;   /* NULL while no bound runs */
    RmEvent verdict;        /* committed: `running`, or what the destination said when asked */
    RmJournal *journal;     /* from `accept` on */
    RmGuardian *guardian;   /* likewise */
    RmTls *tls;             /* NULL: in clear */
    RmControl *control;
    gulong lost_handler;
    RmHello *hello;
    RmAccept *accept;
    const RmTransport *transport;
    RmTracker *tracker;
    GPtrArray *watches; /* RmPunchWatch*, one a block; NULL if the guest cannot punch holes */
    RmTx *tx;
    RmSender *sender;
    RmBlockRounds *rounds; /* one a block */
    uint32_t round;        /* number of the round that runs or ended last */
    int64_t last_stall_us; /* of the latest fence */
    double rate;           /* bytes/s, of the latest rounds */
    double dirty_rate;     /* bytes/s, between the latest scans */
    int64_t last_scan_end_us;
    int64_t precopy_begin_us;  /* 0 before */
    uint64_t round_pages;      /* pages of the round that runs, for progress */
    RmSenderCounts round_base; /* at its start */
    RmMetrics metrics;
} RmSession;

RmSession *rm_session_new(const RmSendOptions *options, RmReporter *reporter, const char *id);
void rm_session_free(RmSession *session);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmSession, rm_session_free)

/* Runs the session to its end; blocking. The guest is owned and in the state that the result says. */
void rm_session_run(RmSession *session, RmResult *ret_result);

/* Any thread: ends the session as soon as it may be ended. Idempotent; ignored after `commit`. */
void rm_session_cancel(RmSession *session);

/* ---- the parts ---- */

/* As operators know it: the path of its QMP socket where it has no name. Borrowed. */
const char *rm_session_guest_name(const RmSession *session);
/* An event, which the table must allow: records its state where that is due, then is in it. FALSE, and in
 * the state before, if it could not be recorded. The row's other duties are the caller's: `resume` before,
 * what stands behind `sync` after. */
gboolean rm_session_event(RmSession *session, RmEvent event, GError **error);
/* FALSE with the reason if the session was cancelled or its control channel is lost. */
gboolean rm_session_check(RmSession *session, GError **error);
/* Aborts and closes the data channels and joins the sender: nothing of ours reads the guest's RAM afterwards.
 */
void rm_session_end_data(RmSession *session);

/* negotiate.c: hello → accept; fills accept and transport. */
gboolean rm_negotiate(RmSession *session, GError **error);
/* Connects the data channels and starts the sender. */
gboolean rm_negotiate_data(RmSession *session, GError **error);
/* Where the session's destination is, and how it is spoken to; borrowed from the session. */
RmTarget rm_negotiate_target(const RmSession *session);
/* Loads the credentials, if there are to be any, and connects the control channel. */
gboolean rm_negotiate_connect(RmSession *session, GError **error);

/* record.c: the session's journal. Reason journal throughout. */
/* The row's record, if it has one; its first makes the file. */
gboolean rm_record(RmSession *session, const RmTransition *row, GError **error);
/* Whether the guest is to run at the destination; in every record, so that the latest one says it. */
gboolean rm_record_runs(const RmSession *session);
/* For RmGuestOps.set_note; data is the session. */
gboolean rm_record_note(gpointer data, json_object *found, GError **error);

/* round.c */
typedef enum {
    RM_ROUND_FIRST,   /* everything populated in the file, whatever the page tables say */
    RM_ROUND_PRECOPY, /* what was written since */
    RM_ROUND_STOPPED, /* the same, with the guest stopped: the stop was a fence */
} RmRoundKind;
void rm_rounds_init(RmSession *session);
void rm_rounds_free(RmSession *session);
/* A round that is under way: begin() has handed its pages to the sender, whose threads write them; end()
 * waits until all has landed. No other round may begin in between. */
typedef struct {
    RmRoundKind kind;
    RmRoundStats stats;
    RmSenderCounts before;
    GArray *zeroes; /* RmZeroRange */
    int64_t scanned_us, fenced_us;
} RmRound;
void rm_round_clear(RmRound *round);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmRound, rm_round_clear)
gboolean rm_round_begin(RmSession *session, RmRoundKind kind, RmRound *round, GError **error);
gboolean rm_round_end(RmSession *session, RmRound *round, GError **error);
gboolean rm_round_run(RmSession *session, RmRoundKind kind, RmRoundStats *ret_stats, GError **error);
/* Bytes that a round starting now would have to look at: written pages, and suspects apart. */
gboolean rm_round_pending(RmSession *session, uint64_t *ret_dirty, uint64_t *ret_suspect, GError **error);
/* Between rounds: adds to `pages` what of block `i`, within `extents` (of RmExtent; NULL: all of it), may
 * have been punched since it was sent, whatever is there now. */
gboolean rm_round_add_punched(RmSession *session, guint i, const GArray *extents, RmBitmap *pages,
                              GError **error);
/* Sends a whole block beyond guest RAM as a round of its own and waits until it has landed; `regions` (of
 * RmRegion) are writable at the destination. */
gboolean rm_round_send_block(RmSession *session, RmBlock *block, GArray *regions, GError **error);

/* converge.c */
typedef enum {
    RM_NEXT_ROUND,
    RM_NEXT_SWITCHOVER,
    RM_NEXT_SUSPEND, /* switch over, though it will take longer than wished */
    RM_NEXT_GIVE_UP,
} RmNext;
typedef struct {
    double rate;        /* bytes/s the wire took lately */
    double overhead_ms; /* of a switchover apart from its writes */
    uint64_t dirty_bytes, suspect_bytes;
    uint64_t rounds;     /* ended so far */
    uint64_t elapsed_ms; /* since pre-copy began */
    uint64_t downtime_limit_ms, max_rounds, timeout_ms;
    gboolean on_timeout_suspend;
} RmConvergence;
/* The whole policy, without side effects. ret_expected_ms: the downtime if the guest were stopped now. */
RmNext rm_converge_decide(const RmConvergence *state, double *ret_expected_ms);
gboolean rm_converge_precopy(RmSession *session, GError **error);
/* FALSE once --timeout has passed with the guest still running, unless it is then to be moved stopped. */
gboolean rm_converge_check_time(RmSession *session, GError **error);

/* switchover.c: stop … running. On failure before `commit` the guest is as it was before, or the error says
 * what failed. */
gboolean rm_switchover_run(RmSession *session, GError **error);
/* Puts the source guest back; called on every failure at which the source owns it. */
gboolean rm_switchover_roll_back(RmSession *session, GError **error);

/* pause.c: around what stops the guest. */
void rm_pause_begin(RmSession *session);              /* before it */
void rm_pause_roll_back(RmSession *session);          /* before it is let run again */
void rm_pause_end(RmSession *session);                /* it runs again, or `commit` is recorded */
uint64_t rm_pause_bound_ms(const RmSession *session); /* 0: none */

/* verify.c: compares chunks that are clean now and not compared yet; all of them if `stopped`. */
gboolean rm_verify_clean(RmSession *session, gboolean stopped, GError **error);
