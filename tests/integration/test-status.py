#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the operator sees: JSON events, progress, status, cancel."""
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from lib import CANCELLED, DONE, MIB, RDMAMIG, REFUSED, ROOT, Case, Daemon, Send, free_port, run, wait_until

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
REPORT = {"schema": int, "time": str, "session": str, "guest": str, "event": str, "side": str, "ended": bool, "state": str,
          "reason": str, "owner": str, "where": str, "host": str, "peer": str, "start": str, "end": str, "by": str,
          "version": str, "transport": str, "metrics": dict, "rounds": list}
REPORTED = {"source": (*METRICS, "bulk_mib_s"),
            "destination": ("total_ms", "state_load_ms", "registration_ms", "landed_bytes", "zero_pages", "rounds",
                            "state_bytes", "registrations", "registered_bytes")}


class Status(Case):
    def rdmamig(self, *arguments, env=None):
        return subprocess.run([RDMAMIG, *arguments], env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)

    def status(self, *arguments, expect=0, env=None):
        """The lines of status --json."""
        done = self.rdmamig("status", "--json", *arguments, env=env)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            self.assertIn(line["side"], ("source", "destination"))
            self.assertEqual(line["ended"], line["event"] == "report")
        return lines

    def assert_readable(self, *arguments, env=None):
        text = self.rdmamig("status", *arguments, env=env).stdout
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
        return text

    def report(self, session, side, env=None):
        """A side's report, whose fields are those of docs/reports.md."""
        path = Path((env or self.env)["RDMAMIG_STATE_DIR"]) / "reports" / f"{session}.json"
        self.assertEqual((path.stat().st_mode & 0o7777, path.parent.stat().st_mode & 0o7777), (0o600, 0o700))
        report, = [line for line in map(json.loads, path.read_text().splitlines()) if line["side"] == side]
        for field, kind in REPORT.items():
            self.assertIsInstance(report[field], kind, field)
        for time in ("time", "start", "end"):
            datetime.fromisoformat(report[time].replace("Z", "+00:00"))
        self.assertLessEqual(report["start"], report["end"])
        self.assertEqual(sorted(set(REPORTED[side]) - set(report["metrics"])), [])
        self.assertEqual(len(report["rounds"]), report["metrics"]["rounds"])
        document = (ROOT / "docs/reports.md").read_text()
        for field in {*report, *report["metrics"], *(field for each in report["rounds"] for field in each)}:
            self.assertIn(f"`{field}`", document, "not documented")
        return report

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
            text = self.assert_readable(*arguments)
            for word in (session if arguments else session[:8], "guest", "precopy", f"to {daemon.address}", "from 127.0.0.1",
                         f"rdmamigd (pid {daemon.pid}) listens on {daemon.address}"):
                self.assertIn(word, text)
        for status, side in zip(self.status(), ("source", "destination"), strict=True):
            self.assertEqual((status["state"], status["session"], status["guest"], status["owner"], status["side"]),
                             ("precopy", session, "guest", "source", side))
            self.assertEqual(status["transport"], "tcp")
        self.assertGreater(status["landed_bytes"], 0)
        self.assertGreater(status["registered_bytes"], 0)
        self.assertGreater(status["elapsed_ms"], 0)
        self.assertNotEqual(self.rdmamig("status", "no-such-guest").returncode, 0)
        self.assertNotEqual(self.rdmamig("cancel", "no-such-guest").returncode, 0)
        source.assert_runs()
        self.assertEqual(self.rdmamig("cancel", "guest").returncode, 0)
        status, result = send.finish(20)
        self.assertEqual((status, result["reason"]), (CANCELLED, "cancelled"))
        source.assert_runs()
        source.assert_left_alone()
        self.assertNotEqual(self.rdmamig("cancel", "guest").returncode, 0, "cancelled after the end")
        wait_until(lambda: all(line["ended"] for line in self.status()), "the destination's side has ended, too")
        for line in self.status("guest"):
            self.assertEqual((line["session"], line["state"], line["reason"]), (session, "cancelled", "cancelled"))
        self.assertEqual([path.name[:5] for path in Path(self.env["RDMAMIG_RUN_DIR"]).iterdir()], ["recv-"], "left behind")
        self.move(source, target, daemon, "--downtime-limit", "5s")
        wait_until(lambda: all(line["ended"] for line in self.status()), "the destination's side has ended, too")
        self.assertEqual([line["state"] for line in self.status("--all")], ["done"] * 2 + ["cancelled"] * 2)
        daemon.popen.terminate()
        self.assertEqual(daemon.popen.wait(60), 0)
        self.assertEqual(list(Path(self.env["RDMAMIG_RUN_DIR"]).iterdir()), [], "left behind")

    def test_two_hosts(self):
        """The destination's view, and a cancel there; then what both have to report."""
        there = {"RDMAMIG_RUN_DIR": str(self.folder / "run-there"), "RDMAMIG_STATE_DIR": str(self.folder / "state-there")}
        source, target, daemon, send = self.slow_send(daemon_env=there)
        session = send.events[0]["session"]
        (here_line,), (there_line,) = self.status(), self.status(env=there)
        self.assertEqual((here_line["side"], there_line["side"], there_line["session"]), ("source", "destination", session))
        self.assertEqual(self.rdmamig("cancel", "no-such-guest", env=there).returncode, 1)
        self.assertEqual(self.rdmamig("cancel", session[:8], env=there).returncode, 0)
        status, result = send.finish(20)
        self.assertEqual((status, result["reason"]), (CANCELLED, "cancelled"), send.explain())
        source.assert_runs()
        wait_until(lambda: self.status(env=there)[0]["ended"], "the destination's side has ended")
        for side, env in (("source", self.env), ("destination", there)):
            line, = self.status(env=env)
            self.assertEqual(line, self.report(session, side, env))
            self.assertEqual((line["state"], line["reason"], line["owner"], line["by"], line["event"]),
                             ("cancelled", "cancelled", "source", "daemon", "report"))
            self.assertIn("cancelled", self.assert_readable(env=env))
        self.move(source, target, daemon, "--verify", "--downtime-limit", "5s")
        session = self.last_send.events[0]["session"]
        wait_until(lambda: self.status(session, env=there)[0]["ended"], "the destination's side has ended")
        sent, landed = self.report(session, "source"), self.report(session, "destination", there)
        for report in (sent, landed):
            self.assertEqual((report["state"], report["reason"], report["owner"], report["next"]),
                             ("done", "none", "destination", None))
            self.assertRegex(report["where"], "^guest guest is paused on ")
        self.assertEqual((sent["peer"], sent["transport"]), (daemon.address, "tcp"))
        figures = landed["metrics"]
        self.assertGreaterEqual(figures["landed_bytes"], sent["metrics"]["sent_bytes"])
        self.assertEqual(figures["rounds"], sent["metrics"]["rounds"] + 1, "the device state's is one, too")
        self.assertGreater(sent["metrics"]["verified_chunks"], 0)
        self.assertGreater(figures["state_load_ms"], 0)
        self.assertEqual(sum(each["landed_bytes"] for each in landed["rounds"]) // MIB, figures["landed_bytes"] // MIB)
        self.assertGreaterEqual(figures["registered_bytes"], figures["landed_bytes"] // 2)

    def test_refused(self):
        """A session that never began has a report where somebody asked for it, and none at the other end: strangers
        could fill its disk."""
        send = Send(self, str(self.folder / "no.qmp"), f"127.0.0.1:{free_port()}")
        status, result = send.finish()
        self.assertEqual(status, REFUSED)
        line, = self.status()
        self.assertEqual((line["state"], line["reason"], line["session"]),
                         ("refused", result["reason"], send.events[0]["session"]))
        self.assertIn(result["reason"], self.assert_readable())

    def test_daemons(self):
        """Two on two ports; a dead one's socket is removed, a live one's and what is no socket never; a folder that
        is not ours is not written to."""
        run_dir, state = (Path(self.env[f"RDMAMIG_{kind}_DIR"]) for kind in ("RUN", "STATE"))
        first, second = (Daemon(self, "--qmp", self.folder / "none") for _ in range(2))
        text = self.assert_readable()
        for daemon in (first, second):
            self.assertIn(f"rdmamigd (pid {daemon.pid}) listens on {daemon.address}", text)
        self.assertIn("no session", text)
        plain = run_dir / "recv-00000000-plain.sock"
        plain.write_text("not a socket")
        sockets = set(run_dir.iterdir()) - {plain}
        self.assertEqual([path.stat().st_mode & 0o7777 for path in sockets], [0o600] * 2)
        second.kill()
        self.assertEqual(set(run_dir.iterdir()), sockets | {plain})
        third = Daemon(self, "--qmp", self.folder / "none", port=second.port)
        self.assertTrue(plain.exists())
        self.assertEqual(len(set(run_dir.iterdir()) & sockets), 1, "the live one's stays, the dead one's goes")
        os.kill(first.pid, signal.SIGSTOP)  # one that hangs is not dead
        self.addCleanup(os.kill, first.pid, signal.SIGCONT)
        self.assertIn(f"(pid {third.pid})", self.assert_readable())
        self.assertEqual(len(set(run_dir.iterdir()) & sockets), 1)
        os.kill(first.pid, signal.SIGCONT)
        # A session whose report can't be written ends as it would have.
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "reports").symlink_to(elsewhere)
        send = Send(self, str(self.folder / "no.qmp"), first)
        self.assertEqual(send.finish()[0], REFUSED)
        self.assertRegex(send.stderr(), "has no report: .*/reports is not a folder")
        self.assertEqual(list(elsewhere.iterdir()), [])
        done = self.rdmamig("status")
        self.assertEqual(done.returncode, 1, "nothing, but not because there is nothing")
        self.assertRegex(done.stderr, "reports is not a folder")

    def test_stale_sockets(self):
        """A killed session's socket goes away, a live one's and everything that is no socket stays."""
        source, target, daemon, send = self.slow_send()
        run_dir = Path(self.env["RDMAMIG_RUN_DIR"])
        (live,) = run_dir.glob("send-*")
        plain = run_dir / "send-00000000-plain.sock"
        plain.write_text("not a socket")
        dead = run_dir / "send-00000000-dead.sock"
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(dead))
        self.assertIn("precopy", self.rdmamig("status").stdout)
        self.assertTrue(plain.exists() and live.exists())
        self.assertFalse(dead.exists())
        send.kill()
        wait_until(lambda: "precopy" not in self.rdmamig("status").stdout, "its guardian has settled it")
        self.assertEqual(list(run_dir.glob("send-*")), [plain])
        report = next(line for line in self.status() if line["side"] == "source")
        self.assertEqual((report["state"], report["by"]), ("failed", "guardian"))

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
