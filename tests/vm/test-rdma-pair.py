#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Migrations between two VMs, over the cable between their RDMA devices; and the cable pulled meanwhile.

RDMAMIG_TEST_TRANSPORT=tcp runs the same over tcp.
"""
import itertools
import json
import os
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
os.environ.setdefault("RDMAMIG_TEST_PATIENCE", "3")

import lib  # noqa: E402
import vm as harness  # noqa: E402

TRANSPORT = os.environ.get("RDMAMIG_TEST_TRANSPORT", "rdma")
RDMA = TRANSPORT == "rdma"
DEVICE = ["--rdma-device", "rxe0"] if RDMA else []
STATION = [sys.executable, str(Path(__file__).resolve().with_name("station.py"))]
QMP = [sys.executable, str(lib.ROOT / "contrib/qmp.py")]
PORT = 24780
RAM = 128  # MiB
# Both ends must have noticed within this that the other is gone. s
NOTICED = 90


class Guest:
    """A QEMU in a VM."""
    numbers = itertools.count()

    def __init__(self, case, vm, dirtied=None):
        self.case, self.vm, self.name = case, vm, f"guest in {vm.name}"
        self.folder = f"/dev/shm/station{next(self.numbers)}"
        self.command = vm.start([*STATION, "qemu", self.folder, RAM, *([dirtied] if dirtied else [])], timeout=900)
        case.addCleanup(self.command.kill)

    def wait_up(self):
        lib.wait_until(lambda: "up\n" in self.command.output or not self.command.running(), f"{self.name} is up")
        self.case.assertTrue(self.command.running(), self.command.output)
        return self

    def qmp(self, command):
        status, output = self.vm.run([*QMP, f"{self.folder}/guest1.ctl", command])
        self.case.assertEqual(status, 0, output)
        return json.loads(output)

    def serial(self):
        return self.vm.run(["cat", f"{self.folder}/guest1.serial"])[1]

    def digests(self):
        return self.vm.run([*STATION, "digests", self.folder])[1].split()

    def assert_runs(self):
        self.case.assertEqual(self.qmp("query-status")["status"], "running")
        letters = len(self.serial())
        lib.wait_until(lambda: len(self.serial()) > letters + 2, f"{self.name} counts on")
        self.case.assertNotIn("!", self.serial())


class Pair(unittest.TestCase):
    assert_counted_on = lib.Case.assert_counted_on

    @classmethod
    def setUpClass(cls):
        cls.a, cls.b = cls.enterClassContext(harness.pair(memory=2048))
        print(f"# up after {cls.a.boot_seconds:.1f} s, {cls.b.boot_seconds:.1f} s", flush=True)

    def set_up(self, dirtied=8):
        """A guest in a, and in b a QEMU and a daemon that wait for it."""
        source, target = Guest(self, self.a, dirtied), Guest(self, self.b)
        source.wait_up(), target.wait_up()
        self.daemon = self.b.start([lib.RDMAMIGD, "--listen", f"{self.b.address}:{PORT}", "--insecure", *DEVICE,
                                    "--qmp", f"{target.folder}/guest1.qmp"])
        self.addCleanup(self.daemon.kill)
        lib.wait_until(lambda: self.b.listens(PORT) or not self.daemon.running(), "rdmamigd listens")
        self.assertTrue(self.daemon.running(), self.daemon.output)
        return source, target

    def send(self, source, *options):
        return self.a.start([lib.RDMAMIG, "send", "--json", "--qmp", f"{source.folder}/guest1.qmp",
                             "--to", f"{self.b.address}:{PORT}", "--transport", TRANSPORT, *DEVICE, "--suspend",
                             "--keep-source", "--downtime-limit", "20000", *options])

    def events(self, send, name):
        return [event for line in send.output.splitlines() if line.startswith("{") and line.endswith("}")
                and (event := json.loads(line))["event"] == name]

    def move(self, source, target, *options):
        """Moves the guest and compares all memory; then it counts on in b."""
        send = self.send(source, *options)
        status, output = send.wait(300)
        self.assertEqual(status, lib.DONE, f"{output}\n{self.daemon.output}")
        result = self.events(send, "result")[0]
        self.assertEqual((result["owner"], result["transport"]), ("destination", TRANSPORT))
        there, here = target.digests(), source.digests()
        self.assertEqual(len(here), RAM)
        self.assertEqual([i for i in range(RAM) if here[i] != there[i]], [], "MiB that differ")
        target.qmp("cont")
        target.assert_runs()
        self.assertFalse(source.qmp("query-status")["running"])
        self.assert_counted_on(source, target)
        metrics = result["metrics"]
        print(f"# {' '.join(options)}: {metrics['total_ms']:.0f} ms, down {metrics['downtime_ms']:.0f} ms", flush=True)

    def test_move(self):
        source, target = self.set_up()
        self.move(source, target, "--channels", "2", "--chunk-size", "1M")

    @unittest.skipUnless(RDMA, "tcp pins nothing")
    def test_move_pinned(self):
        source, target = self.set_up()
        self.move(source, target, "--pin", "all")

    def test_pulled_cable(self):
        """Both ends notice, the guest goes on where it was, and once the cable is back it moves."""
        source, target = self.set_up()
        send = self.send(source, "--max-bandwidth", "2M")
        lib.wait_until(lambda: any(event["state"] == "precopy" and event["done_bytes"] > 4 << 20
                                   for event in self.events(send, "progress")) or not send.running(), "bytes move")
        self.assertTrue(send.running(), send.output)
        self.a.set_link(False)
        self.b.set_link(False)
        pulled = time.monotonic()
        status, output = send.wait(NOTICED)
        noticed = time.monotonic() - pulled
        result = self.events(send, "result")[0]
        self.assertEqual((status, result["owner"]), (lib.FAILED, "source"), output)
        source.assert_runs()
        self.assertFalse(target.qmp("query-status")["running"])
        self.a.set_link(True)
        self.b.set_link(True)
        print(f"# the source noticed after {noticed:.1f} s: {result['reason']}", flush=True)

        # The daemon must let go of the first session by itself; until then it refuses the next.
        while True:
            again = self.send(source)
            status, output = again.wait(300)
            if status == lib.DONE or time.monotonic() > pulled + NOTICED:
                break
            self.assertEqual(status, lib.REFUSED, output)
            time.sleep(1)
        self.assertEqual(status, lib.DONE, f"{output}\n{self.daemon.output}")
        self.assertEqual(source.digests(), target.digests())
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)


if __name__ == "__main__":
    try:
        harness.find_kernel()
    except harness.Unavailable as error:
        print(f"1..0 # SKIP {' '.join(str(error).split())}")
        sys.exit(0)
    sys.exit(lib.run())
