#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamigd against sources that break the protocol: it lives, refuses in words, never runs a guest, and gives the waiting
QEMU back."""
import contextlib
import os
import socket
import struct
import sys
import threading
import time
import uuid
from pathlib import Path

from lib import MIB, Case, Daemon, Qemu, Send, run, sanitizer, wait_until
from peers import OP_ROUND_END, PAGE, Line, Source, learn_hello

HUGE = (1 << 64) - 1


class Hostile(Case):
    version = "10.0"

    def setUp(self):
        super().setUp()
        self.guest = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        self.guest.wait_letters()
        self.hello = learn_hello(self, self.guest)
        self.target = Qemu(self, "target", incoming=True, rams=(64,))
        self.daemon = Daemon(self, "--qmp", self.target.path)

    def tearDown(self):
        self.assertTrue(self.daemon.alive(), self.daemon.output())

    def source(self, **keywords):
        """A fake source that has got in. The last one's session may still be ending."""
        def attempt():
            source = Source(self.daemon, self.hello, **keywords)
            if source.greet()["type"] == "accept":
                return source
            source.close()
        return wait_until(attempt, f"a session is accepted\n{self.daemon.output()}")

    def assert_waiting(self):
        self.assertEqual(self.target.status(), "inmigrate")

    def assert_real_move_works(self):
        self.assert_waiting()
        wait_until(lambda: Send(self, self.guest, self.daemon, "--dry-run").finish()[0] == 0, "the daemon is free")
        self.move(self.guest, self.target, self.daemon)

    def assert_refused(self, source, reply, *reasons):
        """A failure in words, then the end."""
        self.assertIsNotNone(reply, self.daemon.output())
        self.assertIn(reply["type"], ("failed", "refuse", "error"), reply)
        if reasons:
            self.assertIn(reply["reason"], reasons, reply)
        self.assertTrue(reply["detail"])


