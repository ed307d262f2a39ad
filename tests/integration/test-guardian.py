#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Daemons that die or hang, and their guardians: the guest runs again where it is owned, within a second, and nothing of
ours is left. Each test ends with the same attempt without the fault, which passes.

The times that it took are printed. They are asserted with patience only: the machine may be slow.
"""
import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lib import (CANCELLED, CLEANUP, DONE, FAILED, MIB, PATIENCE, RDMAMIG, REFUSED, Case, Daemon, Qemu, QmpError, Send, run,
                 wait_until)

SOON = PATIENCE / 10  # for what takes a second at most on a host of its own
SLOW = "--max-bandwidth", "20M", "--downtime-limit", "2s"  # a second of pre-copy, or two
HOLD = "60000"  # ms that a fault point is held: longer than any test takes


class Guardian(Case):
    source = target = daemon = None

    # ---- the rig ----

    def fresh(self, *daemon_options, daemon_fault=None, guest=None):
        """A running source, a waiting target and a daemon; those that are left from the last attempt, if they will do."""
        if self.source is None or self.state(self.source) != "running":
            self.source = Qemu(self, "source", rams=(64,), guest={"last": 9 * MIB, **(guest or {})})
            self.source.wait_letters()
            self.source.rams[0].fill(16, 20)
        if self.target is None or self.state(self.target) != "inmigrate":
            self.target = Qemu(self, "target", incoming=True, rams=(64,))
        if self.daemon:
            self.daemon.kill()
        self.daemon = Daemon(self, "--qmp", self.target.path, *daemon_options,
                             env={"RDMAMIG_FAULT": daemon_fault} if daemon_fault else None)

    def begin(self, *options, fault=None, wrapper=()):
        return Send(self, self.source, self.daemon, *options, env={"RDMAMIG_FAULT": f"{fault}={HOLD}"} if fault else None,
                    wrapper=wrapper)

    def state(self, qemu):
        try:
            return qemu.status() if qemu.alive() else None
        except (QmpError, OSError, ValueError):  # it has ended this moment
            return None

    def running(self):
        return [qemu for qemu in (self.source, self.target) if self.state(qemu) == "running"]

    def journal(self, side, session=None):
        """The records of a session, of the only one if none is given: [{"state": …}, …]."""
        folder = self.folder / "state" / "journal" / side
        files = [path for path in folder.iterdir() if path.name[0] != "."] if folder.exists() else []
        files = [path for path in files if session in (None, path.name)]
        if not files:
            return []
        lines = max(files, key=lambda path: path.stat().st_mtime_ns).read_text().splitlines()
        return [record for record in map(json.loads, lines) if "state" in record]

    def wait_journal(self, side, state):
        wait_until(lambda: (self.journal(side) or [{}])[-1].get("state") == state, f"the {side}'s journal says {state}")

    def guardians(self):
        """Those of this test, by its folder in their environment: {"rdmamig": [pid], "rdmamigd": [pid]}."""
        found = {"rdmamig": [], "rdmamigd": []}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "comm").read_text() == "rdmamig-guard\n":
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    if f"RDMAMIG_STATE_DIR={self.folder}/state".encode() in (path / "environ").read_bytes().split(b"\0"):
                        found[words[0].decode()].append(int(path.name))
        return found

    def guardian(self, which):
        return wait_until(lambda: self.guardians()[which], f"a guardian of {which}")[0]

    def assert_no_guardian(self):
        wait_until(lambda: not any(self.guardians().values()), "no guardian is left")

    def assert_runs_soon(self, qemu, since, what):
        """It runs, and the memory that it counts in changes, soon after `since`."""
        wait_until(lambda: self.state(qemu) == "running", f"{qemu.name} runs {what}\n{self.explain()}", SOON)
        now = time.monotonic()
        qemu.wait_letters(1)
        print(f"# {self.id()}: {what}: runs after {(now - since) * 1000:.0f} ms")
        self.assertLess(now - since, SOON)

    def explain(self):
        return "\n".join(process.output() for process in self.processes if "rdmamigd" in process.name)

    def wait_stopped(self, *states):
        wait_until(lambda: self.state(self.source) in states, f"the source is {states}")

    def assert_as_before(self, since, what):
        """The guest is the source's, and runs on; the target that was asked to load is gone, or waits on."""
        self.assert_runs_soon(self.source, since, what)
        wait_until(lambda: self.state(self.target) in (None, "inmigrate"), "the target gives up")
        self.assertEqual(self.running(), [self.source])
        self.source.assert_runs()
        self.source.assert_left_alone()
        self.assert_counted_on(self.source)
        self.assert_no_guardian()
        self.assertEqual(self.journal("source")[-1]["state"], "failed")

    def assert_next_attempt_passes(self):
        self.fresh()
        wait_until(lambda: Send(self, self.source, self.daemon, "--dry-run").finish()[0] == 0, "the QEMUs are free", 30)
        self.move(self.source, self.target, self.daemon)
        self.assert_no_guardian()


