#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests that give memory back while they are moved: a Linux guest with a balloon, and holes that the test punches itself.

The Linux guest is a kernel of Debian's (contrib/fetch-kernel.sh) and tests/guest/linux-guest.c, which takes, checks and
gives back memory all the time. In the other cases the guest is the boot block, which lets its balloon device be; the
test punches the file as QEMU would, and has QEMU fill pages again: with zeroes, by reading guest memory (xp), or with data,
by a disk that reads into them.
"""
import ctypes
import random
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vm"))

import initramfs  # noqa: E402
import vm  # noqa: E402
from lib import BUILD, COMPARE, MIB, Case, Send, each_qemu, run, wait_until  # noqa: E402

PAGE = 4096
BALLOON = ["-device", "virtio-balloon-pci,id=balloon,free-page-reporting=on,deflate-on-oom=on"]
PUNCH_HOLE, KEEP_SIZE = 2, 1
# Stopped and moved at the end of this, however much the guest writes: until then there are rounds.
PRECOPY = ["--on-timeout", "suspend", "--downtime-limit", "1", "--timeout"]

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class BalloonCase(Case):
    def finish(self, send, source, target):
        status, result = send.finish()
        self.assertEqual(status, 0, send.explain())
        self.assertRegex(send.stderr(), r"balloon.*give RAM back")
        self.assert_equal_memory(source, target)
        return result


@each_qemu("7.2", "10.0")
class LinuxGuest(BalloonCase):
    """A driver of its own mind: pages go and come back at any moment of a round, and afterwards the guest finds them whole."""
    RAM = 320  # MiB
    MODULES = ["virtio_pci", "virtio_balloon"]

    def guest_options(self):
        try:
            kernel = vm.find_kernel()
        except vm.Unavailable as reason:
            raise unittest.SkipTest(str(reason))
        archive = self.folder / "initramfs"
        if not archive.exists():
            initramfs.write_guest(archive, kernel, BUILD / "tests/guest/linux-guest", self.MODULES)
        words = "console=ttyS0 quiet loglevel=0 panic=-1 mitigations=off nowatchdog audit=0 no_timer_check init_on_alloc=0 KEEP=32 PIECE=24"
        return ["-kernel", str(kernel.image), "-initrd", str(archive), "-append", words, *BALLOON]

    def pair(self, *options, **keywords):
        keywords |= {"rams": (self.RAM,), "extra": self.guest_options()}
        source, target, daemon = super().pair(*options, **keywords)
        wait_until(lambda: self.actual(source) == self.RAM, "the driver answers")
        return source, target, daemon

    def actual(self, qemu):
        return qemu.qmp("query-balloon")["actual"] // MIB

    def resize(self, qemu, mib):
        qemu.qmp("balloon", value=mib * MIB)
        wait_until(lambda: self.actual(qemu) == mib, f"a balloon that leaves {mib} MiB")

    def test_balloon_moves_in_every_round(self):
        source, target, daemon = self.pair()
        # The first round meets a guest that has used most of its memory.
        self.resize(source, 160)
        self.resize(source, self.RAM)
        source.wait_letters()
        before = len(source.qmp.events)
        send = Send(self, source, daemon, "--suspend", "--keep-source", "--max-bandwidth", "30M", *PRECOPY, "12s")
        send.wait_precopy()
        for size in self.sizes(send):
            source.qmp("balloon", value=size * MIB)
            wait_until(lambda: self.actual(source) == size or not self.in_precopy(send), "the balloon moves")
        result = self.finish(send, source, target)
        moves = [event for event in source.qmp.events[before:] if event["event"] == "BALLOON_CHANGE"]
        rounds = result["metrics"]["rounds"]
        print(f"# {rounds} rounds, {len(moves)} steps of the balloon, {result['metrics']['sent_bytes'] // MIB} MiB sent")
        self.assertGreater(rounds, 4)
        self.assertGreater(len(moves), 3)
        target.qmp("cont")
        target.assert_runs()
        # The balloon is there, too, and does its work.
        self.resize(target, 144)
        self.resize(target, 256)
        target.wait_letters()
        self.assert_counted_on(source, target)

    def in_precopy(self, send):
        return send.popen.poll() is None and not any(
            event["event"] == "state" and event["state"] == "switchover" for event in list(send.events))

    def sizes(self, send):
        chance = random.Random(4)
        while self.in_precopy(send):
            yield chance.choice((128, 160, 200, 256, 300))

    def test_what_is_given_back_stays_given_back(self):
        """Moving a guest does not fill its balloon with memory again, on either side."""
        source, target, daemon = self.pair()
        self.resize(source, 144)
        send = Send(self, source, daemon, "--suspend", "--keep-source", "--verify")
        self.finish(send, source, target)
        # What it may use, its firmware's own, and page tables that nobody counts.
        for qemu in (source, target):
            self.assertLess(qemu.rams[0].used(), 150 * MIB)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)


class Puncher(BalloonCase):
    """Holes in the first 64 MiB of the upper half of a guest's 128 MiB, which the guest itself leaves alone."""
    FIRST, PAGES = 64 * 256, 32 * 256

    def start(self, **keywords):
        keywords = {"rams": (128,), "extra": BALLOON, "guest": {"last": 5 * MIB}} | keywords
        source, target, daemon = self.pair(**keywords)
        source.rams[0].fill(64, 32)
        return source, target, daemon

    def punch(self, qemu, page, count=1):
        with open(qemu.rams[0].path, "r+b") as file:
            if _fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, page * PAGE, count * PAGE) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")

    def load(self, qemu, page):
        """Has QEMU read the page."""
        self.assertIn(": 0x00", qemu.qmp("human-monitor-command", command_line=f"xp /1bx {page * PAGE:#x}"))

    def send(self, source, daemon, *options, env=None):
        # This process has the file open now and then.
        return Send(self, source, daemon, "--suspend", "--keep-source", "--allow-untracked-writers", "--max-bandwidth", "16M",
                    *PRECOPY, "8s", *options, env=env)

    def after_round(self, send, number):
        send.wait_event(lambda event: event["event"] == "round" and event["round"] >= number, f"round {number}")

    def differ(self, source, target):
        done = subprocess.run([str(COMPARE), source.rams[0].path, target.rams[0].path], capture_output=True, text=True)
        return int(done.stdout.split(" pages, ")[1].split()[0])

    def test_holes_of_every_round(self):
        source, target, daemon = self.start()
        chance = random.Random(5)
        send = self.send(source, daemon)
        send.wait_precopy()
        punched = 0
        while not any(event["event"] == "state" and event["state"] == "switchover" for event in list(send.events)):
            self.assertIsNone(send.popen.poll(), send.explain())
            page, count = self.FIRST + chance.randrange(self.PAGES - 16), chance.randrange(1, 16)
            self.punch(source, page, count)
            punched += count
            if chance.randrange(2):
                self.load(source, page + chance.randrange(count))
        self.finish(send, source, target)
        self.assertGreater(punched, 100)

    def punch_and_read(self, env=None):
        """Pages that were sent, are punched, and read again: populated all the time, and never written."""
        source, target, daemon = self.start()
        send = self.send(source, daemon, env=env)
        self.after_round(send, 1)
        for i in range(50):
            self.punch(source, self.FIRST + 7 * i)
            self.load(source, self.FIRST + 7 * i)
        status, _ = send.finish()
        self.assertEqual(status, 0, send.explain())
        return self.differ(source, target)

    def test_punched_and_read_again(self):
        self.assertEqual(self.punch_and_read(), 0)

    def test_punched_and_read_again_is_lost_without_the_watch(self):
        self.assertEqual(self.punch_and_read({"RDMAMIG_FAULT": "no-punch-watch"}), 50)


if __name__ == "__main__":
    sys.exit(run())
