/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The fault points, all of them: there is no other name that RDMAMIG_FAULT may list.
 * tests/fault/test-points.py fails if a state or a message has none, or if the source uses a name that is not
 * here.
 *
 * X(end, kind, name), `end` being who gets there:
 *   STATE    `state-NAME`: a session has just entered that state there
 *   SEND     `send-NAME`: before that message is written
 *   RECEIVE  `receive-NAME`: it has arrived, and nobody has seen it yet
 *   PLACE    `NAME`: within a state, where a test wants to hold it
 *   SWITCH   `NAME`: makes the program do something else, see where it is used
 */
#pragma once

#define RM_FAULT_POINTS(X)                                                                                   \
    RM_FAULT_STATE_POINTS(X)                                                                                 \
    RM_FAULT_MESSAGE_POINTS(X)                                                                               \
    X(SOURCE, PLACE, "switchover-stopped")                                                                   \
    X(SOURCE, PLACE, "save-prepared")                                                                        \
    X(SOURCE, PLACE, "switchover-saved")                                                                     \
    X(SOURCE, PLACE, "switchover-prepared")                                                                  \
    X(SOURCE, PLACE, "switchover-commit")                                                                    \
    X(DESTINATION, PLACE, "destination-load")                                                                \
    X(DESTINATION, PLACE, "destination-commit")                                                              \
    X(DESTINATION, PLACE, "destination-committed")                                                           \
    X(SOURCE, PLACE, "attach-hold-aimed")                                                                    \
    X(SOURCE, PLACE, "attach-hold")                                                                          \
    X(SOURCE, SWITCH, "attach-die")                                                                          \
    X(SOURCE, SWITCH, "no-fence")                                                                            \
    X(SOURCE, SWITCH, "no-punch-watch")                                                                      \
    X(SOURCE, SWITCH, "no-copy")                                                                             \
    X(SOURCE, SWITCH, "query-for")                                                                           \
    X(DESTINATION, SWITCH, "hello-wait")                                                                     \
    X(DESTINATION, SWITCH, "block-for")                                                                      \
    X(DESTINATION, SWITCH, "flip-byte")                                                                      \
    X(DESTINATION, SWITCH, "release-before-mark")                                                            \
    X(DESTINATION, SWITCH, "trim-ms")                                                                        \
    X(EITHER, SWITCH, "journal-sync")

/* Those that an end can be in, see handover/table.h. */
#define RM_FAULT_STATE_POINTS(X)                                                                             \
    X(EITHER, STATE, "connecting")                                                                           \
    X(SOURCE, STATE, "preflight")                                                                            \
    X(SOURCE, STATE, "attaching")                                                                            \
    X(EITHER, STATE, "precopy")                                                                              \
    X(EITHER, STATE, "switchover")                                                                           \
    X(EITHER, STATE, "prepared")                                                                             \
    X(EITHER, STATE, "committed")                                                                            \
    X(EITHER, STATE, "done")                                                                                 \
    X(EITHER, STATE, "refused")                                                                              \
    X(EITHER, STATE, "failed")                                                                               \
    X(EITHER, STATE, "cancelled")                                                                            \
    X(EITHER, STATE, "doubtful")

#define RM_FAULT_ASKED(X, name) X(SOURCE, SEND, name) X(DESTINATION, RECEIVE, name)
#define RM_FAULT_ANSWERED(X, name) X(DESTINATION, SEND, name) X(SOURCE, RECEIVE, name)
#define RM_FAULT_MUTUAL(X, name) X(EITHER, SEND, name) X(EITHER, RECEIVE, name)

#define RM_FAULT_MESSAGE_POINTS(X)                                                                           \
    RM_FAULT_ASKED(X, "hello")                                                                               \
    RM_FAULT_ANSWERED(X, "accept")                                                                           \
    RM_FAULT_ANSWERED(X, "refuse")                                                                           \
    RM_FAULT_ASKED(X, "transport")                                                                           \
    RM_FAULT_ASKED(X, "register")                                                                            \
    RM_FAULT_ANSWERED(X, "registered")                                                                       \
    RM_FAULT_ASKED(X, "release")                                                                             \
    RM_FAULT_ANSWERED(X, "released")                                                                         \
    RM_FAULT_ASKED(X, "round-end")                                                                           \
    RM_FAULT_ANSWERED(X, "round-end-ok")                                                                     \
    RM_FAULT_ASKED(X, "verify")                                                                              \
    RM_FAULT_ANSWERED(X, "verified")                                                                         \
    RM_FAULT_ASKED(X, "state")                                                                               \
    RM_FAULT_ANSWERED(X, "state-ok")                                                                         \
    RM_FAULT_ASKED(X, "load")                                                                                \
    RM_FAULT_ANSWERED(X, "prepared")                                                                         \
    RM_FAULT_ASKED(X, "commit")                                                                              \
    RM_FAULT_ANSWERED(X, "running")                                                                          \
    RM_FAULT_ASKED(X, "query")                                                                               \
    RM_FAULT_ANSWERED(X, "fate")                                                                             \
    RM_FAULT_ANSWERED(X, "failed")                                                                           \
    RM_FAULT_MUTUAL(X, "cancel")                                                                             \
    RM_FAULT_ASKED(X, "bye")                                                                                 \
    RM_FAULT_MUTUAL(X, "error")
