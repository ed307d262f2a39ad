/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The journal: what became of each session, on disk, so that it outlives daemons and reboots.
 *
 * One file a session and side, STATEDIR/journal/{source,destination}/SESSION (0600, folders 0700), of JSON
 * lines: the facts first, then a record for each state that matters to whoever comes after a crash. A last
 * line without its newline was torn and does not count. Space is reserved when the file is made, so that a
 * full disk can't stop a later record.
 *
 * It is the one place that decides between `commit` and an abort: a record is appended by rm_journal_move()
 * under flock(2), after looking at the latest one, and synced before it returns where it decides who owns the
 * guest. So of two processes that want different ends for a session, exactly one gets its way, and the other
 * learns of it.
 *
 * Who looks after a session (its daemon, then its guardian, which inherits the descriptor) holds a lock on
 * the open file (F_OFD_SETLK on byte 0); others see by it whether the session is being looked after.
 *
 * STATEDIR is $RDMAMIG_STATE_DIR, /var/lib/rdmamig for root, else $XDG_STATE_HOME/rdmamig
 * (~/.local/state/rdmamig). It must be on a disk, not on tmpfs, to outlive a reboot.
 */
#pragma once

#include "handover/states.h"

#include <json-c/json.h>
#include <stdint.h>
#include <sys/types.h>

#define RM_JOURNAL_DAYS 30    /* an ended session is answered for at least as long … */
#define RM_JOURNAL_KEPT 10000 /* … unless there are more than this many ended ones: then the oldest go */
#define RM_JOURNAL_BYTES (1u << 20) /* no file is larger; a larger one is not ours */

/* The states of a journal from which a session may still end either way. */
#define RM_JOURNAL_OPEN (RM_STATE_BIT(PRECOPY) | RM_STATE_BIT(SWITCHOVER) | RM_STATE_BIT(PREPARED))

/* Thread-safe, each call: several threads of one process may share an RmJournal. All paths are refused that
 * others could have put there: symbolic links, other owners, files or folders that others may write. */

/* Written once, before the session can do anything that needs them. Strings may be NULL where unknown. */
typedef struct {
    char *session; /* UUID */
    RmSide side;
    char *guest;        /* name */
    char *qmp;          /* path of its QMP socket */
    pid_t pid;          /* of the VMM … */
    uint64_t pid_start; /* … and its start time (/proc/PID/stat, field 22), so that no later process is taken
                           for it */
    char *host_boot;    /* this host's boot id: another one now means that the VMM is gone */
    char *peer;         /* the other end: HOST:PORT to ask at (source), or who called (destination) */
    char *token;        /* the session's, hexadecimal: proves a query */
    char *tls_creds;    /* source: the folder of credentials, absolute, to ask with; NULL: in clear */
    char *tls_host;     /* source: the name that the peer's certificate must have; NULL: its host */
    gboolean was_running; /* source: runs again when rolled back */
    gboolean keep_source; /* source: its VMM is not to be ended when the guest has moved */
    gboolean started;     /* destination: the VMM was started by --exec for this session */
    int64_t time_us;      /* wall clock, since 1970 */
} RmJournalFacts;

/* The latest record. */
typedef struct {
    RmState state;
    unsigned past;     /* RM_STATE_BIT of this state and of all before it */
    gboolean run;      /* from committed on: the guest is to run there (FALSE: to be left paused) */
    json_object *note; /* what the VMM's settings were before they were changed, see guest.h recall(); NULL if
                          unchanged. The latest one that was given, in whatever record */
    int64_t time_us;
} RmJournalRecord;

typedef struct RmJournal RmJournal;

char *rm_state_dir(void); /* caller frees */
/* A warning, if STATEDIR is in memory, else NULL; caller frees. */
char *rm_journal_volatile(void);

/* Fills pid_start, host_boot and time_us, with facts->pid at hand. */
void rm_journal_facts_stamp(RmJournalFacts *facts);
/* Whether the VMM still is: the very process that the facts name. */
gboolean rm_journal_vmm_lives(const RmJournalFacts *facts);

void rm_journal_facts_clear(RmJournalFacts *facts);
void rm_journal_record_clear(RmJournalRecord *record);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmJournalFacts, rm_journal_facts_clear)
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmJournalRecord, rm_journal_record_clear)

/* Makes the file with the facts and a first record, synced (with its folder), and holds the lock. Reason
 * journal if it can't be written, protocol if the session has a file already. */
RmJournal *rm_journal_create(const RmJournalFacts *facts, RmState first, GError **error);
/* Opens a session's file. NULL without an error if there is none. Does not take the lock. */
RmJournal *rm_journal_open(RmSide side, const char *session, GError **error);
/* The guardian's: takes over an inherited descriptor. */
RmJournal *rm_journal_adopt(int fd, GError **error);
void rm_journal_close(RmJournal *journal); /* NULL is fine; the file stays */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmJournal, rm_journal_close)

int rm_journal_fd(const RmJournal *journal); /* to be inherited; stays the journal's */
const RmJournalFacts *rm_journal_facts(const RmJournal *journal);
/* FALSE if somebody else looks after the session. */
gboolean rm_journal_take(RmJournal *journal);

gboolean rm_journal_read(RmJournal *journal, RmJournalRecord *ret_record, GError **error);

/* Appends `to` if the latest state is one of `from` (a mask of RM_STATE_BIT); *ret_state (may be NULL) is the
 * latest state afterwards, `to` or the one that stood in the way. FALSE with reason journal only if the file
 * can't be read, written or synced: then nobody may act on `to`. `synced`: on disk when this returns. `note`
 * (borrowed) may be NULL: kept as it was. */
gboolean rm_journal_move(RmJournal *journal, unsigned from, RmState to, gboolean run, json_object *note,
                         gboolean synced, RmState *ret_state, GError **error);
/* Syncs what an earlier process may have left unsynced. */
gboolean rm_journal_sync(RmJournal *journal, GError **error);

/* Ids (char*) of the sessions of one side, newest first; caller unrefs. */
GPtrArray *rm_journal_list(RmSide side);
/* The same, of those only that may be about the VMM `pid`: a look at their first lines, for there may be
 * many. Those about another are left out, and some of these may not be. */
GPtrArray *rm_journal_list_of(RmSide side, pid_t pid);
/* Removes ended sessions that are old, or too many. */
void rm_journal_prune(RmSide side);
