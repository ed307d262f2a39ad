#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sessions that are broken off at each step that a journal records, daemons that come again, and `rdmamig resolve`: the
guest counts on at exactly one place, and everybody says which. The two hosts are two state folders."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lib import (DONE, DOUBTFUL, FAILED, MIB, RDMAMIG, REFUSED, Case, Daemon, Qemu, Send, holders, run,
                 wait_until)
from peers import Proxy

BUSY = 3  # exit status of resolve for a session that somebody looks after


class Broken(Case):
    version = "10.0"

    def setUp(self):
        super().setUp()
        self.here, self.there = self.folder / "here", self.folder / "there"

    def small_pair(self, fault=None, **keywords):
        self.source, self.target, self.daemon = self.pair(rams=(64,), guest={"last": 5 * MIB},
                                                          daemon_env=self.daemon_env(fault), **keywords)

    def daemon_env(self, fault=None):
        return {"RDMAMIG_STATE_DIR": str(self.there), **({"RDMAMIG_FAULT": fault} if fault else {})}

    def begin(self, *options, fault=None, to=None):
        env = {"RDMAMIG_STATE_DIR": str(self.here), **({"RDMAMIG_FAULT": fault} if fault else {})}
        self.sent = Send(self, self.source, to or self.daemon, *options, env=env)
        return self.sent

    def journal(self, side, state):
        """The states on record of the only session of a side."""
        files = list((state / "journal" / side).iterdir())
        self.assertEqual(len(files), 1, files)
        return [json.loads(line)["state"] for line in files[0].read_text().splitlines()[1:]]

    def wait_journal(self, side, state, wanted):
        def look():
            try:
                return wanted in self.journal(side, state)
            except (OSError, AssertionError):
                return False
        wait_until(look, f"{wanted} is on record")

    @property
    def session(self):
        return next((self.here / "journal" / "source").iterdir()).name

    def kill_all(self, *processes):
        """Daemons (and other processes), with whoever else looks after the session: all that hold its journal. They are
        stopped first, so that no guardian does anything about the others' end."""
        sides = {self.sent: self.here, self.daemon: self.there}
        journals = tuple(f"{sides[process]}/journal/" for process in processes if process in sides)
        pids = [process.pid for process in processes if process not in sides] + (holders(journals) if journals else [])
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for process in processes:
            process.kill()
        wait_until(lambda: not journals or not holders(journals), "nobody holds the journal")
        if len(journals) == 2:  # as a reboot does
            self.wipe_run()

    def wipe_run(self):
        shutil.rmtree(self.folder / "run")
        (self.folder / "run").mkdir(mode=0o700)

    def restart(self):
        self.daemon = Daemon(self, "--qmp", self.target.path, port=self.daemon.port, env=self.daemon_env())

    def resolve(self, *options, where=None, expect=0, session=True):
        done = subprocess.run([RDMAMIG, "resolve", *([self.session] if session else []), "--json", *options],
                              env={**self.env, "RDMAMIG_STATE_DIR": str(where or self.here)}, text=True,
                              capture_output=True, timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr + self.daemon.output())
        return [json.loads(line) for line in done.stdout.splitlines()]

    def running(self):
        return [qemu for qemu in (self.source, self.target)
                if qemu.alive() and qemu.qmp("query-status")["running"]]

    def assert_at_source(self):
        self.assertEqual(self.running(), [self.source])
        self.source.assert_runs()
        self.source.assert_left_alone()
        self.assert_counted_on(self.source)

    def assert_moved(self):
        self.assertEqual(self.running(), [self.target])
        self.target.assert_runs()
        self.assert_counted_on(self.source, self.target)

    def assert_next_attempt_passes(self):
        """From wherever it is, all pages compared."""
        here = self.target if self.running() == [self.target] else self.source
        again = Qemu(self, "again", incoming=True, rams=(64,))
        daemon = Daemon(self, "--qmp", again.path, env=self.daemon_env())
        stations = [here] if here is self.source else [self.source, here]
        result = self.send(here, daemon, "--suspend", "--keep-source")
        self.assertEqual(result["outcome"], "done")
        self.assert_equal_memory(here, again)
        again.qmp("cont")
        again.assert_runs()
        self.assert_counted_on(*stations, again)