class SourceKilled(Guardian):
    """kill -9 of rdmamig."""

    def kill_at(self, what, strike, fault=None, daemon_fault=None, *options, next_attempt=True):
        self.fresh(daemon_fault=daemon_fault)
        send = self.begin(*options, fault=fault)
        strike(send)
        since = time.monotonic()
        send.kill()
        self.assert_as_before(since, what)
        if next_attempt:
            self.assert_next_attempt_passes()

    def test_in_precopy(self):
        self.kill_at("killed in pre-copy", lambda send: send.wait_precopy(), None, None, "--max-bandwidth", "10M")

    def test_stopped(self):
        self.kill_at("killed after stop", lambda send: self.wait_stopped("paused"), "switchover-stopped")

    def test_saved(self):
        self.kill_at("killed after the save", lambda send: self.wait_stopped("postmigrate"), "switchover-saved")

    def test_loading(self):
        self.kill_at("killed while the destination loads", lambda send: self.wait_journal("destination", "switchover"),
                     daemon_fault="destination-load=2000")

    def test_committed_and_not_sent(self):
        """The journal says committed, so the destination is asked: it has aborted."""
        self.kill_at("killed before commit was sent", lambda send: send.wait_state("committed"), "switchover-commit")

    def test_commit_under_way(self):
        """`commit` has arrived and is not recorded yet: the query aborts it for good."""
        self.kill_at("killed before commit was recorded", lambda send: (self.wait_journal("destination", "switchover"),
                                                                        send.wait_state("committed")),
                     daemon_fault="destination-commit=1000")

    def test_committed_there(self):
        """The guest is the destination's: it runs there, the old QEMU is ended, by nobody but the guardian."""
        self.fresh(daemon_fault="destination-committed=1500")
        send = self.begin()
        self.wait_journal("destination", "committed")
        since = time.monotonic()
        send.kill()
        self.assert_runs_soon(self.target, since, "killed once the destination had committed, which takes 1500 ms more")
        wait_until(lambda: not self.source.alive(), "the old QEMU ends")
        self.target.assert_runs()
        self.assert_counted_on(self.source, self.target)
        self.assert_no_guardian()
        self.assertEqual(self.journal("source")[-1]["state"], "done")

    def test_anywhere(self):
        """At instants all over a switchover whose steps are stretched."""
        for delay in (0.02, 0.1, 0.2, 0.3, 0.45):
            self.fresh(daemon_fault="destination-load=60,destination-commit=60,destination-committed=60")
            send = Send(self, self.source, self.daemon, "--keep-source",
                        env={"RDMAMIG_FAULT": "switchover-stopped=60,switchover-saved=60,switchover-commit=60"})
            send.wait_state("switchover")
            time.sleep(delay)
            since = time.monotonic()
            send.kill()
            wait_until(lambda: len(self.running()) == 1, "one guest runs", PATIENCE)
            print(f"# {self.id()}: {delay} s into the switchover: one runs after {(time.monotonic() - since) * 1000:.0f} ms")
            self.assert_no_guardian()
            self.assertEqual(len(self.running()), 1)
            owner = self.running()[0]
            owner.assert_runs()
            self.assert_counted_on(*([self.source, self.target] if owner is self.target else [self.source]))
            if owner is self.target:
                self.source.kill()
                self.source = None

    def test_process_group(self):
        self.fresh()
        send = self.begin(fault="switchover-saved", wrapper=["setsid"])  # a group of its own
        self.wait_stopped("postmigrate")
        since = time.monotonic()
        os.killpg(send.pid, signal.SIGKILL)
        self.assert_as_before(since, "its process group killed")

    def test_leftover_settings(self):
        """What an operator had set is as it was, though the daemon died with its own settings in place."""
        self.fresh()
        self.source.qmp("migrate-set-capabilities", capabilities=[{"capability": "auto-converge", "state": True}])
        self.source.qmp("migrate-set-parameters", max_bandwidth=123456)
        queries = "query-migrate-capabilities", "query-migrate-parameters"
        before = [self.source.qmp(query) for query in queries]
        send = self.begin(fault="save-prepared")
        wait_until(lambda: [self.source.qmp(query) for query in queries] != before, "the save's own settings")
        since = time.monotonic()
        send.kill()
        self.assert_as_before(since, "killed in the save")
        self.assertEqual([self.source.qmp(query) for query in queries], before)

    def test_paused_by_its_operator(self):
        self.fresh()
        self.source.qmp("stop")
        send = self.begin("--max-pause", "1", fault="switchover-saved")
        self.wait_stopped("postmigrate")
        time.sleep(3)  # no bound for this guest
        self.assertIsNone(send.popen.poll())
        send.kill()
        self.assert_no_guardian()
        self.assertEqual(self.running(), [])
        self.assertEqual(self.journal("source")[-1]["state"], "failed")
        self.source.qmp("cont")
        self.source.assert_runs()
        self.assert_next_attempt_passes()


