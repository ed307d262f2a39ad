#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The handover with a destination that goes wrong at each step, and with people and signals in between: one owner at most
runs, and the source says which."""
import mmap
import os
import signal
import sys
import time

from lib import (CANCELLED, CLEANUP, DONE, DOUBTFUL, FAILED, MIB, REFUSED, SHORT_QUERY, Case, Daemon, Qemu, Send,
                 each_qemu, run, wait_until)
from peers import Proxy


class Handover(Case):
    def small_pair(self, daemon_env=None, **keywords):
        return self.pair(rams=(64,), guest={"last": 5 * MIB}, daemon_env=daemon_env, **keywords)

    def running(self, *qemus):
        return [qemu.name for qemu in qemus if qemu.alive() and qemu.qmp("query-status")["running"]]

    def assert_source_has_it(self, source, target):
        self.assertEqual(self.running(source, target), [source.name])
        source.assert_runs()
        source.assert_left_alone()

    def assert_retry_passes(self, source, target):
        """Into a new QEMU: the old one may be burnt."""
        if target.alive():
            target.kill()
        again = Qemu(self, "again", incoming=True, rams=(64,))
        self.move(source, again, Daemon(self, "--qmp", again.path))


class Proxied(Handover):
    """What the source makes of answers that are late, lost or wrong."""
    version = "10.0"

    def attempt(self, script, query=None, status=FAILED, owner="source", pair=None):
        source, target, daemon = pair or self.small_pair()
        proxy = Proxy(self, daemon, lambda direction, message: script(proxy, direction, message), query)
        send = Send(self, source, proxy.address)
        code, result = send.finish()
        self.assertEqual(code, status, send.explain())
        self.assertEqual(result["owner"], owner, result)
        self.assertTrue(daemon.alive(), daemon.output())
        return source, target, daemon, result

    def test_bad_replies(self):
        """A reply of another type, without its members, or a failure, to each request before commit."""
        source, target, daemon = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB}), None, None
        source.wait_letters()
        for asked, wrong in (("accept", {"type": "accept"}), ("accept", {"type": "refuse"}),
                             ("accept", {"type": "refuse", "reason": "no-such-reason", "detail": "\x1b[31m" + "x" * 5000}),
                             ("round-end-ok", {"type": "running"}), ("round-end-ok", {"type": "failed", "reason": "doubtful"}),
                             ("round-end-ok", {"type": "failed", "reason": "none"}),
                             ("registered", {"type": "failed", "reason": "memory-short", "detail": "no"}),
                             ("state-ok", {"type": "state-ok"}), ("state-ok", {"type": "round-end-ok"}),
                             ("prepared", {"type": "running"}), ("prepared", {"type": "failed", "reason": "cleanup"})):
            with self.subTest(asked=asked, wrong=str(wrong)[:60]):
                def script(proxy, direction, message):
                    return {**wrong, "reply": message["reply"]} if message["type"] == asked else message
                wait_until(lambda: not target or not target.alive() or Send(self, source, daemon, "--dry-run").finish()[0] == 0,
                           "the last session ends")
                if target is None or not target.alive():
                    target = Qemu(self, "target", incoming=True, rams=(64,))
                    daemon = Daemon(self, "--qmp", target.path)
                _, _, _, result = self.attempt(script, status=REFUSED if asked == "accept" else FAILED,
                                               pair=(source, target, daemon))
                self.assertNotIn("\x1b", str(result["detail"]))
                wait_until(lambda: asked != "prepared" or not target.alive(), "the burnt QEMU ends")
                self.assert_source_has_it(source, target)

    def test_impossible_terms(self):
        pair = source, target, daemon = self.small_pair()
        for changes in ({"chunk_size": 0}, {"chunk_size": 1 << 31}, {"channels": 0}, {"channels": 65}, {"token": "xyz"},
                        {"protocol": 2}, {"transport": "rdmb"}, {"address": {}}, {"address": {"port": 70000}},
                        {"address": {"port": 1, "host": ""}}, {"boot": 5}):
            with self.subTest(changes=changes):
                def script(proxy, direction, message):
                    return {**message, **changes} if message["type"] == "accept" else message
                wait_until(lambda: Send(self, source, daemon, "--dry-run").finish()[0] == 0, "the last session ends")
                self.attempt(script, status=REFUSED, pair=pair)
                self.assert_source_has_it(source, target)

    def test_cut_off_at_each_request(self):
        """The connection breaks when the source asks, before the daemon hears it."""
        for asked in ("register", "round-end", "state", "load"):
            with self.subTest(asked=asked):
                def script(proxy, direction, message):
                    if message["type"] == asked:
                        proxy.cut()
                        return None
                    return message
                source, target, daemon, _ = self.attempt(script)
                self.assert_source_has_it(source, target)
                self.assertEqual(target.status(), "inmigrate")
                self.assert_retry_passes(source, target)

    def test_commit_lost_on_the_way(self):
        """The daemon never hears of it, and aborts when it is asked."""
        def script(proxy, direction, message):
            if message["type"] == "commit":
                proxy.cut()
                return None
            return message
        source, target, _, result = self.attempt(script)
        wait_until(lambda: not target.alive(), "the burnt QEMU ends")
        self.assert_source_has_it(source, target)
        self.assert_retry_passes(source, target)

    def test_running_lost(self):
        """It runs there, and the source learns that from the destination's journal, which is as good."""
        def script(proxy, direction, message):
            if message["type"] == "running":
                proxy.cut()
                return None
            return message
        source, target, _, result = self.attempt(script, status=DONE, owner="destination")
        wait_until(lambda: not source.alive(), "the old QEMU ends")
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_commit_swallowed(self):
        """The destination lives, and never hears of it: the guest is paused for seconds, not for minutes."""
        def script(proxy, direction, message):
            return None if message["type"] == "commit" else message
        begin = time.monotonic()
        source, target, _, result = self.attempt(script)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertGreater(result["metrics"]["downtime_ms"], 4000)
        wait_until(lambda: not target.alive(), "the burnt QEMU ends")
        self.assert_source_has_it(source, target)
        self.assert_retry_passes(source, target)

    def test_running_swallowed(self):
        """The answer never comes on a connection that lives."""
        def script(proxy, direction, message):
            return None if message["type"] == "running" else message
        source, target, _, _ = self.attempt(script, status=DONE, owner="destination")
        wait_until(lambda: not source.alive(), "the old QEMU ends")
        target.assert_runs()

    def lost_running(self, answer, status, owner):
        """`running` is lost, and a query is answered so."""
        def script(proxy, direction, message):
            if message["type"] == "running":
                proxy.cut()
                return None
            return message

        def query(line):
            message = line.receive()
            self.assertEqual(message["type"], "query")
            line.send({"type": "fate", "reply": message["id"], **answer})
        source, target, _, result = self.attempt(script, query, status, owner)
        self.assertEqual(self.running(source, target), [target.name])
        source.assert_left_alone()
        self.assertRegex(result["next"], r"^rdmamig resolve [-0-9a-f]{36}$")
        return source, target, result

    def test_doubtful_answers(self):
        """An answer to query that decides nothing: the source stays paused, exit 5."""
        for answer in ({"fate": "unknown"}, {"fate": "active"}, {"fate": "unknown", "done": True},
                       {"fate": "no such fate", "done": True}):
            with self.subTest(answer=answer):
                source, target, result = self.lost_running(answer, DOUBTFUL, "unknown")
                self.assertIn("paused", result["where"])
                for qemu in (source, target):
                    qemu.kill()

    def test_committed_and_not_known_to_run(self):
        """The destination has the guest: here it stays paused, neither run nor destroyed."""
        source, target, _ = self.lost_running({"fate": "committed", "done": False}, CLEANUP, "destination")
        self.assertEqual(source.status(), "postmigrate")

    def test_query_gets_garbage(self):
        def script(proxy, direction, message):
            if message["type"] == "running":
                proxy.cut()
                return None
            return message

        def query(line):
            line.raw(b"\0\xff" * 1000 + b"\n")
            line.close()
        source, target, _, _ = self.attempt(script, query, DOUBTFUL, "unknown")
        self.assertEqual(self.running(source, target), [target.name])

    def test_commit_answered_with_something_else(self):
        """The daemon has it and runs it; the answer is garbled, and the daemon's journal is not."""
        for wrong in ({"type": "prepared"}, {"type": "failed", "reason": "guest-gone"}, {"type": "error"},
                      {"type": "failed", "reason": "cancelled"}, {"type": "failed", "reason": "peer-lost"}):
            with self.subTest(wrong=wrong):
                def script(proxy, direction, message):
                    return {**wrong, "reply": message["reply"]} if message["type"] == "running" else message
                source, target, daemon = self.small_pair()
                proxy = Proxy(self, daemon, lambda direction, message: script(proxy, direction, message))
                code, result = Send(self, source, proxy.address).finish()
                self.assertEqual(code, DONE, result)
                wait_until(lambda: not source.alive(), "the old QEMU ends")
                self.assertEqual(self.running(source, target), [target.name])
                for qemu in (source, target):
                    qemu.kill()


