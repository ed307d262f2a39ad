/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session's figures as JSON, by the names that they have in events, results and reports. */
#pragma once

#include "source/report.h"

void rm_figures_add_round(json_object *object, const RmRoundStats *stats);

/* Caller owns. */
json_object *rm_figures_metrics(const RmMetrics *metrics);

/* An array of the same as objects, of an array of RmRoundStats; caller owns. */
json_object *rm_figures_rounds(const GArray *rounds);

/* Adds bulk_mib_s (the first round) and last_round_mib_s (those with the guest stopped); null without them.
 */
void rm_figures_add_rates(json_object *metrics, const GArray *rounds);
