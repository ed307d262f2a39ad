#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests that give memory back while they are moved: a Linux guest with a balloon, and holes that the test punches itself.

The Linux guest is a kernel of Debian's (contrib/fetch-kernel.sh) and tests/guest/linux-guest.c, which takes, checks and
gives back memory all the time. In the other cases the guest is the boot block, which lets its balloon device be; the
test punches the file as QEMU would, and has QEMU fill pages again: with zeroes, by reading guest memory (xp), or with data,
by a disk that reads into them.
"""
import random
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vm"))

import initramfs  # noqa: E402
import vm  # noqa: E402
from lib import BUILD, MIB, PAGE, Case, Daemon, Qemu, Ram, Send, each_qemu, run, wait_until  # noqa: E402

BALLOON = ["-object", "iothread,id=io0",
           "-device", "virtio-balloon-pci,id=balloon,free-page-reporting=on,deflate-on-oom=on,free-page-hint=on,iothread=io0"]
# Stopped and moved at the end of this, however much the guest writes: until then there are rounds.
PRECOPY = ["--on-timeout", "suspend", "--downtime-limit", "1", "--timeout"]


class BalloonCase(Case):
    def in_precopy(self, send):
        return send.popen.poll() is None and not any(
            event["event"] == "state" and event["state"] == "switchover" for event in list(send.events))

    def finish(self, send, source, target, device="virtio-balloon"):
        status, result = send.finish()
        self.assertEqual(status, 0, send.explain())
        self.assertRegex(send.stderr(), f"{device}.*give RAM back")
        self.assert_equal_memory(source, target)
        return result


class LinuxGuestCase(BalloonCase):
    """A driver of its own mind: pages go and come back at any moment of a round, and afterwards the guest finds them whole."""

    def guest_options(self):
        try:
            kernel = vm.find_kernel()
        except vm.Unavailable as reason:
            raise unittest.SkipTest(str(reason))
        archive = self.folder / "initramfs"
        if not archive.exists():
            initramfs.write_guest(archive, kernel, BUILD / "tests/guest/linux-guest", self.MODULES)
        words = "console=ttyS0 quiet loglevel=0 panic=-1 mitigations=off nowatchdog audit=0 no_timer_check init_on_alloc=0"
        return ["-kernel", str(kernel.image), "-initrd", str(archive), "-append", f"{words} {self.WORDS}"]


@each_qemu("7.2", "10.0")
class Balloon(LinuxGuestCase):
    RAM = 320  # MiB
    MODULES = ["virtio_pci", "virtio_balloon"]
    WORDS = "KEEP=32 PIECE=24"

    def pair(self, *options, **keywords):
        keywords |= {"rams": (self.RAM,), "extra": [*self.guest_options(), *BALLOON]}
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


@each_qemu("10.0")
class VirtioMem(LinuxGuestCase):
    """Memory that is plugged and unplugged in blocks, while the guest is moved."""
    RAM, MEM = 256, 512  # MiB
    MODULES = ["virtio_pci", "virtio_mem"]
    WORDS = "KEEP=24 PIECE=64 memhp_default_state=online_movable"

    def new(self, name, incoming=False):
        ram = Ram(self.folder / f"{name}.mem", self.MEM)
        self.addCleanup(ram.path.unlink, missing_ok=True)
        extra = [*self.guest_options(), "-m", f"{self.RAM}M,maxmem=2G",
                 "-object", f"memory-backend-file,id=mem1,size={self.MEM}M,mem-path={ram.path},share=on,reserve=off",
                 "-device", "virtio-mem-pci,id=mem,memdev=mem1,requested-size=128M"]
        qemu = Qemu(self, name, incoming=incoming, rams=(self.RAM,), extra=extra)
        qemu.rams.append(ram)
        return qemu

    def plugged(self, qemu):
        return qemu.qmp("qom-get", path="/machine/peripheral/mem", property="size") // MIB

    def resize(self, qemu, mib):
        qemu.qmp("qom-set", path="/machine/peripheral/mem", property="requested-size", value=mib * MIB)

    def test_plugged_and_unplugged_in_every_round(self):
        source = self.new("source")
        source.wait_letters()
        wait_until(lambda: self.plugged(source) == 128, "the driver plugs")
        target = self.new("target", True)
        daemon = Daemon(self, "--qmp", target.path)
        source.wait_letters(8)
        send = Send(self, source, daemon, "--suspend", "--keep-source", "--max-bandwidth", "30M", *PRECOPY, "12s")
        send.wait_precopy()
        before, sizes = len(source.qmp.events), set()
        chance = random.Random(7)
        while self.in_precopy(send):
            size = chance.choice((0, 64, 128, 256, 384, 512))
            self.resize(source, size)
            for _ in range(30):
                sizes.add(self.plugged(source))
                if self.plugged(source) == size or not self.in_precopy(send):
                    break
                time.sleep(0.1)
        result = self.finish(send, source, target, r"virtio-mem")
        print(f"# {result['metrics']['rounds']} rounds, sizes {sorted(sizes)}")
        self.assertGreater(len(sizes), 3)
        self.assertEqual(self.plugged(source), self.plugged(target))
        target.qmp("cont")
        target.assert_runs()
        self.resize(target, 320)
        wait_until(lambda: self.plugged(target) == 320, "the driver plugs at the destination")
        self.resize(target, 0)
        target.wait_letters(8)
        self.assert_counted_on(source, target)


class Puncher(BalloonCase):
    """Holes in the first 64 MiB of the upper half of a guest's 128 MiB, which the guest itself leaves alone."""
    FIRST, PAGES = 64 * 256, 32 * 256

    def start(self, **keywords):
        keywords = {"rams": (128,), "extra": BALLOON, "guest": {"last": 5 * MIB}} | keywords
        source, target, daemon = self.pair(**keywords)
        source.rams[0].fill(64, 32)
        return source, target, daemon

    def load(self, qemu, page):
        """Has QEMU read the page."""
        self.assertIn(": 0x00", qemu.qmp("human-monitor-command", command_line=f"xp /1bx {page * PAGE:#x}"))

    def send(self, source, daemon, *options, env=None):
        # This process has the file open now and then.
        return Send(self, source, daemon, "--suspend", "--keep-source", "--allow-untracked-writers", "--max-bandwidth", "16M",
                    *PRECOPY, "8s", *options, env=env)

    def after_round(self, send, number):
        send.wait_event(lambda event: event["event"] == "round" and event["round"] >= number, f"round {number}")

    def test_holes_of_every_round(self):
        source, target, daemon = self.start()
        chance = random.Random(5)
        send = self.send(source, daemon, "--verify")
        send.wait_precopy()
        punched = 0
        while self.in_precopy(send):
            page, count = self.FIRST + chance.randrange(self.PAGES - 16), chance.randrange(1, 16)
            source.rams[0].punch(page, count)
            punched += count
            if chance.randrange(2):
                self.load(source, page + chance.randrange(count))
        self.finish(send, source, target)
        self.assertGreater(punched, 100)

    def test_holes_of_every_round_on_hugetlbfs(self):
        """Whole huge pages, of which the destination and the source have no more than they need."""
        source, target, daemon = self.start(ram_folder=self.hugepages(2 * 128))
        chance = random.Random(8)
        send = self.send(source, daemon, "--verify")
        self.after_round(send, 1)
        for _ in range(8):
            page = self.FIRST + 512 * chance.randrange(self.PAGES // 512)
            source.rams[0].punch(page, 512)
            if chance.randrange(2):
                self.load(source, page + chance.randrange(512))
            time.sleep(0.3)
        self.finish(send, source, target)

    def punch_and_read(self, env=None):
        """Pages that were sent, are punched, and read again: populated all the time, and never written."""
        source, target, daemon = self.start()
        send = self.send(source, daemon, env=env)
        self.after_round(send, 1)
        for i in range(50):
            source.rams[0].punch(self.FIRST + 7 * i)
            self.load(source, self.FIRST + 7 * i)
        status, _ = send.finish()
        self.assertEqual(status, 0, send.explain())
        return self.count_differing(source, target)

    def test_punched_and_read_again(self):
        self.assertEqual(self.punch_and_read(), 0)

    def test_punched_and_read_again_is_lost_without_the_watch(self):
        self.assertGreater(self.punch_and_read({"RDMAMIG_FAULT": "no-punch-watch"}), 25)


if __name__ == "__main__":
    sys.exit(run())
