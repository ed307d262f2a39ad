#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Migrations over an RDMA device of this host: what test-rdma-migrate.py runs in the VM, or natively.

    tests/vm/cases.py [NAME-OR-PART-OF-IT]...

The environment is that of tests/integration/lib.py: RDMAMIG_TEST_TRANSPORT and RDMAMIG_TEST_ADDRESS say what is tested;
RDMAMIG_TEST_DEVICE, the device's name, is passed on. Guests are small: under emulation in emulation a guest dirties some
10 MiB a second, and the device moves 20 to 80.
"""
import itertools
import os
import random
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import lib  # noqa: E402
from lib import MIB, Case, Send  # noqa: E402

RDMA = lib.TRANSPORT == "rdma"
DEVICE = ["--rdma-device", os.environ["RDMAMIG_TEST_DEVICE"]] if RDMA and "RDMAMIG_TEST_DEVICE" in os.environ else []
PINS = ("lazy", "all")
CHUNKS = ("1M", "64M", "1G")
FILLED = 32  # MiB of random bytes that only the first round moves
# The guest may write faster than the device moves: how long it stands still is not the matter here.
LIMIT = ["--downtime-limit", "20000"]


class MoveCase(Case):
    daemon_options = ()

    def move_one(self, *options, dirtied=8, rams=(128,), filled=FILLED):
        """A guest that writes to `dirtied` MiB for as long as it runs moves, and every page is compared."""
        source, target, daemon = self.pair(*DEVICE, *self.daemon_options, rams=rams, guest={"last": (1 + dirtied) * MIB})
        source.rams[0].fill(rams[0] - filled, filled)
        result = self.move(source, target, daemon, *LIMIT, *DEVICE, *options)
        self.assertEqual(target.parameter("faults"), 0)
        # Two sweeps at least: it did write while it moved.
        self.assertGreater(target.parameter("sweeps"), 1)
        if lib.TRANSPORT:
            self.assertEqual(result["transport"], lib.TRANSPORT)
        metrics = result["metrics"]
        print(f"# {' '.join(options)}: {metrics['total_ms']:.0f} ms, down {metrics['downtime_ms']:.0f} ms", flush=True)
        return result


class Matrix(MoveCase):
    """One test for each chunk size, number of channels and, where there are registrations, way to pin; half of them, in
    which each two values meet, unless RDMAMIG_TEST_FULL is set."""


def _add_matrix():
    for pin, chunk, channels in itertools.product(PINS, CHUNKS, (1, 2)):
        if pin == "all" and not RDMA:
            continue
        half = (PINS.index(pin) + CHUNKS.index(chunk) + channels) % 2 == 1
        if RDMA and half and not os.environ.get("RDMAMIG_TEST_FULL"):
            continue

        def test(self, pin=pin, chunk=chunk, channels=channels):
            self.move_one("--chunk-size", chunk, "--channels", str(channels), *(["--pin", pin] if RDMA else []))
        setattr(Matrix, f"test_pin_{pin}_chunk_{chunk}_channels_{channels}", test)


_add_matrix()


@unittest.skipUnless(RDMA, "not over rdma")
class Pinned(MoveCase):
    """A window of 64 MiB at both ends, which the guest is more than."""
    daemon_options = ("--max-pinned", "64M")

    def test_chunk_1M(self):
        self.move_one("--max-pinned", "64M", "--chunk-size", "1M", rams=(128,), filled=72)

    def test_chunk_64M(self):
        self.move_one("--max-pinned", "64M", "--chunk-size", "64M", rams=(128,), filled=72)

    def test_all_does_not_fit(self):
        source, _, daemon = self.pair(*DEVICE, rams=(128,))
        send = Send(self, source, daemon, "--max-pinned", "64M", "--pin", "all", *DEVICE)
        status, result = send.finish()
        self.assertEqual(status, lib.REFUSED)
        self.assertIn("64 MiB", result["detail"])
        self.assertIn("128 MiB", result["detail"])
        source.assert_runs()


class Shapes(MoveCase):
    def test_100_mib_dirtied(self):
        self.move_one(dirtied=100, rams=(160,))

    def test_two_blocks(self):
        self.move_one(rams=(96, 64))

    def test_sparse_4_gib(self):
        """Neither side grows by what nobody wrote."""
        source, target, daemon = self.pair(*DEVICE, rams=(4096,), guest={"last": 9 * MIB},
                                           daemon_env={"RDMAMIG_FAULT": "trim-ms=60000"})
        for at in (300, 1025, 4095):
            source.rams[0].fill(at, 1)
        before = source.rams[0].used()
        self.send(source, daemon, "--suspend", "--keep-source", *LIMIT, *DEVICE)
        bound = before + 2 * MIB
        self.assertLess(source.rams[0].used(), bound)
        self.assertLess(target.rams[0].used(), bound)
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_chunk_size_does_not_change_what_is_sent(self):
        """A guest that stands still: the same bytes whatever the chunk size."""
        sent = set()
        for chunk in CHUNKS:
            source, target, daemon = self.pair(*DEVICE, rams=(96,), guest={"mode": 0})
            source.rams[0].fill(40, 16)
            source.qmp("stop")
            self.send(source, daemon, "--keep-source", "--chunk-size", chunk, *DEVICE)
            self.assert_equal_memory(source, target)
            sent.add(self.last_send.finish()[1]["metrics"]["sent_bytes"])
            for process in (source, target, daemon):
                process.kill()
        self.assertEqual(len(sent), 1, sent)

    def test_cancelled_then_moved(self):
        """A cancelled migration leaves the guest running and both sides fit for the next."""
        source, target, daemon = self.pair(*DEVICE, rams=(128,), guest={"last": 9 * MIB})
        source.rams[0].fill(128 - FILLED, FILLED)
        send = Send(self, source, daemon, "--max-bandwidth", "1M", *DEVICE)
        send.wait_precopy()
        send.kill(2)
        self.assertEqual(send.finish()[0], lib.CANCELLED)
        source.assert_runs()
        source.assert_left_alone()
        self.move(source, target, daemon, *LIMIT, *DEVICE)


class Balloon(MoveCase):
    """A guest that can give memory back. The driver's part is the test's: it punches pages, and a disk fills them again."""

    def move_punched(self, env=None):
        """Returns how many pages differ."""
        disk = self.folder / "disk"
        with open(disk, "wb") as file:
            for _ in range(16):
                file.write(os.urandom(MIB))
        first, mib = 64, 8
        guest = {"mode": lib.DISK, "pace": 1, "depth": 8, "disk_first": first * MIB, "disk_last": (first + mib) * MIB}
        source, target, daemon = self.pair(*DEVICE, rams=(96,), guest=guest, extra=["-device", "virtio-balloon-pci"],
                                           disk=f"file={disk},file.locking=off,read-only=on")
        # Without a hole in them, so that these chunks could be registered as they are.
        source.rams[0].fill(first, mib)
        chance = random.Random(6)
        send = Send(self, source, daemon, "--suspend", "--keep-source", "--allow-untracked-writers", "--chunk-size", "1M",
                    "--max-bandwidth", "4M", "--downtime-limit", "1", "--timeout", "12s", "--on-timeout", "suspend",
                    *DEVICE, env=env)
        send.wait_event(lambda event: event["event"] == "round", "the first round is over")
        before = source.parameter("reads")
        while send.popen.poll() is None and not any(event.get("state") == "switchover" for event in list(send.events)):
            source.rams[0].punch(first * 256 + chance.randrange(mib * 256 - 8), chance.randrange(1, 8))
            time.sleep(0.01)
        status, _ = send.finish()
        self.assertEqual(status, 0, send.explain())
        self.assertGreater(source.parameter("reads") - before, 16, "hardly a page was filled again")
        return self.count_differing(source, target)

    def test_punched_and_filled_again(self):
        self.assertEqual(self.move_punched(), 0)

    @unittest.skipUnless(RDMA, "not over rdma")
    def test_punched_pages_are_stale_without_copies(self):
        """A registration of guest memory keeps the pages that were punched, and sends those."""
        self.assertGreater(self.move_punched({"RDMAMIG_FAULT": "no-copy"}), 0)


@unittest.skipUnless(RDMA, "not over rdma")
class Options(MoveCase):
    def test_options_of_the_connections(self):
        """They reach a device that takes them, and the guest arrives whole with writes into a chunk one by one."""
        source, target, daemon = self.pair(*DEVICE, "-v", "--tos", "40", "--rdma-ack-timeout", "15", rams=(128,),
                                           guest={"last": 9 * MIB})
        self.move(source, target, daemon, *LIMIT, *DEVICE, "-v", "--serialise-chunks", "--tos", "104",
                  "--rdma-retries", "5", "--rdma-ack-timeout", "16")
        for text, values in ((self.last_send.stderr(), "5 retries, ACK time-out 16 (268435 us), TOS 104"),
                             (daemon.output(), "ACK time-out 15 (134217 us), TOS 40")):
            self.assertIn(f"data channel 0: {values}", text)
            self.assertNotIn("it stays as the system has it", text)


@unittest.skipUnless(RDMA, "not over rdma")
class Transport(unittest.TestCase):
    def test_transport_alone(self):
        """The cases of tests/unit/transport/verbs, here over the real libraries and a device."""
        program = lib.BUILD / "tests/unit/transport/verbs/transport-test-verbs-real"
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=2 * lib.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        self.assertNotIn("# SKIP", done.stdout)


if __name__ == "__main__":
    sys.exit(lib.run())