class Requests(Hostile):
    def test_at_the_wrong_time(self):
        """Each in a session of its own."""
        table = [
            ("commit", {"run": True}), ("load", {}), ("state", {"length": 0}), ("state", {"length": HUGE}),
            ("state", {"length": (1 << 30) + 1}), ("state", {"length": -1}),
            ("register", {"block": 0, "chunks": [[HUGE]]}), ("register", {"block": HUGE, "chunks": []}),
            ("register", {"block": 0, "chunks": [[1]]}), ("register", {"block": 0, "chunks": [[0, 0, 16385]]}),
            ("register", {"block": 0, "chunks": [[0, 5, 5]]}), ("register", {"block": 0, "chunks": [[0, 4, 6, 5, 7]]}),
            ("register", {"block": 0, "chunks": [[0, 1]]}), ("register", {"block": 0, "chunks": [[0]] * 257}),
            ("register", {"block": 0, "chunks": [[0, 1 << 52, 1 << 53]]}), ("register", {"chunks": []}),
            ("release", {"block": 0, "chunks": [[0, 0, 256]]}), ("release", {"block": 0, "chunks": [[0, 0, 256]], "mark": 0}),
            ("release", {"block": 0, "chunks": [[0, 0, 256]], "mark": 1 << 32}),
            ("release", {"block": 0, "chunks": [[0, 0, 256]], "mark": HUGE}),
            ("release", {"block": HUGE, "chunks": [], "mark": 1}), ("release", {"block": 0, "mark": 1}),
            ("release", {"block": 0, "chunks": [[0, 0, 16385]], "mark": 1}),
            ("round-end", {"round": 0, "more": False, "zero": []}),
            ("round-end", {"round": 1 << 32, "more": False, "zero": []}),
            ("round-end", {"round": 1, "more": False, "zero": [0, 0]}),
            ("round-end", {"round": 1, "more": False, "zero": [0, 0, HUGE]}),
            ("round-end", {"round": 1, "more": False, "zero": [0, 16383, 2]}),
            ("round-end", {"round": 1, "more": False, "zero": [0, HUGE, 1]}),
            ("round-end", {"round": 1, "more": False, "zero": [HUGE, 0, 1]}),
            ("round-end", {"round": 1, "more": False, "zero": [0, 0, 1] * 8193}),
            ("verify", {"digests": [0, 0, "x"]}), ("verify", {"digests": [0, HUGE, "0" * 32]}),
            ("verify", {"digests": [0, 0, "0" * 32] * 4097}), ("verify", {"digests": [0, 0]}),
        ]
        for type_, members in table:
            with self.subTest(type=type_, members=str(members)[:80]), self.source() as source:
                source.open_data()
                self.assert_refused(source, source.line.request(type_, **members), "protocol")
                wait_until(lambda: source.line.receive() is None, "the connection is closed")
            self.assert_waiting()
        self.assert_real_move_works()

    def test_unknown_requests_are_answered(self):
        with self.source() as source:
            self.assert_refused(source, source.line.request("make-coffee", strength=HUGE), "protocol")
            self.assertEqual(source.line.request("query", session=source.session)["type"], "error")
            self.assertEqual(source.greet(session=str(uuid.uuid4()))["type"], "error")  # a second hello
            # tcp registers nothing.
            self.assert_refused(source, source.line.request("release", block=0, chunks=[[0, 0, 256]], mark=1), "protocol")
            source.open_data()
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
        self.assert_real_move_works()

    def test_loaded_with_garbage_ends_the_waiting_qemu(self):
        """load, without a good state: the QEMU that was tried is gone, the daemon is not, and no guest runs."""
        with self.source() as source:
            source.open_data()
            state = os.urandom(2 * PAGE)
            reply = source.line.request("state", length=len(state))
            self.assertEqual(reply["type"], "state-ok", reply)
            source.write(reply.get("block", len(self.hello["blocks"])), 0, state)
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
            self.assert_refused(source, source.line.request("load"), "state-load")
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")
        self.guest.assert_runs()

    def test_commit_after_a_failed_load(self):
        with self.source() as source:
            source.open_data()
            source.line.request("state", length=8)
            source.line.ask("load")
            reply = source.line.request("commit", run=True)
            self.assertTrue(reply is None or reply["type"] == "failed", reply)
        wait_until(lambda: not self.target.alive(), "the burnt QEMU ends")

    def test_cut_off_at_every_step(self):
        """The connection breaks after each prefix of a good session's requests."""
        steps = [lambda s: s.open_data(), lambda s: s.line.ask("register", block=0, chunks=[[0, 0, 8192]]),
                 lambda s: s.write(0, 0, os.urandom(MIB)), lambda s: s.end_round(1),
                 lambda s: s.line.ask("round-end", round=1, more=True, zero=[0, 1, 5]),
                 lambda s: s.line.ask("round-end", round=1, more=False, zero=[0, 10, 5]),
                 lambda s: s.line.ask("verify", digests=[0, 0, "0" * 32]), lambda s: s.line.ask("state", length=1 << 30),
                 lambda s: s.line.raw(b'{"type":"loa')]
        for n in range(len(steps) + 1):
            with self.subTest(steps=n), self.source() as source:
                for step in steps[:n]:
                    step(source)
            self.assert_waiting()
        self.assert_real_move_works()

    def test_no_leak_after_many_sessions(self):
        def counts():
            return len(os.listdir(f"/proc/{self.daemon.pid}/fd")), len(os.listdir(f"/proc/{self.daemon.pid}/task"))
        for n in range(150):
            with self.source() as source:
                if n % 3:
                    source.open_data()
                if n % 3 == 1:
                    source.line.request("register", block=0, chunks=[[0, 0, 16]])
                if n % 5 == 0:
                    source.line.request("state", length=PAGE)
            if n == 30:
                time.sleep(1)
                before = counts()
        wait_until(lambda: all(now <= then for now, then in zip(counts(), before)) or None,
                   f"descriptors and threads return to {before}", 20)
        self.assert_real_move_works()


