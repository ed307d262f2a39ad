#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Direct I/O: a slow disk whose reads land in guest memory behind the page tables' back.

nbdkit delays each read, nbdfuse shows the image as a file, and QEMU opens that with cache=none, so that the data goes
from FUSE straight into the guest's pages, long after the request has pinned them. The guest keeps eight reads in flight
into random pages that nothing else writes. With the fence switched off (fault point no-fence) the same run must lose
pages: else this test proves nothing.

RDMAMIG_DIRECT_IO_RUNS is the number of runs for each kind of asynchronous I/O; one unless it is set.
"""
import os
import shutil
import subprocess
import sys
import unittest

from lib import DISK, MIB, BUILD, Case, Process, each_qemu, run, wait_until

RUNS = int(os.environ.get("RDMAMIG_DIRECT_IO_RUNS", "1"))
DISK_MIB = 64
DELAY_MS = 200
DEPTH = 8


class DirectIo(Case):
    def slow_disk(self):
        """The path of a file of random bytes whose reads take DELAY_MS."""
        for tool in ("nbdkit", "nbdfuse"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} is not installed")
        if not os.path.exists("/dev/fuse"):
            raise unittest.SkipTest("no /dev/fuse")
        folder = self.disk_folder()
        image, socket, mount = folder / "image", folder / "nbd", folder / "mount"
        mount.mkdir()
        with open(image, "wb") as file:
            for _ in range(DISK_MIB):
                file.write(os.urandom(MIB))
        Process(self, "nbdkit", ["nbdkit", "-f", "-U", socket, "--filter=delay", "file", image, f"rdelay={DELAY_MS}ms"])
        wait_until(socket.exists, "nbdkit listens")
        self.addCleanup(subprocess.run, ["umount", "-l", mount], stderr=subprocess.DEVNULL)
        fuse = Process(self, "nbdfuse", ["nbdfuse", mount / "disk", "--unix", socket])
        wait_until(lambda: (mount / "disk").exists() or not fuse.alive(), "nbdfuse mounts")
        if not fuse.alive():
            raise unittest.SkipTest(f"nbdfuse does not run here: {fuse.output()}")
        return mount / "disk"

    def migrate_once(self, aio, fence=True):
        """Moves a guest that reads the slow disk. Returns how many pages differ."""
        path = self.slow_disk()
        # The window is large beside the number of reads, so that hardly a page is read into twice: a lost one stays lost.
        # The guest does nothing but read, so that a round is short, and the rounds many, while reads are in flight.
        guest = {"mode": DISK, "pace": 1, "depth": DEPTH, "disk_first": 32 * MIB, "disk_last": 160 * MIB}
        keywords = {"guest": guest, "disk": f"file={path},cache=none,aio={aio},file.locking=off,read-only=on"}
        source, target, daemon = self.pair(**keywords)
        source.rams[0].fill(200, 16)
        wait_until(lambda: source.parameter("reads") > 2 * DEPTH, "reads come in")
        before = source.parameter("reads")
        env = {} if fence else {"RDMAMIG_FAULT": "no-fence"}
        result = self.send(source, daemon, "--suspend", "--keep-source", "--max-bandwidth", "8M", "--downtime-limit", "41",
                           "--timeout", "5", "--on-timeout", "suspend", env=env)
        during = source.parameter("reads") - before
        self.assertGreater(during, 2 * DEPTH, "hardly a read during the migration: it proves nothing")
        differ = subprocess.run([BUILD / "tests/tools/compare-pages", source.rams[0].path, target.rams[0].path],
                                capture_output=True, text=True)
        self.assertIn(differ.returncode, (0, 1), differ.stderr)
        if fence:
            self.assertEqual(differ.returncode, 0, differ.stdout)
            self.assertGreater(result["metrics"]["fence_stall_ms"], 0)
            target.qmp("cont")
            target.assert_runs()
            wait_until(lambda: target.parameter("reads") > before + during + DEPTH, "reads go on at the destination")
            self.assert_counted_on(source, target)
            self.assertEqual(target.parameter("faults"), 0)
        for process in (source, target, daemon):
            process.kill()
        self.doCleanups()
        return int(differ.stdout.split()[-2])


@each_qemu("7.2", "10.0")
class Fenced(DirectIo):
    def many(self, aio):
        for _ in range(RUNS):
            self.assertEqual(self.migrate_once(aio), 0)
            self.setUp()

    def test_native(self):
        self.many("native")

    def test_io_uring(self):
        self.many("io_uring")

    def test_threads(self):
        self.many("threads")


class WithoutFence(DirectIo):
    def test_pages_are_lost(self):
        for _ in range(4):
            if lost := self.migrate_once("native", fence=False):
                print(f"# without the fence: {lost} pages lost")
                return
            self.setUp()
        self.fail("four runs without the fence lost nothing: the fence is not tested by this")


if __name__ == "__main__":
    sys.exit(run())