class Source(Broken):
    """The source's daemon dies."""

    def broken_at(self, point, status):
        self.small_pair()
        self.begin(fault=f"{point}=60000")
        self.sent.wait_state("committed" if point == "switchover-commit" else "switchover")
        wait_until(lambda: self.source.status() == status, f"the source is {status}")
        time.sleep(0.2)

    def test_before_commit(self):
        """The guest is the source's without a question: resolve needs no destination."""
        for point, status in (("switchover-stopped", "paused"), ("switchover-saved", "postmigrate")):
            with self.subTest(point=point):
                self.broken_at(point, status)
                self.kill_all(self.sent, self.daemon)
                event, = self.resolve()
                self.assertEqual((event["outcome"], event["owner"], event["side"]), ("failed", "source", "source"))
                self.assertRegex(event["where"], "guest guest runs on")
                self.assert_at_source()
                self.assertEqual(self.resolve()[0]["outcome"], "failed")  # again: nothing to do
                self.assert_at_source()
                self.assert_next_attempt_passes()
                self.kill_all(self.source, self.target), shutil.rmtree(self.here), shutil.rmtree(self.there)

    def test_settings_are_put_back(self):
        self.small_pair()
        self.source.qmp("migrate-set-capabilities", capabilities=[{"capability": "auto-converge", "state": True}])
        before = self.source.qmp("query-migrate-capabilities"), self.source.qmp("query-migrate-parameters")
        self.begin(fault="switchover-saved=60000")
        wait_until(lambda: self.source.status() == "postmigrate", "the state is saved")
        self.kill_all(self.sent, self.daemon)
        self.resolve()
        self.assertEqual((self.source.qmp("query-migrate-capabilities"), self.source.qmp("query-migrate-parameters")),
                         before)
        self.assert_at_source()

    def test_commit_recorded_and_not_sent(self):
        """The destination, which lives, is asked, and aborts."""
        self.broken_at("switchover-commit", "postmigrate")
        self.kill_all(self.sent)
        self.assertEqual(self.journal("source", self.here)[-1], "committed")
        # The list names it, and changes nothing.
        event, = self.resolve(session=False, expect=DOUBTFUL)
        self.assertEqual((event["event"], event["session"]), ("unresolved", self.session))
        self.assertEqual(event["next"], f"rdmamig resolve {self.session}")
        self.assertEqual(self.running(), [])
        event, = self.resolve()
        self.assertEqual(event["outcome"], "failed")
        self.assert_at_source()
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.assertEqual(self.resolve(session=False), [])
        self.assert_next_attempt_passes()

    def test_stopped_and_woken(self):
        """A daemon that is stopped just before it commits, with its guardian or without: nobody else settles its session,
        whatever the operator's word; and when it wakes up, all is as it left it."""
        for guarded in (True, False):
            with self.subTest(guarded=guarded):
                self.small_pair()
                self.begin(fault="switchover-prepared=500")
                self.sent.wait_state("prepared")
                self.sent.kill(signal.SIGSTOP)
                guardian, = set(holders((f"{self.here}/journal/",))) - {self.sent.pid}
                if not guarded:
                    os.kill(guardian, signal.SIGKILL)
                    wait_until(lambda: len(holders((f"{self.here}/journal/",))) == 1, "the guardian is gone")
                time.sleep(1)
                for options in ((), ("--force-resume",)):
                    self.assertEqual(self.resolve(*options, expect=BUSY), [])
                self.assertEqual(self.running(), [])
                self.sent.kill(signal.SIGCONT)
                code, result = self.sent.finish()
                if code == DONE:
                    self.assert_moved()
                else:  # the destination did not wait for so long, on a busy host
                    self.assertEqual((code, result["reason"]), (FAILED, "peer-lost"), self.sent.explain())
                    self.assert_at_source()
                self.kill_all(self.source, self.target, self.daemon)
                shutil.rmtree(self.here), shutil.rmtree(self.there)

    def test_after_running(self):
        """`running` was sent, and nobody was there to hear it: the guest has moved, and resolve ends its old self."""
        self.small_pair()

        def script(direction, message):
            return None if message["type"] == "running" else message
        proxy = Proxy(self, self.daemon, script)
        self.begin(to=proxy.address)
        wait_until(lambda: self.running() == [self.target], "the guest has moved")
        self.wait_journal("destination", self.there, "done")
        self.kill_all(self.sent)
        # The journal says to ask at the proxy, whose daemon it is.
        event, = self.resolve()
        self.assertEqual((event["outcome"], event["owner"]), ("done", "destination"))
        wait_until(lambda: not self.source.alive(), "the old QEMU ends")
        self.assert_moved()
        self.assert_next_attempt_passes()

    def test_vmm_gone(self):
        """The host was booted since, say: who may start the guest again?"""
        self.broken_at("switchover-saved", "postmigrate")
        self.kill_all(self.sent, self.source)
        event, = self.resolve()
        self.assertEqual((event["outcome"], event["owner"]), ("failed", "source"))
        self.assertIn("safe to start it here again", event["next"])

    def test_looked_after(self):
        self.small_pair()
        self.begin(fault="switchover-saved=4000")
        self.wait_journal("source", self.here, "switchover")
        for options in ((), ("--force-resume",)):
            self.assertEqual(self.resolve(*options, expect=BUSY), [])
        self.assertEqual(self.resolve(session=False), [])  # nor is it one to be resolved
        self.assertEqual(self.sent.finish()[0], DONE, self.sent.explain())
        self.assertEqual(self.journal("source", self.here), ["attaching", "switchover", "switchover", "committed", "done"])
        self.assertEqual(self.journal("destination", self.there), ["precopy", "precopy", "switchover", "committed", "done"])

    def test_usage(self):
        self.small_pair()
        for options, status in ((["--force-resume"], 2), (["a", "b"], 2), (["--nonsense"], 2), (["0"], 1), ([""], 2)):
            done = subprocess.run([RDMAMIG, "resolve", *options], env=self.env, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        done = subprocess.run([RDMAMIG, "resolve"], env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, "nothing is to be resolved on this host\n"))


