# SPDX-License-Identifier: LGPL-2.1-or-later
"""One guest, moved again and again from QEMU to QEMU, with daemons that are made to fail on the way; what the matrix and
the soak share. Its letters, over all the QEMUs that it has run in, must be one unbroken count."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from lib import LETTERS, MIB, PATIENCE, RDMAMIG, Case, Daemon, Qemu, QmpError, Send, wait_until  # noqa: E402

MEMORY = 64  # MiB
DIRTY = 9  # MiB that the guest writes to
STILL = 16, 20  # the first MiB, and how many, of what never changes again

ENDS = "done", "failed", "cancelled", "refused"


def state_of(pid):
    """The letter of a process's state; "" without one, or for a zombie."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return "" if letter == "Z" else letter


class Rig(Case):
    home = spare = None  # the QEMU with the guest, and one that waits

    def start(self):
        """A guest of its own, with nothing left of the last one."""
        for qemu in (self.home, self.spare):
            if qemu:
                self.retire(qemu)
        self.spare = None
        self.home = Qemu(self, "guest", rams=(MEMORY,), guest={"last": DIRTY * MIB})
        self.home.wait_letters(1)
        self.home.rams[0].fill(*STILL)
        self.stations = [self.home]

    @staticmethod
    def retire(qemu):
        """Its RAM goes with it: a long run has many."""
        qemu.kill()
        for ram in qemu.rams:
            Path(ram.path).unlink(missing_ok=True)

    def status(self, qemu):
        try:
            return qemu.status() if qemu.alive() else None
        except (QmpError, OSError, ValueError):  # it has ended this moment
            return None

    def waiting(self):
        """A QEMU that waits for a guest: the one that the last attempt has left, if it will do."""
        if self.spare is None or self.status(self.spare) != "inmigrate":
            if self.spare:
                self.retire(self.spare)
            self.spare = Qemu(self, "guest", incoming=True, rams=(MEMORY,))
        return self.spare

    def running(self, *qemus):
        return [qemu for qemu in qemus if self.status(qemu) == "running"]

    def at_most_one(self, *qemus):
        found = self.running(*qemus)
        self.assertLessEqual(len(found), 1, "two guests run")
        return found

    # ---- processes and journals ----

    def ours(self):
        """Programs of the project with this test's state folder: {pid: name}."""
        mark, found = f"RDMAMIG_STATE_DIR={self.folder}/state".encode(), {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = (path / "comm").read_text().strip()
                if name.startswith("rdmamig") and mark in (path / "environ").read_bytes().split(b"\0"):
                    if state_of(path.name):
                        found[int(path.name)] = name
        return found

    def guardians(self):
        return [pid for pid, name in self.ours().items() if name == "rdmamig-guard"]

    def sessions(self, side):
        folder = self.folder / "state" / "journal" / side
        return {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.exists() else set()

    def journalled(self, side, session):
        """The last state on record, or None."""
        path = self.folder / "state" / "journal" / side / session
        lines = path.read_text().splitlines() if path.exists() else []
        states = [record["state"] for record in map(json.loads, lines) if "state" in record]
        return states[-1] if states else None

    def resolve(self, session):
        done = subprocess.run([RDMAMIG, "resolve", session, "--json"], env=self.env, text=True, capture_output=True,
                              timeout=2 * PATIENCE)
        return done.returncode, done.stdout + done.stderr

    def wake(self, *processes):
        """Those that a fault has stopped, after a while."""
        for process in processes:
            if state_of(process.pid) == "T":
                since = self.stopped_since.setdefault(process.pid, time.monotonic())
                if time.monotonic() - since > 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGCONT)

    # ---- what is true afterwards ----

    def assert_still(self, a, b):
        """What the guest does not write to is the same in both."""
        first, count = STILL
        for mib in range(first, MEMORY):
            self.assertEqual(a.rams[0].read(mib * MIB, MIB), b.rams[0].read(mib * MIB, MIB), f"MiB {mib} differs")

    def settle_in(self, target):
        """The guest runs, at one place: that is its home from now on. Returns "moved" or "rolled back"."""
        [runs] = self.at_most_one(self.home, target)
        if moved := runs is target:
            self.assert_still(self.home, target)
            self.retire(self.home)
            self.home, self.spare = target, None
            self.stations.append(target)
        else:
            runs.assert_left_alone()
        runs.assert_runs()
        self.assert_count()
        return "moved" if moved else "rolled back"

    def assert_count(self):
        self.assert_counted_on(*self.stations)
        if len(self.stations) > 40:  # start anew rather than read ever longer logs
            text = "".join(qemu.serial() for qemu in self.stations)
            self.assertEqual(text[0], "A")
            self.assertEqual(set(text[1:]) - set(LETTERS), set())

    def move_on(self):
        """The next attempt, without a fault: it passes."""
        target = self.waiting()
        daemon = Daemon(self, "--qmp", target.path)
        send = Send(self, self.home, daemon, "--verify")
        code, result = send.finish()
        self.assertEqual(code, 0, f"the next attempt\n{send.explain()}")
        self.assertEqual(self.settle_in(target), "moved")
        daemon.kill(signal.SIGTERM)
        wait_until(lambda: not self.ours(), f"nothing of ours is left: {self.ours()}", PATIENCE)

    def free(self, session, daemon, target):
        """What an operator does: rdmamigd is started again if it is dead, and `resolve` called until the source's side is
        settled. Returns the daemon."""
        if not daemon.alive():
            daemon = Daemon(self, "--qmp", target.path, port=daemon.port)
        said = []

        def settled():
            said.append(self.resolve(session))
            return self.journalled("source", session) in ENDS and len(self.at_most_one(self.home, target)) == 1
        wait_until(settled, f"rdmamig resolve settles it: {said}", PATIENCE)
        return daemon
