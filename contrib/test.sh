#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs the tests, as root or with sudo: installs what is missing (Debian 12), builds, fetches QEMU 10, runs them through
# meson, and closes with a line "N passed, N failed, N skipped". The skipped ones are listed with their reasons.
#
#   contrib/test.sh [--suite NAME]... [--kills N]
#
# Without --suite all run but `full` and `soak`, which take hours. Logs: build-test/meson-logs.
# --kills is for --suite soak: how many random kills (default 50); its score is shown at the end.
# RDMAMIG_QEMU_10 names a QEMU 10 that is there already.
set -euo pipefail
export me=test
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

suites=() kills=50
while [ $# -gt 0 ]; do
    case $1 in
    --suite) [ $# -ge 2 ] || fail "--suite needs a name"; suites+=(--suite "$2"); shift ;;
    --suite=*) suites+=(--suite "${1#*=}") ;;
    --kills) [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--kills needs a number"; kills=$2; shift ;;
    --kills=*) [[ ${1#*=} =~ ^[1-9][0-9]*$ ]] || fail "--kills needs a number"; kills=${1#*=} ;;
    -h | --help) echo "usage: contrib/test.sh [--suite NAME]... [--kills N]"; exit 0 ;;
    *) echo "usage: contrib/test.sh [--suite NAME]... [--kills N]" >&2; exit 2 ;;
    esac
    shift
done

builddir=$root/build-test
need_root
# shellcheck disable=SC2086
install $BUILD_PACKAGES $GUEST_PACKAGES $TEST_PACKAGES $VM_PACKAGES
say "building in $builddir"
build "$builddir" -Dfault_points=true -Dwerror=true

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
for name in "${!RDMAMIG_TEST_@}"; do
    settings+=("$name=${!name}")
done
log=$builddir/meson-logs/testlog.json
"${sudo[@]}" rm -f "$log" "${log%.json}.txt"
status=0
"${sudo[@]}" env "${settings[@]}" meson test -C "$builddir" --no-rebuild "${suites[@]}" || status=$?
[ "$(id -u)" = 0 ] || sudo chown -R "$(id -u):$(id -g)" "$builddir/meson-logs"
# What the soak counted.
[ ! -f "$builddir/meson-logs/testlog.txt" ] ||
    sed -n -E 's/^# ([0-9]+ kills in .*|aimed: .*|\| (killed|---|source|destination|both|guardian|all).*)$/\1/p' "$builddir/meson-logs/testlog.txt"
python3 "$root/tests/tools/summary.py" "$log" "$status"