class Both(Broken):
    """Both daemons die around commit, both hosts' /run is empty afterwards, and rdmamigd starts again."""

    def break_off(self, fault, state, *options):
        """Both are killed once the destination's journal has come to `state`, where `fault` holds the daemon."""
        self.small_pair(fault)
        self.begin(*options)
        self.wait_journal("destination", self.there, state)
        self.sent.wait_state("committed")
        time.sleep(0.3)
        self.kill_all(self.sent, self.daemon)
        self.assertEqual(self.running(), [])

    def test_committed_and_not_running(self):
        """The restarted rdmamigd runs the guest, and the source is told so."""
        self.break_off("destination-committed=60000", "committed")
        self.restart()
        wait_until(lambda: self.running() == [self.target], "the restarted daemon runs the guest")
        self.wait_journal("destination", self.there, "done")
        event, = self.resolve()
        self.assertEqual((event["outcome"], event["owner"]), ("done", "destination"))
        self.assertRegex(event["where"], r"guest guest runs on 127\.0\.0\.1")
        wait_until(lambda: not self.source.alive(), "the old QEMU ends")
        self.assert_moved()
        self.assert_next_attempt_passes()

    def test_every_page_of_it(self):
        self.break_off("destination-committed=60000", "committed", "--suspend", "--keep-source")
        self.restart()
        self.wait_journal("destination", self.there, "done")
        event, = self.resolve()
        self.assertEqual((event["outcome"], event["next"]), ("done", None))
        self.assertRegex(event["where"], "guest guest is paused on")
        self.assertEqual(self.source.status(), "postmigrate")
        self.assert_equal_memory(self.source, self.target)
        self.target.qmp("cont")
        self.assert_moved()

    def test_committed_and_nobody_answers(self):
        """Without the destination it's doubtful; with the operator on its host, `resolve` there runs the guest."""
        self.break_off("destination-committed=60000", "committed")
        event, = self.resolve(expect=DOUBTFUL)
        self.assertEqual((event["outcome"], event["owner"], event["reason"]), ("doubtful", "unknown", "doubtful"))
        self.assertIn("--force-resume", event["next"])
        self.assertEqual(self.running(), [])
        event, = self.resolve(where=self.there)
        self.assertEqual((event["outcome"], event["side"]), ("done", "destination"))
        self.assert_moved()
        self.restart()
        event, = self.resolve("--force-resume")  # the destination's word is stronger than the operator's
        self.assertEqual((event["outcome"], event["owner"]), ("done", "destination"))
        self.assert_moved()

    def test_commit_not_recorded(self):
        """The destination had heard of it, and not yet put it on record: aborted, for good."""
        self.small_pair("destination-commit=60000")
        self.begin()
        self.sent.wait_state("committed")
        time.sleep(0.5)
        self.kill_all(self.sent, self.daemon)
        self.assertEqual(self.journal("destination", self.there)[-1], "switchover")
        self.restart()
        event, = self.resolve()
        self.assertEqual((event["outcome"], event["owner"]), ("failed", "source"))
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.assert_at_source()
        self.assert_next_attempt_passes()

    def test_aborted_without_the_restarted_daemon(self):
        """`resolve` at the destination aborts it there; then the source may."""
        self.small_pair("destination-commit=60000")
        self.begin()
        self.sent.wait_state("committed")
        time.sleep(0.5)
        self.kill_all(self.sent, self.daemon)
        event, = self.resolve(where=self.there)
        self.assertEqual((event["outcome"], event["owner"], event["side"]), ("failed", "source", "destination"))
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.restart()
        self.resolve()
        self.assert_at_source()

    def test_unknown(self):
        """The destination's journal is lost: nobody resumes anything but by the operator's word."""
        self.small_pair("destination-commit=60000")
        self.begin()
        self.sent.wait_state("committed")
        time.sleep(0.5)
        self.kill_all(self.sent, self.daemon, self.target)
        shutil.rmtree(self.there)
        self.target = Qemu(self, "target", incoming=True, rams=(64,))
        self.restart()
        for _ in range(2):
            event, = self.resolve(expect=DOUBTFUL)
            self.assertEqual((event["outcome"], event["owner"]), ("doubtful", "unknown"))
            self.assertEqual(self.running(), [])
        event, = self.resolve("--force-resume")
        self.assertEqual((event["outcome"], event["owner"]), ("failed", "source"))
        self.assert_at_source()
        self.assertEqual(self.resolve(session=False), [])
        self.assert_next_attempt_passes()


