/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The composed system that the walk explores: both ends of one session, their journals, guardians, VMMs and
 * connections.
 *
 * What an actor may do, the state that follows and the duties on the way come from the table, possibly an
 * altered one. What is coded here is the world around it: what each duty does to a disk, a VMM or a
 * connection, which events can happen when, and what a fault takes away. Where the world is uncertain the
 * model takes the worst: whoever answers a query shares nothing with the session's own thread but the
 * journal; messages of a broken connection may be lost or may still arrive; an unsynced record survives a
 * power loss or doesn't, and a failing disk may drop it even without one.
 */
#pragma once

#include "handover/table.h"

#include <stdint.h>

#define NO_RECORD RM_STATE_COUNT   /* a journal that has none, or isn't there */
#define FRESH (RM_STATE_COUNT + 1) /* an actor that has not read the journal yet */
#define UNSYNCED 3                 /* records that can be waiting for the disk */
#define QUEUE 2                    /* messages under way in one direction */

typedef enum { WHO_NOBODY, WHO_DAEMON, WHO_GUARDIAN, WHO_RESOLVE, WHO_QUERY } Who;
typedef enum { VMM_WAITING, VMM_LOADING, VMM_LOADED, VMM_RUNNING, VMM_PAUSED, VMM_GONE, VMM_OTHERS } Vmm;
typedef enum { LINK_NONE, LINK_UP, LINK_BROKEN } Link;
typedef enum { ASK_NONE, ASK_SENT, ASK_SERVED, ASK_ANSWERED } Ask;
typedef enum {
    MSG_NONE,
    MSG_HELLO,
    MSG_HELLO_DRY,
    MSG_ACCEPT,
    MSG_LOAD,
    MSG_PREPARED,
    MSG_COMMIT,
    MSG_RUNNING,
    MSG_FAILED
} Message;
/* What a duty goes by besides the table: facts of the journal. One that does not is a mutant. */
typedef enum {
    BLIND_RESUME = 1, /* runs also a guest that was paused before */
    BLIND_RUN = 2,    /* runs also a guest that is to be left paused */
    BLIND_END = 4,    /* ends also a VMM that is to be kept */
} Blind;
typedef enum {
    BAD_NOTHING,
    BAD_EVENT,       /* an event came for which there is no row */
    BAD_LET_GO,      /* an actor let go of a session that the journal does not show as it left it */
    BAD_END_RUNNING, /* a VMM was ended that runs the guest */
    BAD_END_OTHER,   /* a VMM was ended that was not this session's to end */
    BAD_WORD,        /* a session ends in a state whose name is not what happened */
    BAD_RECORD,      /* a record that changes nothing, or follows an end */
    BAD_ANSWER,      /* a query's answer is not what the journal says, or decides nothing */
    BAD_GOES_ON,     /* a failure or a cancel before commit does not end the session */
    BAD_IDLE,        /* a row for somebody's wish that does nothing */
    BAD_FORCE,       /* the operator's word is taken before the destination was asked */
    BAD_DUTY,        /* a duty where it has no business */
    BAD_NO_CANCEL,   /* no cancel before commit */
    BAD_OVERFLOW,    /* the model's own bounds */
} Bad;

typedef struct {
    uint8_t who;
    uint8_t state; /* RmState in its own view */
    uint8_t row;   /* of the table, plus 1, being carried out; 0: waits for an event */
    uint8_t step;  /* the next of the duties, as a position in their order */
    uint8_t tries; /* the journal has failed it once */
    uint8_t hears; /* its next sync fails: the disk has dropped a record meanwhile */
} Actor;

typedef struct {
    uint8_t disk;   /* the latest record that a power loss can't take */
    uint8_t entry;  /* the file's name is on disk */
    uint8_t loaded; /* so is that a load was begun */
    uint8_t pending, log[UNSYNCED];
} Journal;

/* Bytes only: states are compared and hashed as memory. */
typedef struct {
    Actor s, d, q; /* who looks after the session at the source and the destination; who answers the query */
    Journal sj, dj;
    uint8_t s_guardian, d_guardian; /* alive */
    uint8_t listening;              /* rmdamigd is up */
    uint8_t s_vmm, d_vmm;
    uint8_t link, to_d[QUEUE], to_s[QUEUE];
    uint8_t ask, fate; /* fate: RmState of the answering row, NO_RECORD for unknown */
    uint8_t asking;    /* the source's actor waits for the fate */
    uint8_t told_failed;
    uint8_t faults; /* so far */
    uint8_t dry, started;
    uint8_t was_paused; /* before: by its operator, who wants it so */
    uint8_t to_pause;   /* the guest is to be left paused at the destination */
    uint8_t keep;       /* the old VMM is not to be ended */
    uint8_t s_ended;    /* by us */
    uint8_t d_tried;    /* the destination has begun to load */
    uint8_t d_has;      /* the destination's disk has ever said committed */
    uint8_t d_ran;      /* the guest has ever run at the destination, or waits there as wished */
    uint8_t moved;      /* a later session has handed the guest on: it runs elsewhere */
    uint8_t fenced;     /* the destination is off for good */
    uint8_t disk_lost;  /* the destination's journal is gone */
    uint8_t dropped;    /* a disk has dropped a record */
    uint8_t helpless;   /* a fault after which an operator may have to help */
    uint8_t armed, cancelled, in_vain; /* the source's events so far; in_vain: asked, and not told
                                        * where the guest runs */
    uint8_t forced;
    uint8_t bad; /* Bad */
} System;

