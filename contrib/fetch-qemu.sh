#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Unpacks QEMU 10.0 of Debian's bookworm-backports into a folder, beside whatever QEMU is installed.
#
#   contrib/fetch-qemu.sh DEST
#
# Nothing is installed and apt's own sources and lists stay as they are: apt is given a private folder, and the address
# of the archive is the one that this machine already uses. Run again, it returns at once. Start the result with
#
#   DEST/usr/bin/qemu-system-x86_64 -L DEST/usr/share/qemu -L /usr/share/seabios
#
# and LD_LIBRARY_PATH=DEST/usr/lib/x86_64-linux-gnu:DEST/lib/x86_64-linux-gnu where the host lacks one of its libraries.
set -euo pipefail

export me=fetch-qemu
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -eq 1 ] || fail "usage: fetch-qemu.sh DEST"
dest=$(realpath -m "$1")
binary=$dest/usr/bin/qemu-system-x86_64
libs=$dest/usr/lib/x86_64-linux-gnu:$dest/lib/x86_64-linux-gnu

starts() { LD_LIBRARY_PATH=$libs "$binary" --version >/dev/null 2>&1; }

if [ -x "$binary" ] && starts; then
    echo "$binary"
    exit 0
fi

mkdir -p "$(dirname "$dest")"
work=$(mktemp -d "$(dirname "$dest")/.fetch-qemu.XXXXXX")
trap 'rm -rf "$work"' EXIT
# The main archive as well: libraries that the host lacks come from there.
suite=bookworm-backports
private_apt "$work" $suite bookworm

# apt itself works out which packages an installation would bring here, these and the libraries that the host lacks; that
# is only asked, and the answer fetched.
mapfile -t packages < <(apt_run apt-get install -s --reinstall -t $suite -o Debug::NoLocking=1 --no-install-recommends \
    qemu-system-x86 qemu-system-common qemu-system-data |
    sed -n 's/^Inst \([^ ]*\) \(\[[^]]*\] \)\?(\([^ ]*\) .*/\1=\3/p')
[[ " ${packages[*]}" == *" qemu-system-x86="* ]] || fail "apt finds no way to bring qemu-system-x86 of $suite here"
fetch_unpack "${packages[@]}"

rm -rf "$dest"
mv "$work/root" "$dest"
starts || fail "$binary does not start: $(LD_LIBRARY_PATH=$libs "$binary" --version 2>&1 | head -n 1)"
echo "$binary"
