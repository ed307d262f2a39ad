/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Fault points: named places where a test may bend the program. Compiled out unless meson's `faults` is on;
 * then the environment variable RDMAMIG_FAULT lists the active ones, comma-separated, each as NAME or
 * NAME=VALUE.
 */
#pragma once

#include "config.h"

#include <glib.h>

#if RM_FAULTS
/* Whether `name` is active. */
gboolean rm_fault(const char *name);
/* The active point's VALUE ("" without one), NULL if it is not active. Owned by the process. */
const char *rm_fault_value(const char *name);
/* VALUE as a number if `name` is active, else `usual`: a wait that a test need not sit out in full. */
unsigned rm_fault_number(const char *name, unsigned usual);
/* Holds a state open for a test to strike in, if `name` is active: for VALUE milliseconds, or, if that is a
 * path, for as long as there is such a file, and a minute at the most. */
void rm_fault_pause(const char *name);
#else
#define rm_fault(name) FALSE
#define rm_fault_value(name) ((const char *)NULL)
#define rm_fault_number(name, usual) (usual)
#define rm_fault_pause(name) ((void)0)
#endif
