#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# summary.py counts cases, tells what failed and why, and leaves out what the good ones said.
set -eu
tool=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/build-a/meson-logs" "$folder/build-b/meson-logs"
log=$folder/build-a/meson-logs/testlog.json logs=$log

check() { # STATUS, whether TEXT is wanted (yes, no), TEXT...
    want=$1 wanted=$2
    shift 2
    status=0
    # shellcheck disable=SC2086 # a list
    output=$(python3 "$tool" "$meson" $logs) || status=$?
    [ "$status" = "$want" ] || { echo "exit $status instead of $want: $output"; exit 1; }
    for text; do
        case $output in *"$text"*) found=yes ;; *) found=no ;; esac
        [ $found = "$wanted" ] || { echo "'$text': $found instead of $wanted in: $output"; exit 1; }
    done
}

meson=0
cat >"$log" <<'END'
{"name": "a", "result": "OK", "returncode": 0, "stdout": "1..2\nok 1 - x\nok 2 - y # SKIP no such thing\n"}
{"name": "b", "result": "OK", "returncode": 0, "stdout": "fine"}
END
check 0 yes "2 passed, 0 failed, 1 skipped" "skipped: a: y: no such thing"
check 0 no "fine" "----"
meson=1
check 1 yes "2 passed"

cat >>"$log" <<'END'
{"name": "c", "result": "FAIL", "returncode": 1, "stdout": "1..3\n# good\nok 1 - x\n# the reason\nnot ok 2 - y\n", "stderr": "words"}
{"name": "d", "result": "ERROR", "returncode": 139, "stdout": "1..2\n# began\nok 1 - x\n# lost\n"}
{"name": "e", "result": "FAIL", "returncode": 1, "stdout": "a program\nwithout cases"}
END
check 1 yes "4 passed, 3 failed, 1 skipped" "failed: c: y" "---- c: y
# the reason" "---- c: standard error
words" "failed: d: ERROR, exit status 139" "# lost" "failed: e: without cases" "a program"
check 1 no "# good"

lines=$(seq -s '\n' 1001 1150)
printf '{"name": "f", "result": "FAIL", "returncode": 1, "stdout": "%s"}\n' "$lines" >"$log"
check 1 yes "the last 100 of 150 lines" "1051" "1150"
check 1 no "1050"

meson=0 logs="$log $folder/build-b/meson-logs/testlog.json"
echo '{"name": "x", "result": "OK", "stdout": ""}' >"$log"
check 1 yes "failed: build-b: no test ran" "1 passed, 1 failed"
echo '{"name": "y", "result": "SKIP", "stdout": "no clang"}' >"$folder/build-b/meson-logs/testlog.json"
check 0 yes "skipped: build-b: y: no clang" "1 passed, 0 failed, 1 skipped"