typedef enum { KIND_STEP, KIND_OPERATOR, KIND_FAULT } Kind;

typedef struct Model {
    const RmTransition *rows;
    unsigned count;
    uint8_t order[RM_DUTY_COUNT]; /* RmDutyIndex: the order of duties */
    unsigned recorded[2][RM_STATE_COUNT];
    int16_t index[2][RM_STATE_COUNT][RM_EVENT_COUNT]; /* row, or -1 */
    unsigned max_faults;
    unsigned blind; /* Blind */

    gboolean used[128]; /* rows */
    gboolean looked[2][RM_STATE_COUNT][RM_EVENT_COUNT];

    void (*emit)(struct Model *model, const System *next, Kind kind, const char *label);
    gboolean labels; /* wanted */
    void *user;
} Model;

void model_init(Model *model, const RmTransition *rows, unsigned count, unsigned max_faults);
/* `kind` below SYSTEM_KINDS: which guest, and what is wished for it. */
#define SYSTEM_KINDS 5
void system_init(System *system, unsigned kind);

void journal_sync(Journal *journal, gboolean entry); /* entry: and the file's name */
/* An actor has still to sync in its row: if the disk drops a record before, it hears of it. */
gboolean will_sync(const Model *model, const Actor *actor);
unsigned journal_latest(const Journal *journal);
gboolean journal_loaded(const Journal *journal); /* whether it tells of a load */
gboolean state_ends(unsigned state);             /* an actor lets go in it */
gboolean state_settled(unsigned state);          /* nothing is left to do in it, or there is no session */

gboolean precedes_commit(unsigned state);
gboolean holds_commit(unsigned state);       /* the guest is the destination's */
gboolean source_holds(const System *system); /* its VMM is as it is to be where the guest is the source's … */
gboolean destination_holds(const System *system); /* … or the destination's */

/* Everything that can happen next. */
void expand(Model *model, const System *system);

/* ---- the parts of expand() ---- */

void expand_steps(Model *model, const System *system);
void expand_operator(Model *model, const System *system);
void expand_faults(Model *model, const System *system);

/* Emits `next`; the label is printf-like. */
void emit(Model *model, const System *next, Kind kind, const char *format, ...) G_GNUC_PRINTF(4, 5);
gboolean offered(Model *model, RmSide side, unsigned state, RmEvent event);
/* An actor takes an event; the duties of its row are steps of their own. */
void take(Model *model, System *next, RmSide side, RmEvent event);
/* The next duty of its row; `fails`: 0, 1 (without effect), 2 (with). */
void perform(Model *model, System *next, Actor *actor, RmSide side, unsigned fails);
RmDutyIndex next_duty(const Model *model, const Actor *actor); /* RM_DUTY_COUNT: none */
/* Reads the journal and goes by what it says. */
void settle(Model *model, System *next, Actor *actor, RmSide side);
void let_go(System *next, Actor *actor, RmSide side);
/* Its process is gone, or gives up: the guardian's turn, if there is one. */
void leave(System *next, RmSide side);
void begin_query(Model *model, System *next);
RmEvent fate_event(const System *system);
const char *who_name(unsigned who);

/* ---- check.c ---- */

const char *check_always(const System *system); /* what is wrong, or NULL */
gboolean is_good(const System *system);         /* settled, and the guest is where it should be */
const char *check_quiet(const System *system);  /* for a state in which nothing happens by itself */
void system_print(const System *system);

/* ---- walk.c ---- */

typedef struct {
    const char *problem; /* NULL: none; static */
    char text[160];
    size_t states, edges, quiet;
} WalkResult;

/* From each initial state, through everything, with up to model->max_faults faults. Prints a
 * counter-example if `verbose`. */
void walk(Model *model, gboolean verbose, WalkResult *ret_result);

/* ---- mutations.c ---- */

/* Returns how many mutants survived. `every`: tries each N-th only. */
unsigned mutations_run(unsigned max_faults, unsigned every);
