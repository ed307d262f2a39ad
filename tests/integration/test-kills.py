#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals to each of the four processes at instants all over a migration: one runnable owner at most, nothing left in
QEMU, and the next attempt passes. RDMAMIG_INSTANTS says how many instants a test takes (default 3)."""
import os
import random
import signal
import sys
import time

from lib import (CANCELLED, CLEANUP, DONE, DOUBTFUL, FAILED, MIB, SHORT_QUERY, Case, Daemon, Qemu, QmpError, Send, run,
                 wait_until)

INSTANTS = int(os.environ.get("RDMAMIG_INSTANTS", "3"))
# Every step of the switchover lasts a while; pre-copy lasts for about half a second.
PAUSES = {"RDMAMIG_FAULT": f"switchover-stopped=60,switchover-saved=60,switchover-commit=60,{SHORT_QUERY}"}
SLOW_LOAD = {"RDMAMIG_FAULT": "destination-load=60"}
SPAN = 1.3  # seconds that the whole of it takes, more or less


class Kills(Case):
    def setUp(self):
        super().setUp()
        seed = int(os.environ.get("RDMAMIG_SEED", random.randrange(1 << 30)))
        print(f"# {self.id()}: RDMAMIG_SEED={seed}")
        self.random = random.Random(seed)
        self.source = self.target = self.daemon = None

    def state(self, qemu):
        try:
            return qemu.status() if qemu and qemu.alive() else None
        except (QmpError, OSError, ValueError):  # it has ended this moment
            return None

    def refresh(self):
        """A running source, a waiting target and a daemon, each made anew only if the last attempt used it up."""
        time.sleep(0.3)  # a burnt QEMU may be about to end
        if self.state(self.source) != "running":
            if self.source:
                self.source.kill()
            self.source = Qemu(self, "source", rams=(64,), guest={"last": 9 * MIB})
            self.source.wait_letters()
            self.source.rams[0].fill(16, 20)
        if self.state(self.target) != "inmigrate":
            if self.target:
                self.target.kill()
            self.target = Qemu(self, "target", incoming=True, rams=(64,))
            if self.daemon:
                self.daemon.kill()
            self.daemon = None
        if self.daemon is None or not self.daemon.alive():
            self.daemon = Daemon(self, "--qmp", self.target.path, env=SLOW_LOAD)

    def begin(self, *options):
        self.refresh()
        send = Send(self, self.source, self.daemon, "--max-bandwidth", "60M", *options, env=PAUSES)
        return send

    def instants(self):
        for i in range(INSTANTS):
            delay = SPAN * (i + self.random.random()) / INSTANTS
            print(f"# after {delay:.3f} s")
            yield delay

    def running(self):
        result = []
        for qemu in (self.source, self.target):
            try:
                if qemu.alive() and qemu.qmp("query-status")["running"]:
                    result.append(qemu)
            except (QmpError, OSError, ValueError):
                pass
        return result

    def check_owner(self, code, result):
        """What the source says against what is."""
        running = self.running()
        self.assertLessEqual(len(running), 1, "two guests run")
        if code in (DONE, CLEANUP):
            self.assertEqual(running, [self.target])
            self.target.assert_runs()
        elif code in (FAILED, CANCELLED, 3):
            self.assertEqual(running, [self.source], self.source.status() if self.source.alive() else "dead")
            self.source.assert_runs()
        if self.source.alive():
            self.source.assert_left_alone()

    def assert_next_attempt_passes(self):
        self.refresh()
        wait_until(lambda: Send(self, self.source, self.daemon, "--dry-run").finish()[0] == 0, "the daemon is free", 30)
        self.move(self.source, self.target, self.daemon)

    def test_rdmamig_killed(self):
        """Its guardian sees to it that the guest runs, wherever it is (test-guardian has more)."""
        for delay in self.instants():
            send = self.begin()
            time.sleep(delay)
            send.kill(signal.SIGKILL)
            wait_until(lambda: len(self.running()) == 1, "one guest runs")
            time.sleep(0.4)
            running = self.running()
            self.assertEqual(len(running), 1)
            running[0].assert_runs()
            if self.source.alive():
                self.source.assert_left_alone()
            self.assertTrue(self.daemon.alive(), self.daemon.output())
        self.assert_next_attempt_passes()

    def test_rdmamig_signalled(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for delay in self.instants():
                send = self.begin()
                time.sleep(delay)
                send.kill(number)
                if send.popen.wait(60) < 0:  # it came before rdmamig had begun with anything
                    self.assertEqual(send.events, [])
                    self.source.assert_runs()
                    continue
                code, result = send.finish()
                self.assertIn(code, (CANCELLED, DONE) if number != signal.SIGHUP else (DONE,), send.explain())
                self.check_owner(code, result)
        self.assert_next_attempt_passes()

    def test_rdmamig_stopped_for_a_while(self):
        """SIGSTOP for longer than the other end waits, then on it goes."""
        for delay in self.instants():
            send = self.begin()
            time.sleep(delay)
            send.kill(signal.SIGSTOP)
            time.sleep(0.2 if self.random.random() < 0.7 else 13)
            self.assertLessEqual(len(self.running()), 1)
            send.kill(signal.SIGCONT)
            code, result = send.finish()
            self.check_owner(code, result)
        self.assert_next_attempt_passes()

    def daemon_signalled(self, number, *also):
        for delay in self.instants():
            send = self.begin()
            time.sleep(delay)
            if self.daemon.alive():
                self.daemon.popen.send_signal(number)
            for signal_ in also:
                time.sleep(0.2)
                self.daemon.popen.send_signal(signal_)
            code, result = send.finish()
            if code == DOUBTFUL:
                self.assertLessEqual(len(self.running()), 1)
                self.assertNotIn(self.source, self.running())
            else:
                self.check_owner(code, result)
        self.assert_next_attempt_passes()

    def test_rdmamigd_killed(self):
        self.daemon_signalled(signal.SIGKILL)

    def test_rdmamigd_terminated(self):
        self.daemon_signalled(signal.SIGTERM)

    def test_rdmamigd_stopped_for_a_while(self):
        self.daemon_signalled(signal.SIGSTOP, signal.SIGCONT)

    def qemu_signalled(self, which, number):
        for delay in self.instants():
            send = self.begin()
            time.sleep(delay)
            qemu = getattr(self, which)
            if qemu.alive():
                qemu.popen.send_signal(number)
                if number == signal.SIGSTOP:
                    time.sleep(1)
                    qemu.popen.send_signal(signal.SIGCONT)
            code, result = send.finish()
            running = self.running()
            self.assertLessEqual(len(running), 1)
            if number == signal.SIGSTOP or (which == "target" and code in (FAILED, 3)):
                self.check_owner(code, result)
            elif which == "source" and code in (DONE, CLEANUP) and self.target.alive():
                self.assertEqual(running, [self.target])
            self.assertTrue(self.daemon.alive(), self.daemon.output())
        self.assert_next_attempt_passes()

    def test_source_qemu_killed(self):
        self.qemu_signalled("source", signal.SIGKILL)

    def test_source_qemu_terminated(self):
        self.qemu_signalled("source", signal.SIGTERM)

    def test_waiting_qemu_killed(self):
        self.qemu_signalled("target", signal.SIGKILL)

    def test_source_qemu_stopped_for_a_while(self):
        self.qemu_signalled("source", signal.SIGSTOP)

    def test_waiting_qemu_stopped_for_a_while(self):
        self.qemu_signalled("target", signal.SIGSTOP)


if __name__ == "__main__":
    sys.exit(run())
