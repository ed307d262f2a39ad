#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Moves a running QEMU guest from one QEMU to another on this host and proves that it arrived whole.
#
#   contrib/demo.sh [--qemu PATH]
#
# On Debian 12, as root or with sudo, it installs what is missing and builds. Then: a guest that dirties 100 MiB of its
# memory as fast as it can and counts on its serial port; a second QEMU that waits; rdmamigd for it; `rdmamig send`.
# The guest arrives paused (--suspend), and the source's QEMU is kept, paused, so that both memories stand still: a
# separate program compares them page by page. At last the guest goes on, and must count on where it left off.
#
# --flip, for the tests: turns over one byte at the destination before the comparison, which must then fail.
set -euo pipefail
export me=demo
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

MEMORY=512      # MiB
FILL_FROM=128   # MiB: above the window that the guest dirties
FILL=256        # MiB of random bytes there, so that there is something to move

usage() { echo "usage: contrib/demo.sh [--qemu PATH]"; }

qemu_path=qemu-system-x86_64 flip='' run_only=''
while [ $# -gt 0 ]; do
    case $1 in
    --qemu) [ $# -ge 2 ] || fail "--qemu needs a path"; qemu_path=$2; shift ;;
    --qemu=*) qemu_path=${1#*=} ;;
    --flip) flip=--flip ;;
    --run-only) run_only=1 ;; # second half, under sudo
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
    shift
done

builddir=$root/build-demo
if [ -z "$run_only" ]; then
    need_root
    # shellcheck disable=SC2086
    install $BUILD_PACKAGES $GUEST_PACKAGES
    say "building in $builddir"
    build "$builddir"
    if [ "$(id -u)" != 0 ]; then
        say "going on as root, with sudo: another process's memory opens to no one else"
        exec sudo "$0" --run-only --qemu "$qemu_path" $flip
    fi
fi

use_qemu "$qemu_path"
[ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] ||
    fail "needs a tmpfs at /dev/shm for the guests' memory; mount one: mount -t tmpfs tmpfs /dev/shm"
free=$(($(stat -f -c '%a * %S' /dev/shm) >> 20))
[ "$free" -ge $((2 * (FILL_FROM + FILL))) ] ||
    fail "/dev/shm has $free MiB free, and two guests need $((2 * (FILL_FROM + FILL))): mount -o remount,size=2G /dev/shm"

work=$(mktemp -d /dev/shm/rdmamig-demo.XXXXXX)
pids=()
clean_up() {
    local status=$?
    trap - EXIT INT TERM HUP
    [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
    [ ${#pids[@]} = 0 ] || wait "${pids[@]}" 2>/dev/null || true
    if [ $status != 0 ]; then
        for log in "$work"/*.log; do
            [ ! -s "$log" ] || sed "s|^|$(basename "$log" .log): |" "$log" >&2
        done
    fi
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export RDMAMIG_CONFIG_DIR=$work/etc # not this host's options
export RDMAMIG_RUN_DIR=$work/run
mkdir "$RDMAMIG_RUN_DIR"

start_qemu() { # NAME OPTION...
    local name=$1
    shift
    "${qemu[@]}" -name demo -accel tcg -m $MEMORY -display none -nodefaults \
        -object "memory-backend-file,id=ram,size=${MEMORY}M,mem-path=$work/$name.ram,share=on" \
        -machine pc,memory-backend=ram \
        -drive "file=$builddir/tests/guest/guest.img,format=raw,if=floppy,readonly=on" \
        -serial "file:$work/$name.serial" -qmp "unix:$work/$name.qmp,server=on,wait=off" "$@" \
        >"$work/qemu-$name.log" 2>&1 &
    pids+=($!)
}

qmp() { # NAME COMMAND
    python3 "$root/contrib/qmp.py" "$work/$1.qmp" "$2"
}

wait_for() { # WHAT COMMAND...: up to 20 s
    local what=$1
    shift
    for _ in $(seq 400); do
        ! "$@" || return 0
        sleep 0.05
    done
    fail "$what: not within 20 s"
}

letters() { # NAME COUNT: whether the guest has printed that many
    [ "$(stat -c %s "$work/$1.serial" 2>/dev/null || echo 0)" -ge "$2" ]
}

listens() {
    kill -0 "$daemon" 2>/dev/null || fail "rdmamigd ended"
    grep -qiE ":$(printf %04X "$port") 0+:0000 0A" /proc/net/tcp
}

say "$("${qemu[@]}" --version | head -n 1): the guest starts, $MEMORY MiB"
start_qemu source
wait_for "the guest's first letters" letters source 3
dd if=/dev/urandom of="$work/source.ram" bs=1M seek=$FILL_FROM count=$FILL conv=notrunc status=none
start_qemu destination -incoming defer
qmp destination query-status >/dev/null

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$builddir/src/destination/rdmamigd" --listen "127.0.0.1:$port" --qmp "$work/destination.qmp" \
    >"$work/rdmamigd.log" 2>&1 &
daemon=$!
pids+=("$daemon")
wait_for "rdmamigd on port $port" listens

say "rdmamig send --qmp SOURCE.qmp --to 127.0.0.1:$port --suspend --keep-source"
timeout 150 "$builddir/src/source/rdmamig" send --qmp "$work/source.qmp" --to "127.0.0.1:$port" \
    --suspend --keep-source --report "$work/report.json" || fail "rdmamig send failed with exit status $?"

result() { # FIELD: of the report's last line, at the top or among its metrics
    python3 -c '
import json, sys
result = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
value = result.get(sys.argv[2], result.get("metrics", {}).get(sys.argv[2]))
sys.exit("no " + sys.argv[2] + " in the report") if value is None else print(value if isinstance(value, str) else round(value))
' "$work/report.json" "$1"
}
transport=$(result transport)
downtime=$(result downtime_ms)

# Both memories stand still now: neither QEMU runs its guest.
for name in source destination; do
    qmp $name query-status | grep -q '"running": false' || fail "the guest runs at the $name; it should be paused"
done
compare=$builddir/tests/tools/compare-pages
if [ -n "$flip" ]; then
    say "turning over one byte at the destination (--flip)"
    "$compare" --flip 0x9123456 "$work/destination.ram"
fi
status=0
verdict=$("$compare" "$work/source.ram" "$work/destination.ram") || status=$?
say "memory compared: ${verdict//$'\n'/; }"
[ $status = 0 ] || fail "the guest's memory differs at the destination"

say "the guest goes on at the destination"
qmp destination cont >/dev/null
wait_for "the guest's next letters at the destination" letters destination 3
python3 - "$work/source.serial" "$work/destination.serial" <<'END' || fail "the guest did not count on"
import itertools
import sys

source, destination = (open(path).read() for path in sys.argv[1:])
print(f"demo: it counted …{source[-12:]} at the source and goes on with {destination[:12]}… at the destination")
alphabet = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
if destination and source + destination == "A" + "".join(itertools.islice(itertools.cycle(alphabet), len(source + destination) - 1)):
    sys.exit(0)
sys.exit("demo: not one unbroken count, with A once")
END
qmp source query-status | grep -q '"running": false' || fail "the guest runs at the source as well"

echo "demo: guest moved over $transport; downtime $downtime ms; verified $verdict"
