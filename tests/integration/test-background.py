#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""`rdmamig send --background`: back once nothing can refuse the session any more, which goes on without us."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from lib import (CANCELLED, DONE, MIB, PATIENCE, RDMAMIG, REFUSED, USAGE, Case, Daemon, Qemu, free_port, run, wait_until)

SLOWLY = ("--max-bandwidth", "20M", "--suspend", "--keep-source")
SYSTEM_LOG = Path("/dev/log")


class SystemLog:
    """In the place of a syslog daemon, on hosts without one; elsewhere it hears nothing, and says so."""

    def __init__(self, case):
        self.lines, self.heard = [], not SYSTEM_LOG.exists()
        if not self.heard:
            print(f"# {case.id()}: {SYSTEM_LOG} is somebody else's: what is logged is not looked at")
            return
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        case.addCleanup(self.socket.close)
        case.addCleanup(SYSTEM_LOG.unlink, missing_ok=True)
        self.socket.bind(str(SYSTEM_LOG))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                self.lines.append(self.socket.recv(1 << 16).decode())
            except OSError:
                return

    def wait(self, pattern):
        if self.heard:
            wait_until(lambda: [line for line in list(self.lines) if re.search(pattern, line)], f"a line {pattern}: {self.lines}")


class Background(Case):
    def setUp(self):
        super().setUp()
        self.report = self.folder / "report.json"
        self.log = SystemLog(self)

    def command(self, source, to, *options):
        return [str(RDMAMIG), "send", "--background", "--qmp", str(source.path), "--to", to, "--report", str(self.report),
                *options]

    def sessions(self):
        """Processes of sessions of this test, by its folder in their arguments."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:2] == [b"background"] and str(self.report).encode() in words:
                found.append(int(path.name))
        return found

    def background(self, source, to, *options, status=DONE):
        """Returns (stdout, stderr), once nobody holds these any more."""
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in self.sessions()])
        done = subprocess.run(self.command(source, to, *options), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=self.env, timeout=PATIENCE)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout, done.stderr

    def rdmamig(self, *arguments):
        return subprocess.run([RDMAMIG, *arguments], env=self.env, capture_output=True, text=True, timeout=PATIENCE)

    def result(self):
        wait_until(lambda: self.report.exists() and self.report.read_text().endswith("\n"), "the report")
        wait_until(lambda: not self.sessions(), "the session's process ends")
        return json.loads(self.report.read_text())

    def small_pair(self):
        source, target, daemon = self.pair(rams=(128,), guest={"last": 5 * MIB})
        source.rams[0].fill(20, 80)
        return source, target, daemon

    def test_it_goes_on(self):
        source, target, daemon = self.small_pair()
        out, err = self.background(source, daemon.address, *SLOWLY)
        self.assertRegex(out, r"^[0-9a-f-]{36}\n$")
        session = out.strip()
        self.assertFalse(self.report.exists(), "it was waited for")
        status = json.loads(self.rdmamig("status", "--json").stdout.splitlines()[0])
        self.assertEqual((status["session"], status["state"]), (session, "precopy"))
        (pid,) = self.sessions()
        self.assertEqual(os.getsid(pid), pid)
        links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
        self.assertEqual(links, ["/dev/null"] * 3)
        os.kill(pid, signal.SIGHUP)
        result = self.result()
        self.assertEqual((result["outcome"], result["session"]), ("done", session))
        self.assert_equal_memory(source, target)
        self.assertEqual(list(Path(self.env["RDMAMIG_RUN_DIR"]).glob("send-*")), [])
        for pattern in (rf"<29>.* rdmamig\[{pid}\]: session {session}: precopy", rf"session {session}: done",
                        rf"session {session}: none; guest guest is paused on 127"):
            self.log.wait(pattern)

    def test_refused(self):
        source, target = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB}), Qemu(self, "target", incoming=True)
        source.wait_letters()
        out, err = self.background(source, Daemon(self, "--qmp", target.path).address, status=REFUSED)
        self.assertEqual(out, "")
        self.assertRegex(err, r"warning: session .*: [a-z-]+: .+; guest guest runs on ")
        self.assertEqual(self.result()["outcome"], "refused")
        out, err = self.background(source, f"127.0.0.1:{free_port()}", status=REFUSED)
        self.assertIn("peer-unreachable", err)
        source.assert_runs()
        self.log.wait("<28>.*peer-unreachable")

    def test_usage(self):
        source = Qemu(self, "source", rams=(64,))
        for options in (("--json",), ("--dry-run",), ("--chunk-size", "5")):
            out, err = self.background(source, "127.0.0.1:1", *options, status=USAGE)
            self.assertEqual(out, "")
            self.assertIn("usage", err)

    def test_cancelled_afterwards(self):
        source, target, daemon = self.small_pair()
        out, _ = self.background(source, daemon.address, *SLOWLY)
        self.assertEqual(self.rdmamig("cancel", out.strip()).returncode, 0)
        self.assertEqual(self.result()["outcome"], "cancelled")
        source.assert_runs()
        source.assert_left_alone()
        self.move(source, target, daemon)

    def waits(self):
        """Whether a session has come to its checks, by its own socket: `status` would ask the daemon, too, which is stopped."""
        for path in Path(self.env["RDMAMIG_RUN_DIR"]).glob("send-*.sock"):
            with socket.socket(socket.AF_UNIX) as status:
                status.connect(str(path))
                status.sendall(b'{"command": "status"}\n')
                return json.loads(status.makefile().readline())["state"] == "preflight"
        return False

    def before_it_is_back(self, strike):
        """Strikes the caller while the destination, which is stopped, lets it wait."""
        source, target, daemon = self.small_pair()
        daemon.popen.send_signal(signal.SIGSTOP)
        caller = subprocess.Popen(self.command(source, daemon.address, *SLOWLY), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env)
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in self.sessions()])
        self.addCleanup(caller.kill)
        wait_until(self.waits, "it waits for the destination")
        strike(caller)
        daemon.popen.send_signal(signal.SIGCONT)
        out, err = caller.communicate(timeout=PATIENCE)
        self.assertEqual(out, "")
        result = self.result()
        self.assertEqual((result["outcome"], result["owner"]), ("cancelled", "source"), err)
        source.assert_runs()
        source.assert_left_alone()
        wait_until(lambda: self.rdmamig("send", "--qmp", source.path, "--to", daemon.address, "--dry-run").returncode == 0,
                   "the daemon is free")
        return caller.returncode

    def test_interrupted(self):
        self.assertEqual(self.before_it_is_back(lambda caller: caller.send_signal(signal.SIGINT)), CANCELLED)

    def test_caller_killed(self):
        """It has told nobody that it succeeded, so there is no session."""
        self.assertEqual(self.before_it_is_back(lambda caller: (caller.kill(), time.sleep(0.5))), -signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run())
