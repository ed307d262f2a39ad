#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fields of log lines in the systemd journal: those of both programs, and of their guardians. The journal is ours, in a
mount namespace of this program's own, in which /run is empty but for it."""
import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from lib import (DONE, FAILED, MIB, PATIENCE, RDMAMIG, REFUSED, ROOT, Case, Daemon, Qemu, Send, run, wait_until)

FOLDER = Path("/run/systemd/journal")
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000

# Executes a program with its stderr connected to the journal, as systemd does for a unit.
WRAPPER = (sys.executable, "-c", "import os, socket, sys\n"
           f"s = socket.socket(socket.AF_UNIX); s.connect('{FOLDER}/stdout'); os.dup2(s.fileno(), 2)\n"
           "os.execv(sys.argv[1], sys.argv[1:])")


def own_mounts():
    """A /run of our own; all that this process starts from now on sees it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0 or \
            libc.mount(b"none", b"/run", b"tmpfs", 0, b"mode=0755") != 0:
        print(f"1..0 # SKIP no mount namespace: {os.strerror(ctypes.get_errno())}")
        sys.exit(77)
    FOLDER.mkdir(parents=True)


class Journal:
    """journald, as far as it listens. Its entries are dicts, with the sender's process as _PID."""

    def __init__(self, case):
        self.entries, self.reading = [], threading.Event()
        self.reading.set()
        self.stdout = socket.socket(socket.AF_UNIX)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for name, one in (("stdout", self.stdout), ("socket", self.socket)):
            (FOLDER / name).unlink(missing_ok=True)
            one.bind(str(FOLDER / name))
            case.addCleanup(one.close)
        self.stdout.listen(16)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            self.reading.wait()
            try:
                data, control, _, _ = self.socket.recvmsg(1 << 18, 256)
            except OSError:
                return
            entry = self._parse(data)
            entry["_PID"] = struct.unpack("iII", control[0][2])[0]
            self.entries.append(entry)

    def _parse(self, data):
        """The native protocol, without its binary form, which nothing of ours needs."""
        entry = {}
        assert data.endswith(b"\n"), data
        for line in data[:-1].split(b"\n"):
            key, separator, value = line.partition(b"=")
            assert separator and key.decode().replace("_", "A").isalnum() and key.isupper() and key[:1] != b"_", data
            assert key not in entry, data
            entry[key.decode()] = value.decode()
        return entry

    def find(self, **fields):
        return [entry for entry in list(self.entries) if all(entry.get(key) == value for key, value in fields.items())]

    def wait(self, **fields):
        return wait_until(lambda: self.find(**fields), f"an entry {fields}; there are {self.entries}")[0]


def event_ids():
    text = (ROOT / "src/common/log-event.h").read_text()
    return {line.split("(")[1].split(",")[0].lower(): line.split('"')[1] for line in text.splitlines() if line.startswith("    X(")}


