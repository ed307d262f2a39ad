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

fail() { echo "fetch-qemu: $*" >&2; exit 1; }

[ $# -eq 1 ] || fail "usage: fetch-qemu.sh DEST"
dest=$1
qemu=$dest/usr/bin/qemu-system-x86_64
libs=$dest/usr/lib/x86_64-linux-gnu:$dest/lib/x86_64-linux-gnu

starts() { LD_LIBRARY_PATH=$libs "$qemu" --version >/dev/null 2>&1; }

if [ -x "$qemu" ] && starts; then
    echo "$qemu"
    exit 0
fi

command -v dpkg-deb apt-get >/dev/null || fail "needs Debian's apt and dpkg"
[ "$(dpkg --print-architecture)" = amd64 ] || fail "needs an amd64 Debian"

# shellcheck disable=SC2016 # apt's own placeholders
uri=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | sed -n 's/^bookworm //p' | sort -u | head -n 1)
[ -n "$uri" ] || fail "apt has no source for Debian bookworm; run apt-get update on a Debian 12, and try again"

mkdir -p "$(dirname "$dest")"
work=$(mktemp -d "$(dirname "$dest")/.fetch-qemu.XXXXXX")
trap 'rm -rf "$work"' EXIT
# apt drops its rights to "_apt" for downloads, which must be able to enter the folder.
chmod 755 "$work"
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,packages,root}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $uri bookworm-backports main" >"$work/sources/backports.list"
# The host's own main archive as well: libraries that the host lacks come from there.
echo "deb [signed-by=$keyring] $uri bookworm main" >"$work/sources/main.list"

apt_private() {
    "$@" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources" \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)"
}

apt_private apt-get update -qq || fail "cannot read $uri bookworm-backports"

# apt itself works out which packages an installation would bring here, these and the libraries that the host lacks; that
# is only asked, and the answer fetched.
suite=bookworm-backports
mapfile -t packages < <(apt_private apt-get install -s --reinstall -t $suite -o Debug::NoLocking=1 --no-install-recommends \
    qemu-system-x86 qemu-system-common qemu-system-data |
    sed -n 's/^Inst \([^ ]*\) \(\[[^]]*\] \)\?(\([^ ]*\) .*/\1=\3/p')
[[ " ${packages[*]}" == *" qemu-system-x86="* ]] || fail "apt finds no way to bring qemu-system-x86 of $suite here"
(cd "$work/packages" && apt_private apt-get download -qq "${packages[@]}") || fail "cannot download ${packages[*]}"
for deb in "$work"/packages/*.deb; do
    dpkg-deb -x "$deb" "$work/root"
done

rm -rf "$dest"
mv "$work/root" "$dest"
starts || fail "$qemu does not start: $(LD_LIBRARY_PATH=$libs "$qemu" --version 2>&1 | head -n 1)"
echo "$qemu"
