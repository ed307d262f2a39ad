/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A look at this host's sessions, of both sides, changing nothing: daemons are asked by their status sockets,
 * and journals and reports are read. No journal's lock is taken and no QEMU spoken to, so that it may be done
 * as often as anybody likes.
 */
#pragma once

#include <glib.h>
#include <json-c/json.h>

/* How many ended sessions are looked at, unless all are wished for. */
#define RM_LOOK_ENDED 5

typedef struct {
    const char *which; /* a session's id, or its beginning, or a guest's name; NULL: all */
    gboolean all;      /* ended ones, too, without a bound */
} RmLookOptions;

/* Arrays of json_object*, an object a session and side, as `rdmamig status --json` prints it. */
typedef struct {
    GPtrArray *unresolved; /* nobody looks after it, and `rdmamig resolve` is due */
    GPtrArray *live;
    GPtrArray *ended;    /* newest first */
    GPtrArray *daemons;  /* each rdmamigd's answer */
    gboolean unreadable; /* something could not be read, of which was warned on stderr */
} RmLook;

void rm_look_clear(RmLook *look);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RmLook, rm_look_clear)

void rm_look(const RmLookOptions *options, RmLook *ret_look);
