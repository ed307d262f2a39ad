#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs the tests, as root or with sudo: installs what is missing (Debian 12), builds, fetches QEMU 10, runs them through
# meson, and closes with a line "N passed, N failed, N skipped". The skipped ones are listed with their reasons.
#
#   contrib/test.sh [--suite NAME]... [--kills N]
#
# Without --suite all run but `full` and `soak`, which take hours, and a sample of `sanitize`. Logs: build-*/meson-logs.
# `fuzz` and `sanitize` have builds of their own, with clang: build-asan (AddressSanitizer, UndefinedBehaviorSanitizer,
# libFuzzer) and build-tsan (ThreadSanitizer). Each fuzz target runs for RDMAMIG_FUZZ_SECONDS (30).
# --kills is for --suite soak: how many random kills (default 50); its score is shown at the end.
# RDMAMIG_QEMU_10 names a QEMU 10 that is there already.
set -euo pipefail
export me=test
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

suites=() kills=50
while [ $# -gt 0 ]; do
    case $1 in
    --suite) [ $# -ge 2 ] || fail "--suite needs a name"; suites+=("$2"); shift ;;
    --suite=*) suites+=("${1#*=}") ;;
    --kills) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--kills needs a number"; kills=$2; shift ;;
    --kills=*) [[ ${1#*=} =~ ^[1-9][0-9]*$ ]] || fail "--kills needs a number"; kills=${1#*=} ;;
    -h | --help) echo "usage: contrib/test.sh [--suite NAME]... [--kills N]"; exit 0 ;;
    *) echo "usage: contrib/test.sh [--suite NAME]... [--kills N]" >&2; exit 2 ;;
    esac
    shift
done

# asked NAME: whether that suite was named. plain: the arguments for those that the ordinary build has.
asked() { [[ " ${suites[*]} " == *" $1 "* ]]; }
plain=()
for name in "${suites[@]}"; do
    [ "$name" = fuzz ] || [ "$name" = sanitize ] || plain+=(--suite "$name")
done

need_root
# shellcheck disable=SC2086
install $BUILD_PACKAGES $GUEST_PACKAGES $TEST_PACKAGES $VM_PACKAGES
find_qemu_10
[ -n "$RDMAMIG_QEMU_10" ] || say "no QEMU 10: the tests that need it are skipped"

# Some tests want a few hugepages, which must be set aside beforehand; put back afterwards as it was.
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
pool=/proc/sys/vm/nr_hugepages hugepages='' mounted=''
tidy() {
    [ -z "$hugepages" ] || echo "$hugepages" | "${sudo[@]}" tee $pool >/dev/null || true
    [ -z "$mounted" ] || { "${sudo[@]}" umount /dev/hugepages && "${sudo[@]}" rmdir /dev/hugepages; } || true
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ -e $pool ]; then
    hugepages=$(cat $pool)
    echo $((hugepages + 64)) | "${sudo[@]}" tee $pool >/dev/null || true
    if [ ! -e /dev/hugepages ] && "${sudo[@]}" mkdir /dev/hugepages; then
        mounted=1
        "${sudo[@]}" mount -t hugetlbfs -o pagesize=2M none /dev/hugepages || true
    fi
fi

# sudo passes on no environment.
settings=("RDMAMIG_QEMU_10=$RDMAMIG_QEMU_10" "RDMAMIG_KILLS=$kills")
for name in "${!RDMAMIG_TEST_@}" "${!RDMAMIG_FUZZ_@}"; do
    settings+=("$name=${!name}")
done
logs=() status=0
# run_tests FOLDER ARGUMENT...: of the build there; its log goes into the summary.
run_tests() {
    local folder=$1 log=$1/meson-logs/testlog.json
    shift
    logs+=("$log")
    "${sudo[@]}" rm -f "$log" "${log%.json}.txt"
    "${sudo[@]}" env "${settings[@]}" meson test -C "$folder" --no-rebuild "$@" || status=$?
    [ "$(id -u)" = 0 ] || sudo chown -R "$(id -u):$(id -g)" "$folder"
}

# run_sanitized NAME SANITIZERS SUITES-IF-ASKED-FOR SUITES-IF-NOT OPTION...
run_sanitized() {
    local folder=$root/build-$1 sanitizers=$2 wanted=$3 chosen=() name
    [ ${#suites[@]} != 0 ] || wanted=$4
    shift 4
    for name in $wanted; do
        [ "$name" != fuzz ] || [ ${#suites[@]} = 0 ] || asked fuzz || asked full || continue
        [ "$name" = fuzz ] || [ ${#suites[@]} = 0 ] || asked sanitize || asked full || continue
        chosen+=(--suite "$name")
    done
    [ ${#chosen[@]} != 0 ] || return 0
    command -v clang >/dev/null || { say "no clang: left out: ${chosen[*]}"; return 0; }
    say "building in $folder"
    CC=clang build "$folder" "-Db_sanitize=$sanitizers" -Db_lundef=false -Dfault_points=true -Dman=disabled "$@"
    # They wait for each other's threads, and for sockets, more than they compute.
    run_tests "$folder" --num-processes 3 --timeout-multiplier 5 "${chosen[@]}"
}

builddir=$root/build-test
if [ ${#suites[@]} = 0 ] || [ ${#plain[@]} != 0 ]; then
    say "building in $builddir"
    build "$builddir" -Dfault_points=true -Dwerror=true
    run_tests "$builddir" "${plain[@]}"
fi
run_sanitized asan address,undefined "fuzz sanitize unit sanitize-rest" "fuzz sanitize" -Dfuzz=true
run_sanitized tsan thread "sanitize threads" "threads"

# What the soak counted, and what was fuzzed.
for log in "${logs[@]}"; do
    [ ! -f "${log%.json}.txt" ] ||
        sed -n -E 's/^# ([0-9]+ kills in .*|aimed: .*|\| (killed|---|source|destination|both|guardian|all).*)$/\1/p; /^fuzz-.* executions,/p' "${log%.json}.txt"
done
python3 "$root/tests/tools/summary.py" "$status" "${logs[@]}"
