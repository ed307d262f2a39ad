/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the fuzz targets share. A target is one function over one input. With -Dfuzz=true libFuzzer calls it;
 * in every other build replay.c does, with the files under seeds/.
 *
 * A crash is not all that a target looks for: what a parser lets through is checked to hold together, with
 * GLib's assertions, and a g_critical() is as bad as a crash.
 */
#pragma once

#include <glib.h>
#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input as a string of its own size, so that a byte read past its end is found; caller frees. */
char *fuzz_text(const uint8_t *data, size_t size);

/* The first byte of the input, taken off it; 0 if there is none. */
uint8_t fuzz_byte(const uint8_t **data, size_t *size);

/* A connected pair: all of the input and then the end can be read from the first, and what is
 * written there is taken, up to a socket's buffer. FALSE if the input is larger than that. */
gboolean fuzz_socket(const uint8_t *data, size_t size, int ret_fds[2]);

/* Two messages say the same; takes both. */
void fuzz_assert_same(json_object *one, json_object *other);
