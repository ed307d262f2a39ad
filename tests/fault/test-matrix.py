#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every fault point, with everything that can happen there, at the end that gets there (README.md). By default a fixed
sample; RDMAMIG_MATRIX=full: all. Arguments: parts of test names, then of "END POINT ACTION".

RDMAMIG_SHARE=I/N takes every Nth case from the Ith on; RDMAMIG_FAULT_RESULTS=FILE appends a line of JSON for each case.
"""
import json
import os
import random
import signal
import socket
import sys
import threading
import time

from points import matrix
from rig import Rig, state_of
from lib import PATIENCE, Daemon, Send, free_port, run, wait_until

FULL = os.environ.get("RDMAMIG_MATRIX") == "full"
SAMPLE = 29  # by default, every so many
CANCEL_AFTER = 8  # s after the fault: a message that was lost on a connection that lives leaves it to the operator
ACTIONS = {"stall": "1500"}  # ms; the others are called as they are
SLOW = "--max-bandwidth", "10M", "--downtime-limit", "2s"

# The cases after which the guest is held: it runs nowhere until `rdmamig resolve`. `commit` was sent, and the only one who
# can say what became of it is dead. Its guardian has aborted, but it answers no queries.
DEAD = "exit", "kill"
HELD = {("destination", point, action) for action in DEAD
        for point in ("receive-commit", "destination-commit", "send-failed", "state-failed")}


# How a migration gets to a point that a good one passes by: faults of either end beside the one that is tried, and deeds.
WAYS = {
    "refuse": {"target": "none"},
    "failed": {"daemon": "journal-sync=committed"},
    "query": {"source": "receive-running=short,query-for=3000"},
    "doubtful": {"source": "receive-running=short,query-for=2000", "daemon": "send-running=kill"},
    "cancelled": {"deed": "cancel"},
    "terminated": {"deed": "terminate"},
}
WAY_OF = {"state-refused": "refuse", "send-refuse": "refuse", "receive-refuse": "refuse",
          "state-failed": "failed", "send-failed": "failed", "receive-failed": "failed",
          "send-query": "query", "receive-query": "query", "send-fate": "query", "receive-fate": "query",
          "state-doubtful": "doubtful", "state-cancelled": "cancelled",
          ("source", "send-cancel"): "cancelled", ("destination", "receive-cancel"): "cancelled",
          ("destination", "send-cancel"): "terminated", ("source", "receive-cancel"): "terminated"}


class Stranger:
    """A destination that answers each line with the same one, for the points of `error` at the source."""

    def __init__(self, answer):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        connection, _ = self.server.accept()
        for line in connection.makefile("rb"):
            message = json.loads(line)
            if message["type"] == "keep-alive":
                continue
            try:
                connection.sendall(self.answer(message))
            except OSError:
                return


class Matrix(Rig):
    filters = ()

    def cases(self, end, kinds):
        every = matrix()
        random.Random(1).shuffle(every)  # so that a share, or a run that was broken off, has some of everything
        if FULL:
            first, step = (int(part) for part in os.environ.get("RDMAMIG_SHARE", "0/1").split("/"))
        else:
            first, step = 0, SAMPLE
        chosen = every if self.filters else every[first::step]
        return [case for case in chosen if case[0] == end and case[1].startswith(kinds)
                and all(part in " ".join(case) for part in self.filters)]

    def try_all(self, end, *kinds):
        for case in self.cases(end, kinds):
            with self.subTest(case=" ".join(case)):
                begin = time.monotonic()
                self.outcome = "FAILED"
                try:
                    if self.home is None:
                        self.start()
                    self.try_one(*case)
                except BaseException:
                    self.outcome, self.home = "FAILED", self.give_up()
                    raise
                finally:
                    print(f"# {self.version} {' '.join(case)}: {self.outcome}, {time.monotonic() - begin:.1f} s", flush=True)
                    self.note(case)

    def note(self, case):
        if path := os.environ.get("RDMAMIG_FAULT_RESULTS"):
            with open(path, "a") as file:
                file.write(json.dumps([*case, self.outcome, self.version]) + "\n")

    def give_up(self):
        for process in self.processes:
            process.kill(signal.SIGCONT)
            process.kill()
        for pid in self.ours():
            os.kill(pid, signal.SIGKILL)
        self.spare = None

    def try_one(self, end, point, action):
        self.stopped_since = {}
        if point in ("send-error", "receive-error"):
            self.try_error(end, point, action)
        else:
            self.try_attempt(end, point, action)
        self.move_on()

    def faults(self, end, point, action, way):
        """The environments of source and daemon."""
        faults = {side: [way[side]] if side in way else [] for side in ("source", "daemon")}
        faults["source" if end == "source" else "daemon"].append(f"{point}={ACTIONS.get(action, action)}")
        return [{"RDMAMIG_FAULT": ",".join(faults[side])} if faults[side] else None for side in ("source", "daemon")]

    def try_attempt(self, end, point, action):
        way = WAYS.get(WAY_OF.get(point) or WAY_OF.get((end, point)), {})
        source_env, daemon_env = self.faults(end, point, action, way)
        target, before = self.waiting(), self.sessions("source")
        qmp = target.path if "target" not in way else self.folder / "no-such-qmp"
        daemon = Daemon(self, "--qmp", qmp, env=daemon_env)
        send = Send(self, self.home, daemon, "--verify", *(SLOW if "deed" in way else ()), env=source_env)
        self.attend(send, daemon, target, way.get("deed"), point, action)
        text = send.stderr() + daemon.output()
        self.assertIn(f"fault point {point}: ", text, f"it was not reached\n{send.explain()}")
        wait_until(lambda: not self.guardians(), "no guardian is left", PATIENCE)
        new = self.sessions("source") - before
        held = not self.settles(target)
        self.assertEqual(held, (end, point, action) in HELD, f"held: {held}\n{send.explain()}")
        unsettled = [session for session in new if self.journalled("source", session) in ("committed", "doubtful")]
        for session in unsettled:
            daemon = self.free(session, daemon, target)
        ran = self.settle_in(target)
        self.outcome = ("held, then " if held else "") + ran + (", after resolve" if unsettled and not held else "")
        if self.outcome == "rolled back" and action in ("stall", "stop", "drop") and send.popen.returncode == 0:
            self.fail(f"rdmamig says that it moved\n{send.explain()}")
        daemon.kill(signal.SIGTERM)
        wait_until(lambda: not self.ours(), f"no process is left: {self.ours()}", PATIENCE)

    def attend(self, send, daemon, target, deed, point, action):
        """Until `rdmamig send` has ended: never two guests, and those that were stopped are woken."""
        begin, reached, signalled = time.monotonic(), None, False
        while send.popen.poll() is None:
            self.at_most_one(self.home, target)
            self.wake(*filter(None, (send, daemon)))
            now = time.monotonic()
            self.assertLess(now - begin, 2 * PATIENCE, f"rdmamig does not end\n{send.explain()}")
            if reached is None and f"fault point {point}: " in send.stderr() + (daemon.output() if daemon else ""):
                reached = now
            precopy = any(event.get("state") == "precopy" for event in list(send.events))
            if deed and precopy and not signalled:
                (send if deed == "cancel" else daemon).kill(signal.SIGINT)
                signalled = True
            elif action == "drop" and reached and now - reached > CANCEL_AFTER and not signalled:
                send.kill(signal.SIGINT)
                signalled = True
            time.sleep(0.05)
        send.reader.join(PATIENCE)
        end = time.monotonic() + 5  # the daemon may have been stopped just before
        while daemon and state_of(daemon.pid) == "T" and time.monotonic() < end:
            self.wake(daemon)
            time.sleep(0.1)

    def settles(self, target):
        """Whether the guest runs somewhere, without anybody's help, before long."""
        end = time.monotonic() + 4
        while not (found := self.at_most_one(self.home, target)) and time.monotonic() < end:
            time.sleep(0.1)
        return bool(found)

    def try_error(self, end, point, action):
        """`error` is for a peer that breaks the rules."""
        env = {"RDMAMIG_FAULT": f"{point}={ACTIONS.get(action, action)}"}
        if end == "destination":
            process = Daemon(self, "--qmp", self.waiting().path, env=env)
            with socket.create_connection(("127.0.0.1", process.port)) as line:
                line.sendall(b"{nonsense}\n" if point == "send-error"
                             else b'{"type":"error","reason":"protocol","detail":"no"}\n')
                wait_until(lambda: f"fault point {point}" in process.output(), f"{point} is reached")
            if action == "stop":
                time.sleep(2.5)
                self.stopped_since[process.pid] = 0
                self.wake(process)
            process.kill(signal.SIGTERM)
        else:
            def answer(message):
                return (b"{nonsense}\n" if point == "send-error"
                        else json.dumps({"type": "error", "reply": message.get("id"), "reason": "protocol"}).encode() + b"\n")
            process = Send(self, self.home, Stranger(answer).address, env=env)
            self.attend(process, None, self.waiting(), None, point, action)
            self.assertIn(f"fault point {point}", process.stderr())
        self.outcome = self.settle_in(self.waiting())

    def test_source_states(self):
        self.try_all("source", "state-")

    def test_source_places(self):
        self.try_all("source", "switchover-", "save-")

    def test_source_sends(self):
        self.try_all("source", "send-")

    def test_source_receives(self):
        self.try_all("source", "receive-")

    def test_destination_states(self):
        self.try_all("destination", "state-")

    def test_destination_places(self):
        self.try_all("destination", "destination-")

    def test_destination_sends(self):
        self.try_all("destination", "send-")

    def test_destination_receives(self):
        self.try_all("destination", "receive-")


if __name__ == "__main__":
    Matrix.version = os.environ.get("RDMAMIG_FAULT_QEMU", "7.2")
    Matrix.filters = tuple(sys.argv[2:])
    del sys.argv[2:]
    sys.exit(run())
