#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Unpacks a kernel of Debian's, its modules and a static busybox into a folder: what the VM of tests/vm boots from.
#
#   contrib/fetch-kernel.sh DEST [6.12|6.1]
#
# 6.12 (the default) comes from bookworm-backports, 6.1 from bookworm. Nothing is installed, and apt's own sources and
# lists stay as they are. Run again, it returns at once. Prints DEST. The result:
#
#   DEST/boot/vmlinuz-VERSION   DEST/lib/modules/VERSION/   DEST/bin/busybox
set -euo pipefail
export me=fetch-kernel
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

usage="usage: fetch-kernel.sh DEST [6.12|6.1]"
[[ $# = 1 || $# = 2 ]] || fail "$usage"
dest=$1
series=${2:-6.12}
case $series in
6.12) suite=bookworm-backports ;;
6.1) suite=bookworm ;;
*) fail "$usage" ;;
esac

complete() { compgen -G "$dest/boot/vmlinuz-$series.*" >/dev/null && [ -x "$dest/bin/busybox" ]; }

if complete; then
    echo "$dest"
    exit 0
fi
# It is replaced as a whole: never anything else that happens to have that name.
[ ! -e "$dest" ] || [ -d "$dest/lib/modules" ] || rmdir "$dest" 2>/dev/null ||
    fail "$dest exists and is not a kernel of ours; name another folder"

mkdir -p "$(dirname "$dest")"
work=$(mktemp -d "$(dirname "$dest")/.fetch-kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT
private_apt "$work" "$suite" bookworm

# The image's name has the version in it; an archive may hold several.
package=$(apt_run apt-cache pkgnames "linux-image-$series." |
    grep -xE "linux-image-${series//./\\.}\.[0-9]+\+(bpo|deb12)-amd64|linux-image-${series//./\\.}\.0-[0-9]+-amd64" |
    sort -V | tail -n 1) || true
[ -n "$package" ] || fail "$suite has no linux-image-$series.*-amd64"
fetch_unpack "$package" busybox-static

rm -rf "$dest"
mv "$work/root" "$dest"
complete || fail "$package has no boot/vmlinuz-$series.*"
echo "$dest"