class SourceHangs(Guardian):
    """--max-pause."""

    def test_stopped_process(self):
        """SIGSTOP: the guardian kills it."""
        self.fresh()
        send = self.begin("--max-pause", "2", fault="switchover-saved")
        self.wait_stopped("postmigrate")
        since = time.monotonic()
        send.kill(signal.SIGSTOP)
        self.assertEqual(send.popen.wait(PATIENCE), -signal.SIGKILL)
        self.assert_as_before(since, "stopped, with a bound of 2 s and one of grace")
        self.assertIn("killing it", send.stderr())
        self.assert_next_attempt_passes()

    def test_session_gives_up(self):
        """It notices by itself, and says so."""
        for fault in ("switchover-stopped=2500", "switchover-saved=2500"):
            self.fresh()
            send = Send(self, self.source, self.daemon, "--max-pause", "2", env={"RDMAMIG_FAULT": fault})
            code, result = send.finish()
            self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "max-pause", "source"), send.explain())
            self.assertIn("--max-pause", result["detail"])
            self.assert_as_before(time.monotonic(), "after the session's own end")
            self.assertNotIn("killing it", send.stderr())
        self.assert_next_attempt_passes()

    def test_destination_hangs(self):
        """rdmamigd is stopped in the load: the source lets the guest run again, and the other end gives it up when it can."""
        self.fresh(daemon_fault=f"destination-load={HOLD}")
        send = self.begin("--max-pause", "2")
        self.wait_journal("destination", "switchover")
        self.daemon.popen.send_signal(signal.SIGSTOP)
        code, result = send.finish()
        self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "max-pause", "source"), send.explain())
        self.assertEqual(self.running(), [self.source])
        self.daemon.popen.send_signal(signal.SIGCONT)
        self.daemon.kill()
        self.assert_as_before(time.monotonic(), "with the destination stopped")
        self.assertEqual(self.journal("destination")[-1]["state"], "failed")
        self.assert_next_attempt_passes()

    def test_moved_stopped(self):
        """A guest that is moved stopped, as wished, has no bound, unless it was given one."""
        always = "--max-rounds", "1", "--on-timeout", "suspend", "--downtime-limit", "1ms", "--max-bandwidth", "4M"
        for options, expected in (((), DONE), (("--max-pause", "1"), FAILED)):
            self.fresh(guest={"last": 24 * MIB})
            send = Send(self, self.source, self.daemon, *always, *options,
                        env={"RDMAMIG_FAULT": "switchover-stopped=1500"})
            code, result = send.finish()
            self.assertEqual(code, expected, send.explain())
            self.assert_no_guardian()


