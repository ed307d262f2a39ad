#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs one fuzz target for a time, with its seeds and whatever earlier runs of this build folder have found:
#
#   run.sh TARGET SEEDS [SECONDS]
#
# The corpus grows in TARGET.corpus; an input that broke something is kept as TARGET.found-*. To see one again: run the target
# with the file as its argument. RDMAMIG_FUZZ_SECONDS stands for SECONDS.
set -eu
target=$1 seeds=$2 seconds=${3:-${RDMAMIG_FUZZ_SECONDS:-30}}
mkdir -p "$target.corpus"
# A sanitizer's shadow memory has a fixed place, which a kernel that shuffles addresses widely may have given away.
plain=
! setarch -R true 2>/dev/null || plain="setarch -R"
log=$target.log status=0
$plain "$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$target.found-" "$target.corpus" "$seeds" >"$log" 2>&1 || status=$?
if [ $status != 0 ]; then
    cat "$log" >&2
    exit 1
fi
awk -v name="${target##*/}" '
    /^#[0-9]+.* cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") edges = $(i + 1); if ($i == "ft:") features = $(i + 1) } }
    /^stat::number_of_executed_units:/ { runs = $2 }
    END { print name ": " runs " executions, " edges " edges, " features " features" }' "$log"
