#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shapes of memory: several odd blocks, above 4 GiB, sparse, huge pages; and a second hop."""
import sys

from lib import HIGH, MIB, SWEEP, Case, Daemon, Qemu, each_qemu, run

GIB = 1024  # MiB


@each_qemu("7.2", "10.0")
class Blocks(Case):
    def test_two_odd_numa_blocks_and_memory_above_4_gib(self):
        guest = {"mode": SWEEP | HIGH, "last": 33 * MIB, "high_first": 4 * GIB, "high_size": 64}
        source, target, daemon = self.pair(rams=(1027, 509, 3 * GIB), guest=guest)
        source.rams[0].fill(1026, 1)  # the last MiB of a block, and the first of the next
        source.rams[0].fill(200, 10)
        source.rams[1].fill(0, 2)
        source.rams[1].fill(507, 2)
        source.rams[2].fill(1100, 20)
        source.rams[2].fill(3 * GIB - 1, 1)
        self.move(source, target, daemon)
        self.assertEqual(target.parameter("faults"), 0)

    def test_sparse_16_gib(self):
        source, target, daemon = self.pair(rams=(16 * GIB,), guest={"last": 17 * MIB})
        for at in (1 * GIB, 5 * GIB + 7, 9 * GIB + 513, 16 * GIB - 1):
            source.rams[0].fill(at, 1)
        source.rams[0].write(12 * GIB * MIB + 4096 * 77, b"one page alone")
        before = source.rams[0].used()
        result = self.send(source, daemon, "--suspend", "--keep-source")
        # Both grow by what the guest and its firmware touch, not by what somebody looks at.
        self.assertLess(source.rams[0].used(), before + 2 * MIB)
        self.assertLess(target.rams[0].used(), before + 2 * MIB)
        print(f"# sparse 16 GiB, {before // MIB} MiB populated: {result['metrics']['total_ms']} ms")
        self.assert_equal_memory(source, target)
        self.assertLess(target.rams[0].used(), before + 2 * MIB)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_hugetlbfs(self):
        mount = self.hugepages(2 * 256)
        source, target, daemon = self.pair(ram_folder=mount, guest={"last": 33 * MIB})
        self.move(source, target, daemon)
        self.assertEqual(target.parameter("faults"), 0)

    def test_hugetlbfs_preallocated(self):
        mount = self.hugepages(2 * 256)
        source, target, daemon = self.pair(ram_folder=mount, guest={"last": 33 * MIB}, memory="share=on,prealloc=on")
        self.move(source, target, daemon)


class Destination(Case):
    def test_old_contents_of_the_destination_are_emptied(self):
        """A page that is zero at the source must be zero there, whatever the file held."""
        source = Qemu(self, "source", guest={"last": 17 * MIB})
        source.wait_letters()
        target = Qemu(self, "target", incoming=True)
        target.rams[0].fill(64, 128)
        self.move(source, target, Daemon(self, "--qmp", target.path))

    def test_old_contents_of_preallocated_hugepages_are_zeroed(self):
        mount = self.hugepages(2 * 128)
        keywords = {"ram_folder": mount, "rams": (128,), "memory": "share=on,prealloc=on"}
        source = Qemu(self, "source", guest={"last": 17 * MIB}, **keywords)
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, **keywords)
        target.rams[0].fill(32, 64)
        self.move(source, target, Daemon(self, "--qmp", target.path))


@each_qemu("7.2", "10.0")
class SecondHop(Case):
    def hop_twice(self, **keywords):
        """A to B to C: B's QEMU never touches most pages, so its page tables don't show them."""
        a, b, to_b = self.pair(guest={"last": 17 * MIB}, **keywords)
        a.rams[0].fill(128, 64)
        self.move(a, b, to_b)
        a.kill()
        c = Qemu(self, "third", incoming=True, **keywords)
        self.send(b, Daemon(self, "--qmp", c.path), "--suspend", "--keep-source")
        self.assert_equal_memory(b, c)
        c.qmp("cont")
        c.assert_runs()
        self.assert_counted_on(a, b, c)
        self.assertEqual(c.parameter("faults"), 0)

    def test_tmpfs(self):
        self.hop_twice()

    def test_hugetlbfs(self):
        self.hop_twice(ram_folder=self.hugepages(3 * 256))


if __name__ == "__main__":
    sys.exit(run())
