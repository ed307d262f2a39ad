#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cancel in each state of a session, in each way: it ends within a bound, everything is as it was found, and the next
attempt passes. RDMAMIG_MATRIX=full tries each way in each state; else two of them."""
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lib import (CANCELLED, DONE, FAILED, MIB, PATIENCE, RDMAMIG, REFUSED, Case, Daemon, Qemu, Send, run, wait_until)
from peers import Proxy

BOUND = PATIENCE / 3
FULL = os.environ.get("RDMAMIG_MATRIX") == "full"

# What holds a session in a state: a message of the destination's that is swallowed, a fault point, options, nobody who
# answers. The state is the one that the session reports.
HOLDS = {
    "connecting": {"unanswered": True},
    "preflight": {"swallow": "accept"},
    "attaching": {"fault": "state-attaching=1500"},
    "pinning": {"swallow": "registered", "options": ("--pin", "all"), "state": "precopy"},
    "precopy": {"options": ("--max-bandwidth", "5M")},
    "registering": {"swallow": "registered", "state": "precopy"},
    "round_end": {"swallow": "round-end-ok", "state": "precopy"},
    "switchover": {"swallow": "state-ok"},
    "loading": {"swallow": "prepared", "state": "switchover"},
    "prepared": {"fault": "switchover-prepared=1500"},
    "committed": {"fault": "switchover-commit=1500"},
}
WAYS = ("verb", "SIGINT", "SIGTERM", "twice", "peer", "SIGHUP")


class Cancel(Case):
    version = "10.0"

    def rdmamig(self, *arguments):
        return subprocess.run([RDMAMIG, *arguments], env=self.env, capture_output=True, text=True, timeout=PATIENCE)

    # ---- as everything was found ----

    def leftovers(self):
        """What a session may leave: our processes beside the daemon, files in the run folder, descriptors, tasks, settings."""
        ours = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (path / "environ").read_bytes().split(b"\0")
                program = os.path.basename(os.readlink(path / "exe"))
                if f"RDMAMIG_STATE_DIR={self.env['RDMAMIG_STATE_DIR']}".encode() in variables and program.startswith("rdmamig"):
                    ours.append((program, int(path.name)))
        descriptors = {qemu.name: len(os.listdir(f"/proc/{qemu.pid}/fd")) for qemu in (self.source, self.daemon) if qemu.alive()}
        return {"processes": ours, "run": sorted(os.listdir(self.env["RDMAMIG_RUN_DIR"])), **descriptors,
                "capabilities": self.source.qmp("query-migrate-capabilities"),
                "parameters": self.source.qmp("query-migrate-parameters")}

    def assert_as_found(self, found):
        differs = lambda now: {key: (found[key], value) for key, value in now.items() if found[key] != value}
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not differs(self.leftovers()), "all is as it was", BOUND)
        self.assertEqual(differs(self.leftovers()), {}, "as it was, as it is")
        self.source.assert_runs()
        self.source.assert_left_alone()
        self.assert_counted_on(self.source)

    # ---- the rig ----

    def fresh(self):
        """A daemon and a waiting QEMU; those that are left from the last attempt, if they will do."""
        if not self.target or not self.target.alive():
            self.target, self.daemon = Qemu(self, "target", incoming=True, rams=(64,)), self.daemon and self.daemon.kill()
        if not self.daemon or not self.daemon.alive():
            self.daemon = Daemon(self, "--qmp", self.target.path)
            self.warm_up()

    def warm_up(self):
        """Pools and caches that the first session of a process makes once."""
        self.assertEqual(Send(self, self.source, self.daemon, "--dry-run").finish()[0], DONE)

    def nobody_answers(self):
        """An address whose queue of connections is full, so that the kernel drops what else comes."""
        server = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(server.close)
        for _ in range(4):
            filler = socket.socket()
            self.addCleanup(filler.close)
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(server.getsockname())
        return "127.0.0.1:%d" % server.getsockname()[1]

    def hold(self, name, unanswered=False, swallow=None, fault=None, options=(), state=None):
        """A session in that state."""
        to, seen = self.daemon, lambda: True
        if unanswered:
            to = self.nobody_answers()
        elif swallow:
            to = Proxy(self, self.daemon, lambda _, message: None if message["type"] == swallow else message)
            seen = lambda: any(message["type"] == swallow for _, message in to.seen)
        send = Send(self, self.source, to.address if swallow else to, *options, "--keep-source",
                    env={"RDMAMIG_FAULT": fault} if fault else None)
        send.wait_state(state or name)
        wait_until(seen, f"{swallow} is swallowed\n{send.stderr()}")
        return send

    def strike(self, way, send):
        session = send.events[0]["session"]
        if way == "verb":
            self.assertEqual(self.rdmamig("cancel", session).returncode, 0)
        elif way == "twice":
            send.kill(signal.SIGINT)
            self.rdmamig("cancel", session)
            send.kill(signal.SIGTERM)
        elif way == "peer":
            self.daemon.popen.send_signal(signal.SIGTERM)
        else:
            send.kill(getattr(signal, way))

    def cancel(self, name, way):
        self.fresh()
        found = self.leftovers()
        if way == "peer":
            found["processes"] = []
        send = self.hold(name, **HOLDS[name])
        begin = time.monotonic()
        self.strike(way, send)
        code, result = send.finish()
        took = time.monotonic() - begin
        print(f"# {self.id()}: {way}: {result['outcome']}, {result['reason']} after {took:.2f} s")
        self.assertLess(took, BOUND)
        expected = (CANCELLED,) if way != "peer" else (CANCELLED, FAILED, REFUSED)
        self.assertIn(code, expected, send.explain())
        self.assertEqual(result["owner"], "source")
        if way == "peer":
            self.assertEqual(self.daemon.popen.wait(BOUND), 0, self.daemon.output())
        elif name in ("loading", "prepared"):
            wait_until(lambda: not self.target.alive(), "the burnt QEMU is ended", BOUND)
        self.assert_as_found(found)
        self.assertEqual(self.rdmamig("cancel", result["session"]).returncode, 1, "cancelled after the end")

    def in_state(self, name, ways):
        self.source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        self.source.wait_letters()
        self.source.rams[0].fill(16, 20)
        self.target = self.daemon = None
        for way in ways:
            with self.subTest(way=way):
                self.cancel(name, way)
        self.fresh()
        wait_until(lambda: Send(self, self.source, self.daemon, "--dry-run").finish()[0] == 0, "the daemon is free", BOUND)
        self.move(self.source, self.target, self.daemon)

    # ---- what is no cancel ----

    def test_committed(self):
        """It comes too late, in each way of the source's."""
        for way in WAYS if FULL else ("twice", "SIGHUP"):
            if way != "peer":  # test-handover: test_daemon_stopped_with_commit_on_the_way
                with self.subTest(way=way):
                    self.source, self.target, self.daemon = self.pair(rams=(64,), guest={"last": 5 * MIB})
                    send = self.hold("committed", **HOLDS["committed"])
                    self.strike(way, send)
                    self.assertEqual(send.finish()[0], DONE, send.explain())
                    self.target.assert_runs()
                    self.assertFalse(self.source.qmp("query-status")["running"])
                    self.assert_counted_on(self.source, self.target)

    def test_lost_terminal(self):
        """SIGHUP, in pre-copy and while the guest stands still."""
        for name, options in (("precopy", ("--max-bandwidth", "20M")), ("prepared", ())):
            self.source, self.target, self.daemon = self.pair(rams=(64,), guest={"last": 5 * MIB})
            self.source.rams[0].fill(16, 20)
            send = self.hold(name, **{**HOLDS[name], "options": options})
            self.strike("SIGHUP", send)
            self.assertEqual(send.finish()[0], DONE, send.explain())
            self.assert_counted_on(self.source, self.target)


def add_cases():
    ways = [way for way in WAYS if way != "SIGHUP"]
    for n, name in enumerate(name for name in HOLDS if name != "committed"):
        here = [way for way in ways if way != "peer" or name != "connecting"]
        chosen = here if FULL else [here[n % len(here)], here[(n + 2) % len(here)]]
        setattr(Cancel, f"test_{name}", lambda self, name=name, chosen=chosen: self.in_state(name, chosen))


add_cases()

if __name__ == "__main__":
    sys.exit(run())
