/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Text for the operator, written by a thread of its own: a terminal that was stopped, or a pipe whose reader
 * sleeps, must not hold the session, which may hold a stopped guest. Texts come out in order; if the reader
 * is too far behind, new ones are dropped. A stream that cannot be written (full disk, closed pipe) loses its
 * text, nothing else.
 */
#pragma once

#include <glib.h>
#include <stdio.h>

typedef struct RmOutput RmOutput;

RmOutput *rm_output_new(void);
/* Writes what is left, for as long as that takes, and ends the thread. */
void rm_output_free(RmOutput *output);

/* Writes what is left, for as long as that takes: what is printed next is not dropped. */
void rm_output_drain(RmOutput *output);

/* Takes `text`. Any thread; never waits. */
void rm_output_print(RmOutput *output, FILE *stream, char *text);