class Destination(Broken):
    """rdmamigd dies, and comes again; the source lives."""

    def test_in_precopy(self):
        """A QEMU that was not asked to load waits on, and takes the next attempt."""
        self.small_pair()
        self.source.rams[0].fill(8, 48)
        self.begin("--max-bandwidth", "4M")
        self.sent.wait_precopy()
        self.kill_all(self.daemon)
        self.assertEqual(self.sent.finish()[0], FAILED, self.sent.explain())
        self.assert_at_source()
        self.restart()
        self.wait_journal("destination", self.there, "failed")
        self.assertEqual(self.target.status(), "inmigrate")
        shutil.rmtree(self.there), shutil.rmtree(self.here)
        result = self.send(self.source, self.daemon, "--suspend", "--keep-source")
        self.assertEqual(result["outcome"], "done")
        self.assert_equal_memory(self.source, self.target)

    def test_in_the_load(self):
        self.small_pair("destination-load=60000")
        self.begin()
        self.wait_journal("destination", self.there, "switchover")
        self.kill_all(self.daemon)
        self.sent.finish()
        self.assert_at_source()
        self.restart()
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.wait_journal("destination", self.there, "failed")
        self.assert_next_attempt_passes()

    def test_asked_by_a_source_that_waits(self):
        """Killed with the commit on the way: the source asks until the restarted one answers."""
        for fault, state, moved in (("destination-commit=60000", "switchover", False),
                                    ("destination-committed=60000", "committed", True)):
            with self.subTest(state=state):
                self.small_pair(fault)
                self.begin()
                self.sent.wait_state("committed")
                self.wait_journal("destination", self.there, state)
                time.sleep(0.5)
                self.kill_all(self.daemon)
                self.restart()
                code, result = self.sent.finish()
                self.assertEqual(code, DONE if moved else FAILED, self.sent.explain())
                if moved:
                    wait_until(lambda: not self.source.alive(), "the old QEMU ends")
                    self.assert_moved()
                else:
                    wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
                    self.assert_at_source()
                self.assert_next_attempt_passes()
                self.kill_all(self.source, self.target), shutil.rmtree(self.here), shutil.rmtree(self.there)

    def test_exec_is_ended(self):
        """A QEMU that was started for the session has no other use."""
        self.source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        self.source.wait_letters()
        self.source.rams[0].fill(8, 48)
        self.target = Qemu(self, "target", incoming=True, rams=(64,), start=False)
        script = self.folder / "start.sh"
        command = " ".join(f"'{word}'" for word in map(str, self.target.command))
        script.write_text(f"#!/bin/sh\n{command} >/dev/null 2>&1 </dev/null &\n"
                          f"echo $! >{self.folder}/pid\necho {self.target.path}\n")
        script.chmod(0o700)
        self.daemon = Daemon(self, "--exec", script, env=self.daemon_env())
        self.begin("--max-bandwidth", "4M")
        self.sent.wait_precopy()
        self.target.adopt(int((self.folder / "pid").read_text()))
        self.kill_all(self.daemon)
        self.assertEqual(self.sent.finish()[0], FAILED)
        self.daemon = Daemon(self, "--exec", script, port=self.daemon.port, env=self.daemon_env())
        wait_until(lambda: not self.target.alive(), "the QEMU that was started for it ends")
        self.assert_at_source()


