/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Fault points: named places where a test may bend the program. Compiled out unless meson's `fault_points` is
 * on; then the environment variable RDMAMIG_FAULT lists the active ones, comma-separated, each as NAME or
 * NAME=VALUE. The names are in fault-points.h, and an unknown one ends the program.
 *
 * The VALUE of a state, a message or a place is what happens when a process gets there for the first time:
 *   exit       it ends, without a word to anybody
 *   kill       SIGKILL
 *   stop       SIGSTOP: whoever set the point wakes it
 *   MS         the thread that got there sleeps
 *   drop       a message: lost on its way; its connection lives
 *   short      a message: half of it arrives, then the connection ends
 */
#pragma once

#include "config.h"

#include <glib.h>

typedef enum { RM_FAULT_PASS, RM_FAULT_DROP, RM_FAULT_SHORT } RmFaultFate;

#if RM_FAULTS
/* Whether `name` is active. */
gboolean rm_fault(const char *name);
/* The active point's VALUE ("" without one), NULL if it is not active. Owned by the process. */
const char *rm_fault_value(const char *name);
/* VALUE as a number if `name` is active, else `usual`: a wait that a test need not sit out in full. */
unsigned rm_fault_number(const char *name, unsigned usual);
/* A place: what VALUE says, each time. If it is a path: held for as long as there is such a file, and a
 * minute at the most. */
void rm_fault_pause(const char *name);
void rm_fault_state(const char *state);
/* What becomes of a message; `way` is "send" or "receive". */
RmFaultFate rm_fault_message(const char *way, const char *type);
/* States, messages and places are passed by from now on: in a guardian, since what is tried is a daemon's
 * end, and the guardian inherits its environment. */
void rm_fault_off(void);
#else
#define rm_fault(name) FALSE
#define rm_fault_value(name) ((const char *)NULL)
#define rm_fault_number(name, usual) (usual)
#define rm_fault_pause(name) ((void)0)
#define rm_fault_state(state) ((void)0)
#define rm_fault_message(way, type) RM_FAULT_PASS
#define rm_fault_off() ((void)0)
#endif