@each_qemu("10.0", *(["7.2"] if os.environ.get("RDMAMIG_MATRIX") == "full" else []))
class Meddling(Handover):
    """Somebody else does something while the guest stands still."""

    def at(self, point, source, daemon, *options):
        """A session that stands still at a point of its switchover until go()."""
        self.gate = self.folder / "gate"
        self.gate.touch()
        send = Send(self, source, daemon, *options, env={"RDMAMIG_FAULT": f"{point}={self.gate},{SHORT_QUERY}"})
        send.wait_state({"switchover-commit": "committed"}.get(point, "switchover"))
        status = {"switchover-saved": "postmigrate", "switchover-commit": "postmigrate"}.get(point, "paused")
        wait_until(lambda: source.status() == status, f"the source is {status}")
        return send

    def go(self, send, after=0.5):
        """Lets it go on once what was done meanwhile has had time to be noticed; returns how it ends."""
        time.sleep(after)
        self.gate.unlink()
        return send.finish()

    def test_somebody_lets_it_run_once_it_is_saved(self):
        source, target, daemon = self.small_pair()
        send = self.at("switchover-saved", source, daemon)
        source.qmp("cont")
        code, _ = self.go(send)
        self.assertEqual(code, FAILED, send.explain())
        wait_until(lambda: not target.alive(), "the burnt QEMU ends")
        self.assert_source_has_it(source, target)
        self.assert_retry_passes(source, target)

    def test_somebody_lets_it_run_once_it_is_stopped(self):
        source, target, daemon = self.small_pair()
        send = self.at("switchover-stopped", source, daemon)
        source.qmp("cont")
        code, _ = self.go(send)
        self.assertEqual(code, FAILED, send.explain())
        self.assert_source_has_it(source, target)
        self.assert_retry_passes(source, target)

    def test_another_writer_once_it_is_stopped(self):
        """Found after the save, before commit."""
        source, target, daemon = self.small_pair()
        send = self.at("switchover-stopped", source, daemon)
        with open(source.rams[0].path, "r+b") as file, mmap.mmap(file.fileno(), 0):
            code, result = self.go(send)
        self.assertEqual((code, result["reason"]), (FAILED, "ram-other-writers"), send.explain())
        wait_until(lambda: not target.alive(), "the burnt QEMU ends")
        self.assert_source_has_it(source, target)
        self.assert_retry_passes(source, target)

    def test_reset_while_it_stands_still(self):
        for point in ("switchover-stopped", "switchover-saved"):
            with self.subTest(point=point):
                source, target, daemon = self.small_pair()
                send = self.at(point, source, daemon)
                source.qmp("system_reset")
                code, result = self.go(send)
                self.assertEqual((code, result["reason"]), (FAILED, "guest-reset"), send.explain())
                self.assertEqual(self.running(source, target), [source.name])
                source.kill(), target.kill()

    def test_quit_while_it_stands_still(self):
        for point in ("switchover-stopped", "switchover-saved"):
            with self.subTest(point=point):
                source, target, daemon = self.small_pair()
                send = self.at(point, source, daemon)
                source.popen.terminate()
                wait_until(lambda: not source.alive(), "the source's QEMU ends")
                code, result = self.go(send)
                self.assertEqual(code, FAILED, send.explain())
                self.assertIn(result["reason"], ("guest-shutdown", "guest-gone"))
                self.assertEqual(self.running(target), [])
                self.assertTrue(daemon.alive())
                source.kill(), target.kill()

    def test_waiting_qemu_killed(self):
        """Before commit: the guest goes on here. The commit must not go to a destination without a QEMU, or it is lost."""
        for point in ("switchover-stopped", "switchover-saved", "switchover-commit"):
            with self.subTest(point=point):
                source, target, daemon = self.small_pair()
                send = self.at(point, source, daemon)
                target.kill()
                code, result = self.go(send, after=3 if point == "switchover-commit" else 0.5)
                self.assertEqual(code, FAILED, send.explain())
                self.assert_source_has_it(source, target)
                self.assert_retry_passes(source, target)

    def test_terminated(self):
        """SIGTERM and SIGINT cancel up to commit; SIGHUP does nothing."""
        for point in ("switchover-stopped", "switchover-saved"):
            for number in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(point=point, number=number):
                    source, target, daemon = self.small_pair()
                    send = self.at(point, source, daemon)
                    send.kill(number)
                    code, _ = self.go(send)
                    self.assertEqual(code, CANCELLED, send.explain())
                    self.assert_source_has_it(source, target)
                    self.assert_retry_passes(source, target)
        source, target, daemon = self.small_pair()
        send = self.at("switchover-commit", source, daemon, "--keep-source")
        send.kill(signal.SIGTERM)
        send.kill(signal.SIGHUP)
        self.assertEqual(self.go(send)[0], DONE, send.explain())
        self.assertEqual(self.running(source, target), [target.name])

    def test_daemon_ends(self):
        """By any signal, while the guest stands still before commit."""
        for point in ("switchover-stopped", "switchover-saved"):
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
                with self.subTest(point=point, number=number):
                    source, target, daemon = self.small_pair()
                    send = self.at(point, source, daemon)
                    daemon.kill(number)
                    code, _ = self.go(send)
                    self.assertIn(code, (FAILED, CANCELLED), send.explain())
                    self.assert_source_has_it(source, target)
                    if number != signal.SIGKILL:
                        self.assertEqual(daemon.popen.wait(30), 0)
                    source.kill(), target.kill(), daemon.kill()

    def test_daemon_killed_with_commit_on_the_way(self):
        source, target, daemon = self.small_pair()
        send = self.at("switchover-commit", source, daemon)
        daemon.kill()
        code, result = self.go(send)
        self.assertEqual((code, result["owner"]), (DOUBTFUL, "unknown"), send.explain())
        self.assertEqual(self.running(source, target), [])
        source.assert_left_alone()

    def test_daemon_stopped_with_commit_on_the_way(self):
        """SIGTERM: it aborts, ends the QEMU it has loaded, and says so if it still can."""
        source, target, daemon = self.small_pair()
        send = self.at("switchover-commit", source, daemon)
        daemon.kill(signal.SIGTERM)
        code, result = self.go(send)
        self.assertIn(code, (FAILED, DOUBTFUL), send.explain())
        wait_until(lambda: not target.alive(), "the burnt QEMU ends")
        self.assertEqual(self.running(source), [source.name] if code == FAILED else [])


if __name__ == "__main__":
    sys.exit(run())
