#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Soak: one guest goes from QEMU to QEMU, back and forth, while SIGKILL hits rdmamig, rdmamigd, a guardian or several of
them at random instants. After each kill one guest runs, after `rdmamig resolve` at the latest, and has counted on; after
every tenth, and at the end, an attempt that nobody disturbs passes.

RDMAMIG_KILLS says how many kills (default 50), RDMAMIG_SEED repeats a run's choices, RDMAMIG_SOAK_SECONDS ends it early:
the score is then that of the kills until there.
"""
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter

from rig import Rig
from lib import PATIENCE, SHORT_QUERY, Daemon, Send, run, wait_until

KILLS = int(os.environ.get("RDMAMIG_KILLS", "50"))
SECONDS = float(os.environ.get("RDMAMIG_SOAK_SECONDS", "inf"))
VICTIMS = {"source": 4, "destination": 4, "both": 2, "guardian of the source": 1, "guardian of the destination": 1,
           "source and its guardian": 1, "destination and its guardian": 1, "all four": 1}
# Steps of the switchover last a little, so that a fair part of the kills hits them: the guest is small.
SOURCE = f"switchover-stopped=60,switchover-saved=60,switchover-commit=60,{SHORT_QUERY}"
DESTINATION = "destination-load=60,destination-commit=30,destination-committed=30"
OUTCOMES = "moved", "rolled back", "resolved", "held"
NEVER_HELD = "source", "guardian of the source", "guardian of the destination"  # somebody is left who lets the guest run
# Half of the kills are aimed at the steps around `commit`, which last no time: one of them is held for as long as AIMED_MS, and
# the kill comes at a random instant of that.
AIMED_MS = 500
AIMS = {"switchover-prepared": "source", "switchover-commit": "source", "destination-load": "destination",
        "destination-commit": "destination", "destination-committed": "destination"}
UNDISTURBED = 10  # after so many kills a move must pass: what never moves at all would seem to roll back well
LASTS = 1.3  # s: about as long as a migration takes; measured anew each time


class Soak(Rig):
    def test_kills(self):
        seed = int(os.environ.get("RDMAMIG_SEED", random.randrange(1 << 30)))
        print(f"# RDMAMIG_SEED={seed} RDMAMIG_KILLS={KILLS}", flush=True)
        self.random, self.lasts, self.score = random.Random(seed), LASTS, {victim: Counter() for victim in VICTIMS}
        self.reached = Counter()
        begin, done = time.monotonic(), 0
        self.start()
        try:
            while done < KILLS and time.monotonic() - begin < SECONDS:
                killed = self.one_kill(done + 1)
                done += killed
                if killed and done % UNDISTURBED == 0:
                    self.move_on()
            self.move_on()
        finally:
            self.print_score(seed, done, time.monotonic() - begin)

    def print_score(self, seed, done, seconds):
        print(f"# {done} kills in {seconds:.0f} s, seed {seed}; {len(self.stations) - 1} hops of one guest")
        print("# | killed | times | " + " | ".join(OUTCOMES) + " |\n# | --- |" + " --- |" * (len(OUTCOMES) + 1))
        total = sum(self.score.values(), Counter())
        for victim, score in [*self.score.items(), ("all", total)]:
            print(f"# | {victim} | {sum(score.values())} | " + " | ".join(str(score[name]) for name in OUTCOMES) + " |")
        print("# aimed: " + ", ".join(f"{self.reached[aim]} at {aim}" for aim in AIMS), flush=True)

    def pids_of(self, victim, send, daemon):
        """Whom to kill, stopped first, so that none acts on another's end."""
        guards = [(pid, self.parent(pid)) for pid in self.guardians()]
        of_source = [pid for pid, parent in guards if parent == send.pid]
        of_destination = [pid for pid, parent in guards if parent == daemon.pid]
        return {"source": [send.pid], "destination": [daemon.pid], "both": [send.pid, daemon.pid],
                "guardian of the source": of_source, "guardian of the destination": of_destination,
                "source and its guardian": [send.pid, *of_source],
                "destination and its guardian": [daemon.pid, *of_destination],
                "all four": [send.pid, daemon.pid, *of_source, *of_destination]}[victim]

    @staticmethod
    def parent(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])

    @staticmethod
    def faults(end, aim):
        points = SOURCE if end == "source" else DESTINATION
        kept = [point for point in points.split(",") if point.split("=")[0] != aim]
        return {"RDMAMIG_FAULT": ",".join(kept + ([f"{aim}={AIMED_MS}"] if AIMS.get(aim) == end else []))}

    def one_kill(self, number):
        """1 if somebody was killed, 0 if the migration had ended before."""
        victim = self.random.choices(list(VICTIMS), VICTIMS.values())[0]
        share = self.random.random()
        aim = self.random.choice(list(AIMS)) if self.random.random() < 0.5 else None
        target, before = self.waiting(), self.sessions("source")
        daemon = Daemon(self, "--qmp", target.path, env=self.faults("destination", aim))
        begin = time.monotonic()
        send = Send(self, self.home, daemon, "--verify", "--max-bandwidth", "40M", env=self.faults("source", aim))
        if aim:
            while send.popen.poll() is None and f"fault point {aim}: " not in send.stderr() + daemon.output():
                time.sleep(0.01)
            time.sleep(share * AIMED_MS / 1000)
        else:
            time.sleep(share * self.lasts)
        pids = self.pids_of(victim, send, daemon) if send.popen.poll() is None else []
        state = ([event["state"] for event in list(send.events) if event["event"] == "state"] or ["started"])[-1]
        for signal_ in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal_)
        while send.popen.poll() is None:
            self.at_most_one(self.home, target)
            self.assertLess(time.monotonic() - begin, 2 * PATIENCE, f"rdmamig does not end\n{send.explain()}")
            time.sleep(0.03)
        send.reader.join(PATIENCE)
        if not pids and not aim:
            self.lasts = 0.7 * self.lasts + 0.3 * (time.monotonic() - begin)
        wait_until(lambda: not self.guardians(), "no guardian is left", PATIENCE)
        outcome = self.see_to_it(target, daemon, self.sessions("source") - before, send)
        if pids:
            self.assertFalse(outcome == "held" and victim in NEVER_HELD, f"killed: {victim}; held\n{send.explain()}")
            self.score[victim][outcome] += 1
            self.reached[aim] += 1
            when = f"at {aim}" if aim else f"after {share * self.lasts:.2f} s"
            print(f"# kill {number}: {victim}, {state}, {when}: {outcome}", flush=True)
        return bool(pids)

    def see_to_it(self, target, daemon, sessions, send):
        """The end of an attempt: "moved" and "rolled back" by themselves, "resolved" if the guest ran by itself and one end's
        journal was left open, "held" if it ran nowhere before `rdmamig resolve`."""
        end = time.monotonic() + 4
        while not (runs := self.at_most_one(self.home, target)) and time.monotonic() < end:
            time.sleep(0.1)
        open_ones = [session for session in sessions for side in ("source", "destination")
                     if self.journalled(side, session) not in (None, "done", "failed", "cancelled", "refused")]
        self.assertTrue(runs or open_ones, f"it runs nowhere, and no journal is open\n{send.explain()}")
        for session in sorted(set(open_ones)):
            daemon = self.free(session, daemon, target)
        went = self.settle_in(target)
        daemon.kill(signal.SIGTERM)
        wait_until(lambda: not self.ours(), f"no process is left: {self.ours()}", PATIENCE)
        return "held" if not runs else "resolved" if open_ones else went


if __name__ == "__main__":
    sys.exit(run())
