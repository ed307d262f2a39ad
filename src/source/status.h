/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `rdmamig status` and `rdmamig cancel`, for both sides of this host. They print, and return the exit status.
 */
#pragma once

#include "source/look.h"

/* 0; 1 if nothing is what was named, or something could not be read; 5 if sessions are to be resolved. */
int rm_status(const RmLookOptions *options, gboolean json);

/* Ends the one session that is meant (`which` as in RmLookOptions; NULL: the only one there is). 1 if it
 * could not be, or there is none, or several. */
int rm_cancel(const char *which);
