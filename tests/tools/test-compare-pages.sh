#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# compare-pages sees one bit in a large file with holes, allocates nothing, and says where.
set -eu
tool=$1
folder=$(mktemp -d /dev/shm/rdmamig-compare.XXXXXX)
trap 'rm -rf "$folder"' EXIT
a=$folder/a b=$folder/b

expect() { # STATUS TEXT COMMAND...
    want=$1 text=$2
    shift 2
    status=0
    output=$("$@" 2>&1) || status=$?
    case $output in *"$text"*) ;; *) echo "want '$text', got '$output'"; exit 1 ;; esac
    [ "$status" = "$want" ] || { echo "$*: exit $status instead of $want"; exit 1; }
}

truncate -s 1074790401 "$a" "$b" # 1 GiB, some, and a last page of one byte
expect 0 "262401 pages, 0 differ" "$tool" "$a" "$b"
printf x | dd of="$a" bs=1 seek=536870913 conv=notrunc status=none
expect 1 "262401 pages, 1 differ" "$tool" "$a" "$b"
expect 1 "differ: 0x20000000-0x20001000" "$tool" "$a" "$b"
cp --sparse=always "$a" "$b"
expect 0 "262401 pages, 0 differ" "$tool" "$a" "$b"
expect 0 "" "$tool" --flip 1074790400 "$b"
expect 1 "262401 pages, 1 differ" "$tool" "$a" "$b"
expect 0 "" "$tool" --flip 1074790400 "$b"
expect 0 "262401 pages, 0 differ" "$tool" "$a" "$b"
# zeroes that are there on one side and a hole on the other are equal
dd if=/dev/zero of="$b" bs=4096 count=300 seek=1000 conv=notrunc status=none
expect 0 "262401 pages, 0 differ" "$tool" "$a" "$b"
used=$(stat -c %b "$a")
[ "$used" -le 16 ] || { echo "comparing allocated memory: $used blocks"; exit 1; }
truncate -s 4096 "$b"
expect 2 "bytes" "$tool" "$a" "$b"
expect 2 "cannot open" "$tool" "$a" "$folder/none"
expect 2 "usage" "$tool" "$a"
