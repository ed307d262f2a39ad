#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Measures rdmamig beside its peers on this machine, as root or with sudo: installs what is missing (Debian 12), builds
# (optimised, in build-bench), fetches QEMU 10.
#
#   contrib/bench.sh SUITE --json FILE [--repeat N] [--case C]... [--subject S]... [OPTION]...
#   contrib/bench.sh report FILE...        puts the rows of these files into docs/benchmarks.md
#
#   peers-rdma   rdmamig over rdma, QEMU's own rdma migration, ib_write_bw: in one VM with a soft RDMA device
#   peers-tcp    rdmamig over tcp, QEMU's tcp and multifd: over the loopback
#
# FILE gets one JSON object a line: suite, case, subject, metric, median, min, max, n. `contrib/bench.sh SUITE --help`
# lists a suite's own options. RDMAMIG_BUILD names a build that is there already, RDMAMIG_QEMU_10 a QEMU 10;
# RDMAMIG_TEST_DEVICE and RDMAMIG_TEST_ADDRESS an RDMA device of this host, which is then taken instead of the VM's.
set -euo pipefail
export me=bench
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

case ${1:-} in
'' | -h | --help) sed -n '3,/^set /s/^# \?//p' "$0"; [ $# -gt 0 ]; exit ;;
esac
program=("$(command -v python3)" "$root/contrib/bench/main.py" "$@")
export PYTHONDONTWRITEBYTECODE=1
if [ "$1" = report ] || [[ " $* " == *" --help "* ]]; then
    exec "${program[@]}"
fi

need_root
if [ -z "${RDMAMIG_BUILD:-}" ]; then
    # shellcheck disable=SC2086
    install $BUILD_PACKAGES $GUEST_PACKAGES $VM_PACKAGES openssl glib-networking
    RDMAMIG_BUILD=$root/build-bench
    say "building in $RDMAMIG_BUILD" >&2
    build "$RDMAMIG_BUILD" --buildtype=release
fi
find_qemu_10
[ -n "$RDMAMIG_QEMU_10" ] || fail "no QEMU 10 (see above); RDMAMIG_QEMU_10 may name one"
export RDMAMIG_BUILD RDMAMIG_QEMU_10
[ "$(id -u)" = 0 ] || program=(sudo --preserve-env "${program[@]}")
exec "${program[@]}"