class Greetings(Hostile):
    def test_impossible(self):
        blocks = self.hello["blocks"]
        table = [
            {"session": "x"}, {"session": str(uuid.uuid4()) + "x"}, {"session": 7}, {"protocol": 0}, {"protocol": HUGE},
            {"protocol_min": 99, "protocol": 99}, {"blocks": []}, {"blocks": blocks * 400}, {"blocks": {}},
            {"blocks": [{**blocks[0], "size": HUGE}]}, {"blocks": [{**blocks[0], "size": 0}]},
            {"blocks": [{**blocks[0], "page_size": 0}]}, {"blocks": [{**blocks[0], "page_size": 3}]},
            {"blocks": [{**blocks[0], "name": "n" * 256}]}, {"blocks": [{**blocks[0], "name": "other"}]},
            {"blocks": [{**blocks[0], "size": 32 * MIB}]}, {"blocks": blocks * 2},
            {"blocks": [{**blocks[0], "name": f"ram{i}"} for i in range(1024)]}, {"chunk_size": 0},
            {"chunk_size": HUGE}, {"chunk_size": 3 * MIB}, {"channels": 65}, {"channels": HUGE}, {"transports": []},
            {"transports": ["carrier-pigeon", 5, None]}, {"populated": 1 << 62}, {"guest": None},
            {"guest": {**self.hello["guest"], "name": "someone else"}},
            {"guest": {**self.hello["guest"], "traits": {str(i): "x" for i in range(65)}}}, {"dry_run": "yes"},
        ]
        for changes in table:
            with self.subTest(changes=str(changes)[:80]), Source(self.daemon, self.hello) as source:
                source.hello.pop("page_size", None)
                reply = source.greet(**changes)
                if changes.get("protocol") == HUGE:
                    self.assertEqual((reply["type"], reply["protocol"]), ("accept", 1))
                    continue
                self.assert_refused(source, reply)
        self.assert_real_move_works()

    def test_session_ids_are_used_once(self):
        with self.source() as source:
            with Source(self.daemon, self.hello, session=source.session) as second:
                self.assert_refused(second, second.greet())
            source.open_data()  # the first lives
        with self.source():  # so it has ended
            pass
        with Source(self.daemon, self.hello, session=source.session) as again:
            self.assert_refused(again, again.greet())
        self.assert_real_move_works()

    def test_log_shows_no_control_characters(self):
        name = "\n2026 rdmamigd: session stolen \x1b[31m\r\x00".replace("\x00", "")
        with Source(self.daemon, self.hello) as source:
            source.greet(guest={**self.hello["guest"], "name": name, "uuid": ""})
        with contextlib.closing(Line(socket.create_connection(("127.0.0.1", self.daemon.port)))) as line:
            line.request("query", session=name)
        time.sleep(0.3)
        log = self.daemon.output()
        self.assertNotIn("\x1b", log)
        self.assertNotIn("\n2026", log)

    def test_late_hello(self):
        """A source that is alive may look at its guest for a while before it says hello."""
        with Source(self.daemon, self.hello) as source:
            time.sleep(12)
            self.assertEqual(source.greet()["type"], "accept")

    def test_two_hellos_at_once(self):
        with self.source() as source, Source(self.daemon, self.hello) as second:
            self.assert_refused(second, second.greet(), "guest-not-found", "guest-busy")
            source.open_data()
        self.assert_real_move_works()