class Files(Broken):
    def test_no_file_where_nothing_began(self):
        self.small_pair()
        self.assertEqual(self.begin("--dry-run").finish()[0], 0)
        self.target.kill()
        self.assertEqual(self.begin().finish()[0], REFUSED)
        for folder in (self.here / "journal/source", self.there / "journal/destination"):
            self.assertEqual(list(folder.iterdir()) if folder.exists() else [], [])

    def test_it_can_not_be_written(self):
        """At either end: refused before anything is done, with what to do."""
        self.small_pair()
        self.here = Path("/proc/no-such-folder")
        code, result = self.begin().finish()
        self.assertEqual((code, result["reason"]), (REFUSED, "journal"), self.sent.explain())
        self.assertIn("RDMAMIG_STATE_DIR", result["detail"])
        self.assert_at_source()
        self.here = self.folder / "here"
        wait_until(lambda: Send(self, self.source, self.daemon, "--dry-run").finish()[0] == 0, "the daemon is free")
        self.daemon.kill()
        shutil.rmtree(self.there)
        self.there.write_text("")
        self.restart()
        code, result = self.begin().finish()
        self.assertEqual((code, result["reason"]), (REFUSED, "journal"), self.sent.explain())
        self.assert_at_source()
        self.assertEqual(self.target.status(), "inmigrate")

    def test_commit_can_not_be_recorded(self):
        """At the source: it isn't sent. At the destination: it is as if it never came."""
        for at in ("source", "destination"):
            with self.subTest(at=at):
                fault = "journal-sync=committed"
                self.small_pair(fault if at == "destination" else None)
                code, result = self.begin(fault=fault if at == "source" else None).finish()
                self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "journal", "source"), self.sent.explain())
                wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
                self.assert_at_source()
                self.assertEqual(self.journal("source", self.here)[-1], "failed")
                self.assertEqual(self.journal("destination", self.there)[-1], "failed")
                self.assert_next_attempt_passes()
                self.kill_all(self.source), shutil.rmtree(self.here), shutil.rmtree(self.there)

    def test_rights(self):
        self.small_pair()
        self.assertEqual(self.begin().finish()[0], DONE)
        for state, side in ((self.here, "source"), (self.there, "destination")):
            for path, mode in ((state, 0o700), (state / "journal", 0o700), (state / "journal" / side, 0o700),
                               (next((state / "journal" / side).iterdir()), 0o600)):
                self.assertEqual(path.stat().st_mode & 0o7777, mode, path)


if __name__ == "__main__":
    sys.exit(run())