class DestinationKilled(Guardian):
    def test_after_commit(self):
        """kill -9 of rdmamigd between the record and `cont`: its guardian lets the guest run; another daemon says so."""
        self.fresh(daemon_fault=f"destination-committed={HOLD}")
        self.target.qmp("migrate-set-parameters", max_bandwidth=123456)
        queries = "query-migrate-capabilities", "query-migrate-parameters"
        before = [self.target.qmp(query) for query in queries]
        send = self.begin()
        self.wait_journal("destination", "committed")
        since = time.monotonic()
        self.daemon.kill()
        self.assert_runs_soon(self.target, since, "rdmamigd killed after commit")
        self.assertNotEqual(self.state(self.source), "running")
        self.daemon = Daemon(self, "--qmp", self.target.path, port=self.daemon.port)
        code, result = send.finish()
        self.assertIn(code, (DONE, CLEANUP), send.explain())
        self.assertEqual(result["owner"], "destination")
        self.target.assert_runs()
        self.assert_counted_on(self.source, self.target)
        self.assertEqual(self.running(), [self.target])
        self.assert_no_guardian()
        self.assertEqual([self.target.qmp(query) for query in queries], before)
        self.assertEqual(self.journal("destination")[-1]["state"], "done")

    def test_after_commit_of_a_paused_guest(self):
        """The same with --suspend: it stays paused, and every page is there."""
        self.fresh(daemon_fault=f"destination-committed={HOLD}")
        send = self.begin("--suspend", "--keep-source")
        self.wait_journal("destination", "committed")
        self.daemon.kill()
        self.wait_journal("destination", "done")
        self.assert_equal_memory(self.source, self.target)
        self.daemon = Daemon(self, "--qmp", self.target.path, port=self.daemon.port)
        code, result = send.finish()
        self.assertIn(code, (DONE, CLEANUP), send.explain())
        self.target.qmp("cont")
        self.target.assert_runs()
        self.assert_counted_on(self.source, self.target)
        self.assert_no_guardian()

    def test_while_loading(self):
        """Nobody's QEMU is left that somebody could let run."""
        self.fresh(daemon_fault=f"destination-load={HOLD}")
        send = self.begin()
        self.wait_journal("destination", "switchover")
        since = time.monotonic()
        self.daemon.kill()
        code, result = send.finish()
        self.assertEqual((code, result["owner"]), (FAILED, "source"), send.explain())
        self.assert_as_before(since, "rdmamigd killed in the load")
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.assertEqual(self.journal("destination")[-1]["state"], "failed")
        self.assert_next_attempt_passes()

    def test_in_precopy(self):
        """The waiting QEMU was never asked to load: it waits on."""
        self.fresh()
        send = self.begin("--max-bandwidth", "10M")
        send.wait_precopy()
        self.daemon.kill()
        code, result = send.finish()
        self.assertEqual((code, result["owner"]), (FAILED, "source"), send.explain())
        self.assert_no_guardian()
        self.assertEqual(self.state(self.target), "inmigrate")
        self.assertEqual(self.journal("destination")[-1]["state"], "failed")
        self.assert_next_attempt_passes()

    def test_settings(self):
        """QEMU's migration settings, changed for the load: put back in one that waits on, and in the guest's new home."""
        for fault, daemon_fault in (("save-prepared", None), (None, f"destination-committed={HOLD}")):
            self.fresh(daemon_fault=daemon_fault)
            queries = "query-migrate-capabilities", "query-migrate-parameters"
            before = [self.target.qmp(query) for query in queries]
            send = self.begin(fault=fault)
            if fault:
                wait_until(lambda: [self.target.qmp(query) for query in queries] != before, "rdmamigd prepares it")
            else:
                self.wait_journal("destination", "committed")
                self.assertNotEqual([self.target.qmp(query) for query in queries], before)
            self.daemon.kill()
            wait_until(lambda: [self.target.qmp(query) for query in queries] == before, "the guardian puts them back")
            wait_until(lambda: self.state(self.target) == ("inmigrate" if fault else "running"), "it is as it should be")
            send.kill()
            self.assert_no_guardian()
            if fault:
                self.assertEqual(self.running(), [self.source])