class Data(Hostile):
    def test_strangers(self):
        """Data connections with no, a wrong or a used token: turned away, and the session goes on."""
        with self.source() as source:
            for token in ("00" * 32, source.accept["token"][2:] + "00"):
                connection, answer = source.connect(0, token)
                self.assertEqual(answer, b"")
                connection.close()
            source.open_data()
            for channel in (0, source.accept["channels"], 0xFFFFFFFF):
                connection, answer = source.connect(channel)
                self.assertEqual(answer, b"")
                connection.close()
            for junk in (b"R", b"RMDATA2\n" + bytes(40), b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", b"\0"):
                with socket.create_connection(("127.0.0.1", self.daemon.port)) as stranger:
                    stranger.sendall(junk)
            source.write(0, 0, b"x" * PAGE)
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
            self.assertEqual(self.target.rams[0].read(0, PAGE), b"x" * PAGE)
        self.assert_real_move_works()

    def test_bad_frames(self):
        table = [
            {"offset": 64 * MIB}, {"offset": HUGE - PAGE + 1}, {"offset": 1}, {"data": b"x"}, {"data": b""},
            {"runs": [(0, 2 * PAGE)]}, {"runs": [(0, PAGE)] * 2}, {"block": 9}, {"block": 0xFFFFFFFF}, {"op": 1},
            {"op": OP_ROUND_END}, {"reserved": 1}, {"total": 0xFFFFFFFF}, {"runs": []}, {"runs": [(0, HUGE)]},
            {"channel": 1}, {"runs": [(63 * MIB, 2 * MIB)], "data": bytes(2 * MIB)},
            {"block": len(self.hello["blocks"])},  # the device state, which nobody has announced
        ]
        for frame in table:
            with self.subTest(frame=str(frame)[:60]), self.source() as source:
                source.open_data()
                with contextlib.suppress(ConnectionError):
                    source.write(**{"block": 0, "offset": 0, "data": bytes(PAGE), "channel": 0, **frame})
                    source.end_round(1)
                reply = source.line.request("round-end", round=1, more=False, zero=[])
                self.assert_refused(source, reply, "protocol")
            self.assert_waiting()
        self.assert_real_move_works()

    def test_write_after_its_round(self):
        """A write after the round's end belongs to the next round; none is taken in after `load`."""
        with self.source() as source:
            source.open_data()
            source.end_round(1)
            source.write(0, 0, b"y" * PAGE)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
            source.line.request("state", length=PAGE)
            self.assert_refused(source, source.line.request("load"))
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                for _ in range(3):
                    source.write(0, MIB, b"z" * PAGE)
                    time.sleep(0.1)
            self.assertNotEqual(self.target.rams[0].read(MIB, PAGE), b"z" * PAGE)


class Floods(Hostile):
    def test_silent_connections(self):
        self.half_open(b"")

    def test_unfinished_greetings(self):
        self.half_open(b'{"type":')

    def test_unfinished_preambles(self):
        self.half_open(b"R")

    def half_open(self, first):
        """More connections than there are descriptors: the daemon lives, and works again when they end."""
        self.daemon.kill()
        self.daemon = Daemon(self, "--qmp", self.target.path, wrapper=("prlimit", "--nofile=1024:1024"),
                             env={"RDMAMIG_FAULT": "hello-wait=3"})
        connections = []
        for _ in range(1500):
            connection = socket.create_connection(("127.0.0.1", self.daemon.port))
            connections.append(connection)
            with contextlib.suppress(ConnectionError):  # turned away
                connection.sendall(first)
        time.sleep(4)  # the first give up, and others come
        self.assertTrue(self.daemon.alive(), self.daemon.output()[-2000:])
        for connection in connections:
            connection.close()
        time.sleep(1)
        self.assertTrue(self.daemon.alive(), self.daemon.output()[-2000:])
        self.assertLess(len(self.daemon.output()), 1 << 20)
        self.assert_real_move_works()

    def test_flood_of_registrations(self):
        """A source that asks for ever more than can be done, and throws the answers away."""
        if sanitizer() != "none":
            self.skipTest(f"built with the sanitizer {sanitizer()}, which keeps what was freed for a while, and shadows it")

        def resident():
            return int(Path(f"/proc/{self.daemon.pid}/statm").read_text().split()[1]) * PAGE
        with self.source() as source:
            source.open_data()
            source.line.request("register", block=0, chunks=[[0, 0, 16384]])
            before = resident()
            drain = threading.Thread(target=lambda: [None for _ in iter(source.line.receive, None)], daemon=True)
            drain.start()
            with contextlib.suppress(OSError):
                for first in range(10, 300000, 1000):
                    source.line.raw(b"".join(b'{"type":"register","id":%d,"block":0,"chunks":[[0,0,16384]]}\n' % i
                                             for i in range(first, first + 1000)))
                    self.assertLess(resident() - before, 32 * MIB)
        self.assert_real_move_works()

    def test_flood_of_lines(self):
        for data in (b"\n" * 1000000, b"{" * 2000000, b'{"type":"keep-alive"}\n' * 200000,
                     b'{"type":"bye"' + b" " * (2 << 20) + b"}\n", b"[" * 100 + b"\n",
                     b'{"type":"hello","id":1,' + b'"a":[' + b"[]," * 300000 + b"[]]}\n"):
            with socket.create_connection(("127.0.0.1", self.daemon.port)) as connection, \
                    contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.sendall(b"{" + data[1:] if data[:1] != b"{" else data)
        self.assert_real_move_works()


class Queries(Hostile):
    def query(self, session, token="00" * 32):
        with contextlib.closing(Line(socket.create_connection(("127.0.0.1", self.daemon.port)))) as line:
            return line.request("query", session=session, **({} if token is None else {"token": token}))

    def test_query_without_the_token_aborts_nothing(self):
        with self.source() as source:
            source.open_data()
            token = source.accept["token"]
            for wrong in ("", "00" * 32, token[:-1], token + "0", token[:-1] + ("1" if token[-1] == "0" else "0"),
                          token.upper() + "\u00e9"):
                reply = self.query(source.session, wrong)
                self.assertEqual((reply["type"], reply["reason"]), ("error", "token-rejected"), wrong)
                self.assertNotIn(token, str(reply))
            for missing in (None, 5, ["x"]):
                self.assertEqual(self.query(source.session, missing)["type"], "error")
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
        self.assert_real_move_works()

    def test_query_aborts_for_good(self):
        with self.source() as source:
            source.open_data()
            self.assertEqual(self.query(str(uuid.uuid4()))["fate"], "unknown")
            self.assertEqual(self.query("x" * 100000)["fate"], "unknown")
            token = source.accept["token"]
            reply = self.query(source.session, token)
            self.assertEqual((reply["fate"], reply["done"]), ("aborted", False))
            wait_until(lambda: source.line.receive() is None, "the session ends")
            self.assertEqual(self.query(source.session, token)["fate"], "aborted")
        with Source(self.daemon, self.hello, session=source.session) as again:
            self.assert_refused(again, again.greet())
        self.assert_real_move_works()


if __name__ == "__main__":
    sys.exit(run())
