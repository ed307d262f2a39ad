#!/bin/busybox sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=dash
# First process of the test VM (tests/vm/vm.py): loads the modules, puts a tmpfs over the host's root, which comes over 9p
# and can't be written, and hands over to agent.sh in there. What fails is said on the console; the kernel then panics,
# since its first process ended, and QEMU with it.
set -e
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

for module in /modules/*.ko; do
    # kvm-amd finds no SVM on some processors: no reason not to boot.
    insmod "$module" || case $module in *kvm*) ;; *) exit 1 ;; esac
done

# The host's files may change while the VM runs only where the VM has not looked yet: cache=loose never looks again.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /host
mount -t tmpfs -o size=50% over /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new

# Not the host's, which 9p would show.
mount -t tmpfs -o mode=755 run /new/run
for folder in /tmp /var/tmp; do
    mount -t tmpfs -o mode=1777 tmp "/new$folder"
done
mkdir -p /new/run/vm /dev/shm /dev/pts
mount -t tmpfs -o mode=1777,size=90% shm /dev/shm
mount -t devpts devpts /dev/pts
cp /bin/busybox /agent /new/run/vm/
for folder in /proc /sys /dev; do
    mount --move "$folder" "/new$folder"
done
exec switch_root /new /run/vm/busybox sh /run/vm/agent
