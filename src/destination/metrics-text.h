/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Prometheus' text format, version 0.0.4: families of samples. */
#pragma once

#include <glib.h>
#include <stdint.h>

/* The lines that a family begins with; its samples follow, and no other family has its name. `type`: counter,
 * gauge or histogram. */
void rm_metrics_text_family(GString *text, const char *name, const char *type, const char *help);

/* A sample of a family. `suffix` is what follows the name (a histogram's "_bucket"), or "". The rest are
 * pairs of a label and its value, up to NULL. */
void rm_metrics_text_uint(GString *text, const char *name, const char *suffix, uint64_t value,
                          ...) G_GNUC_NULL_TERMINATED;
void rm_metrics_text_double(GString *text, const char *name, const char *suffix, double value,
                            ...) G_GNUC_NULL_TERMINATED;

/* A histogram's samples: counts[i] observations at or below bounds[i] and above the bound before it,
 * counts[n] above all; sum in the unit of the bounds. */
void rm_metrics_text_histogram(GString *text, const char *name, const double *bounds, unsigned n,
                               const uint64_t *counts, double sum);
