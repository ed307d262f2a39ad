#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A network that swallows packets, in both directions or in one, and one that is merely slow.

This program runs in a network namespace of its own, and the daemons with it; each source is in another one, behind a veth
pair. Packets are dropped where they arrive, so that whoever sends them learns nothing. What is documented: a peer is given up
after 10 s of silence, and a second more (docs/protocol.md). The times are printed; what is asserted is BOUND, with patience.
RDMAMIG_MATRIX=full adds two cases.
"""
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from lib import (CANCELLED, CLEANUP, DONE, DOUBTFUL, FAILED, MIB, PATIENCE, RDMAMIG, Case, Daemon, Process, Qemu, Send, run,
                 wait_until)

BOUND = 10 + PATIENCE / 4
BOTH, TO_DESTINATION, TO_SOURCE = ("destination", "source"), ("destination",), ("source",)
DIRECTIONS = (BOTH, TO_DESTINATION, TO_SOURCE)
SLOWLY = ("--max-bandwidth", "2M")
CLONE_NEWNET = 0x40000000


def command(*words, stdin=None):
    done = subprocess.run(list(map(str, words)), input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class Rig:
    """A guest, a source's namespace, a link to ours, a daemon at our end of it, and a QEMU that waits."""
    count = 0

    def __init__(self, case, daemon_fault=None, **guest):
        for tool in ("ip", "nft", "tc"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} is not installed")
        Rig.count += 1
        self.case, self.dropped, self.device = case, (), f"there{Rig.count}"
        holder = Process(case, f"namespace{Rig.count}", ["unshare", "--net", "sleep", "infinity"])
        self.inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a namespace")
        here = f"10.209.{Rig.count}.1"
        command("ip", "link", "add", self.device, "type", "veth", "peer", "name", "here", "netns", holder.pid)
        command("ip", "address", "add", f"{here}/24", "dev", self.device)
        command("ip", "link", "set", self.device, "up")
        command(*self.inside, "ip", "address", "add", f"10.209.{Rig.count}.2/24", "dev", "here")
        command(*self.inside, "ip", "link", "set", "here", "up")
        self.guest = {"last": MIB + 16 * 4096, "pace": 2, **guest}
        self.source = Qemu(case, "source", rams=(64,), guest=self.guest)
        self.source.wait_letters()
        self.source.rams[0].fill(16, 40)
        self.target = Qemu(case, "target", incoming=True, rams=(64,))
        self.daemon = Daemon(case, "--qmp", self.target.path, host=here,
                             env={"RDMAMIG_FAULT": daemon_fault} if daemon_fault else None)

    def begin(self, *options, fault=None):
        self.send = Send(self.case, self.source, self.daemon, *options, wrapper=self.inside,
                         env={"RDMAMIG_FAULT": fault} if fault else None)

    def drop(self, towards):
        """From now on, what goes towards these ends does not arrive."""
        rules = "table inet {0} {{\nchain arrive {{\ntype filter hook input priority 0;\niifname {0} drop;\n}}\n}}\n"
        if "destination" in towards:
            command("nft", "-f", "-", stdin=rules.format(self.device))
        if "source" in towards:
            command(*self.inside, "nft", "-f", "-", stdin=rules.format("here"))
        self.dropped, self.since = towards, time.monotonic()

    def heal(self):
        if "destination" in self.dropped:
            command("nft", "delete", "table", "inet", self.device)
        if "source" in self.dropped:
            command(*self.inside, "nft", "delete", "table", "inet", "here")
        self.dropped = ()

    def throttle(self, rate, latency):
        for words in ([*self.inside, "tc", "qdisc", "add", "dev", "here"], ["tc", "qdisc", "add", "dev", self.device]):
            command(*words, "root", "tbf", "rate", rate, "burst", "32k", "latency", latency)

    def finish(self, *expected):
        """The source's end, within the bound."""
        code, result = self.send.finish()
        took = time.monotonic() - self.since
        print(f"# {self.case.id()}: dropped towards {' and '.join(self.dropped)}: {result['reason']} after {took:.1f} s")
        self.case.assertIn(code, expected, self.send.explain())
        return code, result, took

    def wait_destination_ends(self):
        wait_until(lambda: "ended without the guest" in self.daemon.output(), f"the destination ends\n{self.daemon.output()}",
                   BOUND)
        print(f"# {self.case.id()}: the destination ended within {time.monotonic() - self.since:.1f} s")

    def resolve(self, expect):
        session = self.send.events[0]["session"]
        done = subprocess.run([*self.inside, RDMAMIG, "resolve", session], env=self.case.env, capture_output=True, text=True,
                              timeout=2 * PATIENCE)
        self.case.assertEqual(done.returncode, expect, done.stdout + done.stderr)

    def assert_source_has_it(self):
        self.source.assert_runs()
        self.source.assert_left_alone()
        self.case.assert_counted_on(self.source)
        self.case.assertTrue(self.daemon.alive(), self.daemon.output())

    def assert_next_attempt_passes(self):
        """Over the same link; into a new QEMU if the old one is burnt."""
        if not self.target.alive():
            self.daemon.kill()
            self.target = Qemu(self.case, "again", incoming=True, rams=(64,))
            self.daemon = Daemon(self.case, "--qmp", self.target.path, host=self.daemon.host)
        self.begin("--keep-source", "--suspend")
        code, result = self.send.finish()
        self.case.assertEqual(code, DONE, self.send.explain())
        self.case.assert_equal_memory(self.source, self.target)
        self.target.qmp("cont")
        self.target.assert_runs()
        self.case.assert_counted_on(self.source, self.target)