class Fields(Case):
    version = "10.0"

    def setUp(self):
        super().setUp()
        self.journal = Journal(self)
        self.ids = event_ids()

    def pair(self, rams=(64,), target_rams=None, env=None):
        source = Qemu(self, "source", rams=rams, guest={"last": 5 * MIB}, guest_name="web1")
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=target_rams or rams, guest_name="web1")
        return source, target, Daemon(self, "--qmp", target.path, wrapper=WRAPPER, env=env)

    def start(self, source, daemon, *options):
        return Send(self, source, daemon, *options, wrapper=WRAPPER)

    def assert_fields(self, entry, session, **fields):
        wanted = {"SESSION": session, "GUEST": "web1", **fields}
        self.assertEqual({key: entry.get(key) for key in wanted}, wanted, entry)

    def test_moved_and_refused(self):
        source, target, daemon = self.pair()
        send = self.start(source, daemon)
        status, result = send.finish()
        self.assertEqual(status, DONE, f"{send.explain()}\n{self.journal.entries}")
        session = result["session"]
        here = {"_PID": daemon.pid, "SYSLOG_IDENTIFIER": "rdmamigd"}
        accepted = self.journal.wait(MESSAGE_ID=self.ids["accepted"])
        self.assert_fields(accepted, session, PRIORITY="5", **here)
        self.assertRegex(accepted["PEER"], r"^127\.0\.0\.1:\d+$")
        moved = self.journal.wait(MESSAGE_ID=self.ids["moved"], SYSLOG_IDENTIFIER="rdmamigd")
        self.assert_fields(moved, session, REASON="none", PEER=accepted["PEER"], **here)
        there = self.journal.wait(MESSAGE_ID=self.ids["moved"], SYSLOG_IDENTIFIER="rdmamig")
        self.assert_fields(there, session, REASON="none", PEER=daemon.address, _PID=send.pid, GLIB_DOMAIN="rdmamig")
        # Nothing that the daemon said from the one to the other was anybody else's.
        lines = self.journal.find(_PID=daemon.pid)
        between = lines[lines.index(accepted):lines.index(moved) + 1]
        self.assertGreater(len(between), 2)
        for entry in between:
            self.assert_fields(entry, session)
        listening = next(entry for entry in lines if entry["MESSAGE"].startswith("listening"))
        self.assertNotIn("SESSION", listening)
        self.assertEqual(daemon.output(), "", "a line that the journal takes is written there only")

        smaller = Qemu(self, "smaller", rams=(32,), guest={"last": 5 * MIB}, guest_name="web1")
        smaller.wait_letters()
        fresh = Qemu(self, "fresh", incoming=True, rams=(64,), guest_name="web1")
        send = self.start(smaller, Daemon(self, "--qmp", fresh.path, wrapper=WRAPPER))
        status, result = send.finish()
        self.assertEqual(status, REFUSED)
        for name in ("rdmamig", "rdmamigd"):
            entry = self.journal.wait(MESSAGE_ID=self.ids["refused"], SYSLOG_IDENTIFIER=name)
            self.assert_fields(entry, result["session"], REASON="guest-mismatch", PRIORITY="4")
            self.assertIn("PEER", entry)

    def test_guardians(self):
        """Of either end, of daemons that are killed; and the other end's own words on it."""
        source, target, daemon = self.pair()
        send = self.start(source, daemon, "--max-bandwidth", "10M")
        session = send.wait_precopy()["session"]
        daemon.kill()
        status, result = send.finish()
        self.assertEqual(status, FAILED)
        gone = self.journal.wait(MESSAGE=f"session {session}: its daemon has died")
        self.assert_fields(gone, session, SYSLOG_IDENTIFIER="rdmamigd")
        self.assertNotEqual(gone["_PID"], daemon.pid)
        self.assertRegex(gone["PEER"], r"^127\.0\.0\.1:\d+$")
        end = self.journal.wait(MESSAGE_ID=self.ids["failed"], SYSLOG_IDENTIFIER="rdmamigd")
        self.assert_fields(end, session, REASON="internal", _PID=gone["_PID"], PEER=gone["PEER"])
        end = self.journal.wait(MESSAGE_ID=self.ids["failed"], SYSLOG_IDENTIFIER="rdmamig")
        self.assert_fields(end, session, REASON=result["reason"], _PID=send.pid)

        self.journal.entries.clear()
        daemon = Daemon(self, "--qmp", target.path, wrapper=WRAPPER)
        send = self.start(source, daemon, "--max-bandwidth", "10M")
        session = send.wait_precopy()["session"]
        send.kill()
        end = self.journal.wait(MESSAGE_ID=self.ids["failed"], SYSLOG_IDENTIFIER="rdmamig")
        self.assert_fields(end, session, REASON="internal", PEER=daemon.address)
        self.assertNotEqual(end["_PID"], send.pid)
        end = self.journal.wait(MESSAGE_ID=self.ids["failed"], SYSLOG_IDENTIFIER="rdmamigd")
        self.assert_fields(end, session, REASON="peer-lost", _PID=daemon.pid)
        source.assert_runs()

    def test_background(self):
        """Without a stderr that anybody reads, and all the same with fields."""
        source, target, daemon = self.pair()
        done = subprocess.run([RDMAMIG, "send", "--background", "--qmp", source.path, "--to", daemon.address], env=self.env,
                              capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, DONE, done.stderr)
        entry = self.journal.wait(MESSAGE_ID=self.ids["moved"], SYSLOG_IDENTIFIER="rdmamig")
        self.assert_fields(entry, done.stdout.strip(), REASON="none", PEER=daemon.address, SYSLOG_FACILITY="3")

    def test_a_journal_that_does_not_read(self):
        """Nobody waits for it: the guest moves, and lines are lost."""
        self.journal.reading.clear()
        self.addCleanup(self.journal.reading.set)
        flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        flood.setblocking(False)
        self.addCleanup(flood.close)
        def fill():
            try:
                while True:
                    flood.sendto(b"MESSAGE=full\n", str(FOLDER / "socket"))
            except BlockingIOError:
                return True
        fill()
        time.sleep(0.1)  # the reader was in its last recvmsg()
        fill()
        source, target, daemon = self.pair()
        send = self.start(source, daemon)
        status, result = send.finish()
        self.assertEqual(status, DONE, send.explain())
        self.assertEqual(self.journal.find(SYSLOG_IDENTIFIER="rdmamigd"), [])
        target.assert_runs()
        self.journal.reading.set()
        self.journal.wait(MESSAGE="full")


if __name__ == "__main__":
    if os.geteuid() == 0:
        own_mounts()
    sys.exit(run())
