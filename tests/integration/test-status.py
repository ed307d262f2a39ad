#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the operator sees: JSON events, progress, status, cancel."""
import json
import os
import pty
import re
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from lib import CANCELLED, DONE, RDMAMIG, Case, Send, run

EVENTS = {  # event: the fields it has beside the common ones, and their types
    "state": {"state": str, "owner": str},
    "round": {"round": int, "stopped": bool, "fenced": bool, "dirty_pages": int, "zero_pages": int, "sent_bytes": int,
              "scan_ms": (int, float), "fence_ms": (int, float), "send_ms": (int, float)},
    "progress": {"state": str, "round": int, "percent": (int, float), "done_bytes": int, "remaining_bytes": int,
                 "rate_bytes_s": int, "dirty_rate_bytes_s": int},
    "warning": {"reason": str, "detail": str},
    "result": {"outcome": str, "reason": str, "owner": str, "metrics": dict},
}
METRICS = ("total_ms", "downtime_ms", "stop_ms", "last_scan_ms", "last_write_ms", "state_save_ms", "state_load_ms", "resume_ms",
           "fence_stall_ms", "sent_bytes", "zero_pages", "rounds", "cpu_s")
PARTS = METRICS[2:8]


class Status(Case):
    def rdmamig(self, *arguments):
        return subprocess.run([RDMAMIG, *arguments], env=self.env, capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)

    def slow_send(self, *options, **keywords):
        source, target, daemon = self.pair(**keywords)
        source.rams[0].fill(128, 64)
        send = Send(self, source, daemon, "--max-bandwidth", "20M", "--suspend", "--keep-source", *options)
        send.wait_precopy()
        return source, target, daemon, send

    def test_json_events(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        send = Send(self, source, daemon, "--max-bandwidth", "80M", "--downtime-limit", "3s", "--suspend", "--keep-source")
        status, result = send.finish()
        self.assertEqual(status, DONE, send.explain())
        percent, session = 0, send.events[0]["session"]
        for event in send.events:
            self.assertEqual((event["schema"], event["session"]), (1, session))
            datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
            self.assertIn(event["guest"], ("guest", ""))
            for field, kind in EVENTS[event["event"]].items():
                self.assertIsInstance(event[field], kind, event)
            if event["event"] == "progress":
                self.assertTrue(percent <= event["percent"] <= 100, "progress ran backwards")
                percent = event["percent"]
        states = [event["state"] for event in send.events if event["event"] == "state"]
        self.assertEqual(states, ["connecting", "preflight", "attaching", "precopy", "switchover", "prepared", "committed",
                                  "done"])
        rounds = [event for event in send.events if event["event"] == "round"]
        self.assertEqual([event["round"] for event in rounds], list(range(1, len(rounds) + 1)))
        self.assertTrue(rounds[-1]["stopped"] and not rounds[0]["stopped"])
        metrics = result["metrics"]
        for name in METRICS:
            self.assertGreaterEqual(metrics[name], 0, name)
        parts = sum(metrics[name] for name in PARTS)
        self.assertLessEqual(parts, metrics["downtime_ms"] * 1.05 + 5, "the parts are more than the whole")
        self.assertLessEqual(metrics["downtime_ms"], metrics["total_ms"])
        self.assertEqual((result["outcome"], result["reason"], result["owner"]), ("done", "none", "destination"))

    def test_status_and_cancel(self):
        source, target, daemon, send = self.slow_send()
        session = send.events[0]["session"]
        for arguments in ((), ("guest",), (session,)):
            text = self.rdmamig("status", *arguments)
            self.assertEqual(text.returncode, 0, text.stderr)
            for word in (session, "guest", "precopy"):
                self.assertIn(word, text.stdout)
        status = json.loads(self.rdmamig("status", "--json").stdout)
        self.assertEqual((status["state"], status["session"], status["guest"], status["owner"]),
                         ("precopy", session, "guest", "source"))
        self.assertNotEqual(self.rdmamig("status", "no-such-guest").returncode, 0)
        self.assertNotEqual(self.rdmamig("cancel", "no-such-guest").returncode, 0)
        source.assert_runs()
        self.assertEqual(self.rdmamig("cancel", "guest").returncode, 0)
        status, result = send.finish(20)
        self.assertEqual((status, result["reason"]), (CANCELLED, "cancelled"))
        source.assert_runs()
        source.assert_left_alone()
        self.assertEqual(self.rdmamig("status").returncode, 0)
        self.assertNotEqual(self.rdmamig("cancel", "guest").returncode, 0, "cancelled after the end")
        self.assertEqual(list(Path(self.env["RDMAMIG_RUN_DIR"]).iterdir()), [], "left behind")
        self.move(source, target, daemon)

    def test_stale_sockets(self):
        """A killed session's socket goes away, a live one's and everything that is no socket stays."""
        source, target, daemon, send = self.slow_send()
        run_dir = Path(self.env["RDMAMIG_RUN_DIR"])
        (live,) = run_dir.iterdir()
        plain = run_dir / "send-00000000-plain.sock"
        plain.write_text("not a socket")
        dead = run_dir / "send-00000000-dead.sock"
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(dead))
        self.assertIn("precopy", self.rdmamig("status").stdout)
        self.assertTrue(plain.exists() and live.exists())
        self.assertFalse(dead.exists())
        send.kill()
        self.assertNotIn("precopy", self.rdmamig("status").stdout)

    def test_progress_bar_on_a_terminal(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        send = subprocess.Popen([RDMAMIG, "send", "--qmp", source.path, "--to", daemon.address, "--suspend", "--keep-source",
                                 "--max-bandwidth", "100M", "--downtime-limit", "2s"],
                                stdin=slave, stdout=slave, stderr=slave, env=self.env)
        self.addCleanup(send.kill)
        os.close(slave)
        text = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece
        self.assertEqual(send.wait(60), DONE, text)
        text = text.decode()
        shown = [int(match) for match in re.findall(r"(\d+)%", text)]
        self.assertTrue(len(shown) > 2, text)
        self.assertEqual(shown, sorted(shown))
        self.assertTrue(all(percent <= 100 for percent in shown))
        self.assertRegex(text, r"round \d+")
        self.assertRegex(text, r"ETA (unknown|\d+ s)")
        last = text.strip().splitlines()[-1]
        self.assertRegex(last, r"guest guest is paused on 127\.0\.0\.1")

    def test_output_that_nobody_reads(self):
        """A closed pipe costs the output, not the migration."""
        source, target, daemon = self.pair()
        read, write = os.pipe()
        os.close(read)
        send = subprocess.Popen([RDMAMIG, "send", "--qmp", source.path, "--to", daemon.address, "--suspend", "--keep-source",
                                 "--json"], stdin=subprocess.DEVNULL, stdout=write, stderr=write, env=self.env)
        os.close(write)
        self.assertEqual(send.wait(60), DONE)
        self.assert_equal_memory(source, target)

    def test_report_that_cannot_be_written(self):
        """A full disk is not the guest's fault: it moves, and the exit status says what is missing."""
        source, target, daemon = self.pair()
        send = subprocess.run([RDMAMIG, "send", "--qmp", source.path, "--to", daemon.address, "--suspend", "--keep-source",
                               "--report", "/nonexistent/report.json"], env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual(send.returncode, 6, send.stderr)
        self.assertIn("/nonexistent", send.stderr)
        self.assert_equal_memory(source, target)


if __name__ == "__main__":
    sys.exit(run())