class BlackHole(Case):
    version = "10.0"

    def test_in_precopy(self):
        rigs = [Rig(self) for _ in DIRECTIONS]
        for rig in rigs:
            rig.begin(*SLOWLY)
        for rig, direction in zip(rigs, DIRECTIONS):
            rig.send.wait_precopy()
            rig.drop(direction)
        for rig in rigs:
            _, result, took = rig.finish(FAILED)
            self.assertIn(result["reason"], ("peer-timeout", "peer-lost", "transport"), rig.send.explain())
            self.assertLess(took, BOUND)
        for rig in rigs:
            rig.wait_destination_ends()
            self.assertEqual(rig.target.status(), "inmigrate")
            rig.assert_source_has_it()
            rig.heal()
            rig.assert_next_attempt_passes()

    def test_in_switchover(self):
        """While the destination loads: the guest stands still here, and runs again within the bound; there it is ended."""
        rigs = [Rig(self, daemon_fault="destination-load=3000") for _ in DIRECTIONS]
        for rig, direction in zip(rigs, DIRECTIONS):
            rig.begin()
            wait_until(lambda: rig.source.status() == "postmigrate", "the state is saved")
            wait_until(lambda: (self.folder / "state/journal/destination").exists() and self.loading(rig), "the load begins")
            rig.drop(direction)
        for rig in rigs:
            _, result, took = rig.finish(FAILED)
            self.assertIn(result["reason"], ("peer-timeout", "peer-lost"), rig.send.explain())
            self.assertEqual(rig.source.status(), "running")
            self.assertLess(took, BOUND)
        for rig in rigs:
            rig.wait_destination_ends()
            wait_until(lambda: not rig.target.alive(), "the burnt QEMU is ended", BOUND)
            rig.assert_source_has_it()
            rig.heal()
            rig.assert_next_attempt_passes()

    def loading(self, rig):
        session = rig.send.events[0]["session"]
        return '"switchover"' in (self.folder / "state/journal/destination" / session).read_text()

    def test_commit_swallowed(self):
        """It is doubtful, and stays paused here, while there it is aborted; once the link is back, `resolve` settles it."""
        rigs = [Rig(self) for _ in DIRECTIONS]
        for rig, direction in zip(rigs, DIRECTIONS):
            rig.begin("--keep-source", fault="switchover-commit=2000,query-for=1000")
            rig.send.wait_state("committed")
            rig.drop(direction)
        for rig, direction in zip(rigs, DIRECTIONS):
            # Where `commit` gets through it counts, though no answer comes back.
            arrives = "destination" not in direction
            code, _, _ = rig.finish(DOUBTFUL)
            self.assertIn(rig.source.status(), ("postmigrate", "paused"))
            if arrives:
                rig.target.assert_runs()
            else:
                rig.wait_destination_ends()
                wait_until(lambda: not rig.target.alive(), "the burnt QEMU is ended", BOUND)
            rig.heal()
            if arrives:
                rig.resolve(DONE)
                self.assertFalse(rig.source.qmp("query-status")["running"])
                self.assert_counted_on(rig.source, rig.target)
            else:
                rig.resolve(DONE)
                rig.assert_source_has_it()
                rig.assert_next_attempt_passes()

    def test_running_swallowed(self):
        """The link goes while the destination lets the guest run: it does, whatever the source can know; nobody is told twice."""
        rigs = [Rig(self, daemon_fault="destination-committed=2000") for _ in DIRECTIONS]
        for rig, direction in zip(rigs, DIRECTIONS):
            rig.begin("--keep-source", fault="query-for=1000")
            rig.send.wait_state("committed")
            wait_until(lambda: self.committed(rig), "the destination has committed")
            rig.drop(direction)
        for rig, direction in zip(rigs, DIRECTIONS):
            # `running` may get through where only the other direction is dropped.
            code, _, _ = rig.finish(DOUBTFUL, *([DONE, CLEANUP] if "source" not in direction else []))
            rig.target.assert_runs()
            self.assertFalse(rig.source.qmp("query-status")["running"])
            rig.heal()
            if code == DOUBTFUL:
                rig.resolve(DONE)
            self.assertFalse(rig.source.qmp("query-status")["running"])
            self.assert_counted_on(rig.source, rig.target)

    def committed(self, rig):
        session = rig.send.events[0]["session"]
        return '"committed"' in (self.folder / "state/journal/destination" / session).read_text()

    def test_cancelled_meanwhile(self):
        """Nobody need wait for the bound: a cancel ends it at once at the source, and there by itself."""
        rig = Rig(self)
        rig.begin(*SLOWLY)
        rig.send.wait_precopy()
        rig.drop(BOTH)
        rig.send.kill(signal.SIGINT)
        _, _, took = rig.finish(CANCELLED)
        self.assertLess(took, BOUND)
        rig.wait_destination_ends()
        rig.assert_source_has_it()
        rig.heal()
        rig.assert_next_attempt_passes()

    def test_a_short_gap(self):
        """Shorter than the time-out: TCP mends it, and the migration goes on."""
        rig = Rig(self)
        rig.begin("--max-bandwidth", "8M", "--keep-source", "--suspend")
        rig.send.wait_precopy()
        rig.drop(BOTH)
        time.sleep(3)
        rig.heal()
        self.assertEqual(rig.send.finish()[0], DONE, rig.send.explain())
        self.assert_equal_memory(rig.source, rig.target)


class Slow(Case):
    version = "10.0"

    def test_saturated(self):
        """Full in both senses, with a short queue that drops and with one as long as seconds, for longer than the time-out: the
        keep-alives of both ends still get through."""
        rigs = [Rig(self), Rig(self)]
        for rig, latency in zip(rigs, ("50ms", "4s")):
            rig.throttle("20mbit", latency)
            rig.begin("--keep-source", "--suspend", "--downtime-limit", "2s")
        for rig in rigs:
            code, result = rig.send.finish(4 * PATIENCE)
            self.assertEqual(code, DONE, rig.send.explain())
            print(f"# {self.id()}: {result['metrics']['total_ms'] / 1000:.1f} s, {result['metrics']['sent_bytes'] >> 20} MiB")
            self.assertGreater(result["metrics"]["total_ms"], 11000, "not longer than the time-out")
            self.assert_equal_memory(rig.source, rig.target)


def own_network():
    """Before any thread or child: these inherit it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


if os.environ.get("RDMAMIG_MATRIX") != "full":  # the default run has enough to wait for
    del BlackHole.test_running_swallowed, BlackHole.test_cancelled_meanwhile

if __name__ == "__main__":
    if os.geteuid() == 0:
        own_network()
    sys.exit(run())