class Both(Guardian):
    def test_daemon_and_guardian_killed(self):
        """Nobody is left to act: the guest stays paused, until `resolve`."""
        self.fresh()
        send = self.begin(fault="switchover-saved")
        self.wait_stopped("postmigrate")
        guardian = self.guardian("rdmamig")
        session = send.events[0]["session"]
        send.kill(signal.SIGSTOP)  # so that neither sees the other's end
        os.kill(guardian, signal.SIGKILL)
        send.kill()
        time.sleep(1)
        self.assertEqual(self.running(), [])
        done = subprocess.run([str(RDMAMIG), "resolve", session], env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_as_before(time.monotonic(), "resolved")
        self.assert_next_attempt_passes()

    def test_guardians_killed(self):
        """Alone that harms nothing; the source's daemon says so."""
        self.fresh()
        send = self.begin(*SLOW)
        send.wait_precopy()
        for which in ("rdmamig", "rdmamigd"):
            os.kill(self.guardian(which), signal.SIGKILL)
        code, result = send.finish()
        self.assertEqual(code, DONE, send.explain())
        self.assertIn("guardian", send.text())
        self.target.assert_runs()
        self.assert_counted_on(self.source, self.target)

    def test_signals_that_it_ignores(self):
        self.fresh()
        send = self.begin("--max-bandwidth", "10M")
        send.wait_precopy()
        for which in ("rdmamig", "rdmamigd"):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(self.guardian(which), number)
        time.sleep(0.2)
        self.assertEqual({which: len(found) for which, found in self.guardians().items()}, {"rdmamig": 1, "rdmamigd": 1})
        send.kill(signal.SIGTERM)
        self.assertEqual(send.finish()[0], CANCELLED)
        self.assert_no_guardian()


class Footprint(Guardian):
    def test_what_it_holds(self):
        """No connection of its daemon's, none of the guest's memory, no userfaultfd; little memory of its own."""
        self.fresh()
        send = self.begin(*SLOW)
        send.wait_precopy()
        inodes = set()
        for table in ("tcp", "tcp6"):
            inodes |= {f"socket:[{line.split()[9]}]" for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]}
        for which in ("rdmamig", "rdmamigd"):
            pid = self.guardian(which)
            links = {int(fd.name): os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
            self.assertEqual([link for link in links.values() if link in inodes], [], "a network connection")
            self.assertEqual([link for link in links.values() if "userfault" in link or ".ram" in link], [])
            self.assertEqual(links[1], "/dev/null")
            self.assertEqual(len([link for link in links.values() if link.startswith("socket:")]), 2, links)
            self.assertNotIn(".ram", Path(f"/proc/{pid}/maps").read_text())
            self.assertEqual(os.getsid(pid), pid)
            status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
            print(f"# guardian of {which}: VmRSS {status['VmRSS'].strip()}")
            self.assertLess(int(status["VmRSS"].split()[0]), 32 << 10)
        self.assertEqual(send.finish()[0], DONE)
        self.assert_no_guardian()

    def test_none_is_left(self):
        """After each end of a session."""
        self.fresh()
        self.assertEqual(self.begin("--dry-run").finish()[0], DONE)
        self.assert_no_guardian()
        send = self.begin("--max-bandwidth", "10M")
        send.wait_precopy()
        send.kill(signal.SIGINT)
        self.assertEqual(send.finish()[0], CANCELLED)
        self.assert_no_guardian()
        with open(self.source.rams[0].path, "r+b") as file, mmap.mmap(file.fileno(), 0):  # somebody else writes it
            self.assertEqual(self.begin().finish()[0], REFUSED)
        self.assert_no_guardian()
        self.assert_next_attempt_passes()


if __name__ == "__main__":
    sys.exit(run())
