# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=bash
# shellcheck disable=SC2034
# What the scripts share: packages, the build, QEMU's command line, fetching packages without installing them. Sourced by
# them, with their name in `me`; sets `root`, the project's folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

BUILD_PACKAGES="gcc libc6-dev meson ninja-build pkg-config libglib2.0-dev libgnutls28-dev libjson-c-dev libxxhash-dev libibverbs-dev librdmacm-dev libcap-ng-dev libsystemd-dev libmicrohttpd-dev scdoc python3"
GUEST_PACKAGES="qemu-system-x86 qemu-system-data seabios"
TEST_PACKAGES="nbdkit libnbd-bin glib-networking openssl systemd dbus"
# What runs inside the VM of tests/vm comes from the host: the RDMA libraries, their tools, iproute2's `rdma`.
VM_PACKAGES="ibverbs-providers ibverbs-utils librdmacm1 perftest iproute2"

me=${me:?}
say() { echo "$me: $*"; }

fail() {
    echo "$me: $*" >&2
    exit 1
}

# need_root: run as root or with sudo at hand, or stop.
need_root() {
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "needs root: another process's memory (/proc/PID/map_files) opens to no one else. Run it as root, or install sudo"
}

# install PACKAGE...: what is missing, on Debian 12; elsewhere names it and stops. Never changes apt's sources.
install() {
    local id='' version='' package missing=()
    if [ -r /etc/os-release ]; then
        id=$(. /etc/os-release && echo "${ID:-}")
        version=$(. /etc/os-release && echo "${VERSION_ID:-}")
    fi
    if [ "$id" != debian ] || [ "$version" != 12 ]; then
        # Not our distribution: go on if everything that the packages are for is there, or say what is needed.
        local tool absent=()
        for tool in cc meson ninja pkg-config python3 qemu-system-x86_64; do
            command -v "$tool" >/dev/null || absent+=("$tool")
        done
        for tool in glib-2.0 gio-unix-2.0 json-c libxxhash; do
            ! command -v pkg-config >/dev/null || pkg-config --exists "$tool" || absent+=("$tool")
        done
        [ ${#absent[@]} = 0 ] && return 0
        fail "not found: ${absent[*]}. Install what Debian calls: $*"
    fi
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    need_root
    say "installing ${missing[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
    [ "$(id -u)" = 0 ] || apt=(sudo "${apt[@]}")
    # The lists may be absent (a fresh machine) or stale: bring them up to date only if the first try fails.
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && return 0
    "${apt[@]}" update || fail "apt-get update failed; is there a network?"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        fail "apt-get could not install ${missing[*]}"
}

# build FOLDER OPTION...: sets the folder up once, then brings it up to date. Silent unless it fails.
build() {
    local folder=$1 log
    shift
    log=$(mktemp)
    if ! { [ -f "$folder/build.ninja" ] || meson setup "$folder" "$root" "$@"; } >"$log" 2>&1 ||
        ! ninja -C "$folder" >>"$log" 2>&1; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "the build in $folder failed (see above)"
    fi
    rm -f "$log"
}

# use_qemu PATH: sets the array `qemu` to the command. One that is unpacked beside the system's (contrib/fetch-qemu.sh)
# looks for its data and libraries there.
use_qemu() {
    local path prefix
    path=$(command -v "$1") || fail "no QEMU at $1"
    qemu=("$path")
    prefix=${path%/usr/bin/*}
    if [ "$prefix" != "$path" ] && [ -n "$prefix" ]; then
        qemu=(env "LD_LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu"
            "$path" -L "$prefix/usr/share/qemu" -L /usr/share/seabios)
    fi
    "${qemu[@]}" --version >/dev/null 2>&1 || fail "$path does not start: $("${qemu[@]}" --version 2>&1 | head -n 1)"
}

# find_qemu_10: sets RDMAMIG_QEMU_10, unless it is set: one that was unpacked before, or fetched now; empty if neither.
find_qemu_10() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/rdmamig/qemu-10
    [ -z "${RDMAMIG_QEMU_10:-}" ] || return 0
    [ ! -x /opt/qemu-10/root/usr/bin/qemu-system-x86_64 ] || cache=/opt/qemu-10/root
    RDMAMIG_QEMU_10=$("$root/contrib/fetch-qemu.sh" "$cache") || RDMAMIG_QEMU_10=''
}

# private_apt WORK SUITE...: prepares the folder WORK, which fetch_unpack then uses, for packages of these suites of
# Debian. Nothing is installed and apt's own sources and lists stay as they are; the address of the archive is the one
# that this machine already uses.
private_apt() {
    local uri suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    apt_work=$1
    shift
    command -v dpkg-deb apt-get apt-cache >/dev/null || fail "needs Debian's apt and dpkg"
    [ "$(dpkg --print-architecture)" = amd64 ] || fail "needs an amd64 Debian"
    # shellcheck disable=SC2016 # apt's own placeholders
    uri=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | sed -n 's/^bookworm //p' | sort -u | head -n 1)
    [ -n "$uri" ] || fail "apt has no source for Debian bookworm; run apt-get update on a Debian 12, and try again"
    # apt drops its rights to "_apt" for downloads, which must be able to enter the folder.
    chmod 755 "$apt_work"
    mkdir -p "$apt_work"/{sources,lists/partial,cache/archives/partial,packages,root}
    for suite in "$@"; do
        echo "deb [signed-by=$keyring] $uri $suite main" >"$apt_work/sources/$suite.list"
    done
    apt_run apt-get update -qq || fail "cannot read $uri: $*"
}

# apt_run COMMAND...: one of apt's, in the folder that private_apt prepared.
apt_run() {
    "$@" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt_work/sources" \
        -o Dir::State::Lists="$apt_work/lists" -o Dir::Cache="$apt_work/cache" -o APT::Sandbox::User="$(id -un)"
}

# fetch_unpack PACKAGE...: downloads them and unpacks them into the folder's root/.
fetch_unpack() {
    local deb
    (cd "$apt_work/packages" && apt_run apt-get download -qq "$@") || fail "cannot download $*"
    for deb in "$apt_work"/packages/*.deb; do
        dpkg-deb -x "$deb" "$apt_work/root"
        rm "$deb"
    done
}
