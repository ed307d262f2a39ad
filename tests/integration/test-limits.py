#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What strangers can take of rdmamigd: half-open connections, failures, sessions, memory; and that nobody's session pays for
it. Strangers come from 127.0.0.2 and on, each of which counts as an address of its own."""
import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from lib import DONE, MIB, REFUSED, RDMAMIGD, USAGE, Case, Daemon, Qemu, Send, run, wait_until
from peers import PAGE, Line, Source, learn_hello

FLOOD = 1000
STRANGERS = [f"127.0.0.{i}" for i in range(2, 10)]


def stranger(daemon, address, first=b""):
    """A connection from that address, which has said `first`; it may have been closed meanwhile."""
    connection = socket.create_connection((daemon.host, daemon.port), source_address=(address, 0))
    with contextlib.suppress(ConnectionError):
        connection.sendall(first)
    return connection


def answer(connection, timeout=60):
    """All that comes until the connection is closed."""
    connection.settimeout(timeout)
    text = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(65536):
            text += data
    return text


def is_closed(connection):
    """Whether the daemon has closed it."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(65536):
                return True
    except ConnectionError:
        return True
    return False


class Limits(Case):
    version = "10.0"
    SMALL = {"rams": (64,), "guest": {"last": 5 * MIB}}

    def tearDown(self):
        for process in self.processes:
            if isinstance(process, Daemon):
                self.assertTrue(process.alive(), process.output()[-3000:])

    def take(self, daemon):
        """What it holds: descriptors, threads, bytes of memory that is not the guests'."""
        process = Path(f"/proc/{daemon.pid}")
        return (len(os.listdir(process / "fd")), len(os.listdir(process / "task")),
                1024 * int(re.search(r"RssAnon:\s*(\d+)", (process / "status").read_text())[1]))

    def wait_back_at(self, daemon, before):
        wait_until(lambda: all(now <= then for now, then in zip(self.take(daemon)[:2], before)),
                   f"descriptors and threads return to {before[:2]}: {self.take(daemon)[:2]}")

    def waiting(self, *options, env=None, name="guest"):
        target = Qemu(self, "target", incoming=True, rams=(64,), guest_name=name)
        return target, Daemon(self, "--qmp", target.path, *options, env=env)

    def count(self, daemon, pattern):
        return len(re.findall(pattern, daemon.output()))


class Floods(Limits):
    def test_half_open_beside_migrations(self):
        """A thousand half-open connections, held, and each that is closed opened again: a migration that runs and one that
        starts meanwhile end as if they were alone."""
        running, starting = (Qemu(self, name, guest_name=name, rams=(128,), guest={"last": 5 * MIB})
                             for name in ("running", "starting"))
        targets = [Qemu(self, f"{name}-target", guest_name=name, incoming=True, rams=(128,)) for name in ("running", "starting")]
        daemon = Daemon(self, *(word for target in targets for word in ("--qmp", target.path)), env={"RDMAMIG_FAULT": "block-for=12"})
        for guest in (running, starting):
            guest.wait_letters()
        running.rams[0].fill(16, 100)
        self.send(starting, daemon, "--dry-run")  # what it holds for good is there
        wait_until(lambda: self.take(daemon)[1] <= 4, "the daemon is idle")
        before = self.take(daemon)
        first = Send(self, running, daemon, "--suspend", "--keep-source", "--max-bandwidth", "20M")
        first.wait_precopy()

        held = [stranger(daemon, STRANGERS[i % 8], (b"", b'{"type":', b"R", b"RMDATA1\n")[i % 4]) for i in range(FLOOD)]
        over = threading.Event()

        def keep_up():
            while not over.wait(0.05):
                for i, connection in enumerate(held):
                    if is_closed(connection):
                        connection.close()
                        held[i] = stranger(daemon, STRANGERS[i % 8], b"{")
                    if over.is_set():
                        return
        flood = threading.Thread(target=keep_up)
        flood.start()
        try:
            wait_until(lambda: self.count(daemon, "the oldest are closed"), "the flood is noticed")
            second = Send(self, starting, daemon, "--suspend", "--keep-source")
            self.assertEqual(second.finish()[0], DONE, second.explain())
            descriptors, threads, memory = self.take(daemon)
            self.assertEqual(first.finish()[0], DONE, first.explain())
        finally:
            over.set()
            flood.join()
        for guest, target in zip((running, starting), targets):
            self.assert_equal_memory(guest, target)
        self.assertLess(descriptors - before[0], 96 * 8)
        self.assertLess(threads - before[1], 96 * 3 + 100)
        self.assertLess(memory - before[2], 200 * MIB)
        for connection in held:
            connection.close()
        self.wait_back_at(daemon, before)
        wait_until(lambda: self.count(daemon, r"the flood of connections has ended; \d+ were closed"), "the flood's end is logged")
        self.assertEqual(self.count(daemon, "the oldest are closed"), 1, daemon.output())
        self.assertLess(len(daemon.output().splitlines()), 60, daemon.output())

    def test_brackets(self):
        """A mebibyte of [ on many connections at once, with and without an end of the line, and messages of a weight that
        a peer may send but a stranger may not."""
        guest = Qemu(self, "source", **self.SMALL)
        guest.wait_letters()
        hello = learn_hello(self, guest)
        target, daemon = self.waiting()
        with Source(daemon, hello) as source:
            self.assertEqual(source.greet()["type"], "accept")
            source.open_data()
            before = self.take(daemon)
            brackets = b'{"type":' + b"[" * (MIB - 8)
            heavy = b'{"type":"keep-alive","a":[' + b"[]," * 2000 + b"[]]}\n"
            connections, threads, most = [], [], before[2]
            for i, data in enumerate([brackets] * 120 + [brackets + b"\n"] * 40 + [heavy * 50] * 16):
                connections.append(stranger(daemon, STRANGERS[i % 8]))
                threads.append(threading.Thread(target=self.pour, args=(connections[-1], data)))
                threads[-1].start()
            while any(thread.is_alive() for thread in threads):
                most = max(most, self.take(daemon)[2])
                time.sleep(0.01)
            self.assertLess(max(most, self.take(daemon)[2]) - before[2], 400 * MIB)
            for connection in connections[-56:]:  # these have said too much
                wait_until(lambda: is_closed(connection), "the connection is closed")
            for connection in connections:
                connection.close()
            self.wait_back_at(daemon, before)
            # The session is as it was, and may say what a stranger may not.
            heavy = heavy.replace(b"keep-alive", b"tell")
            source.line.raw(heavy * 8)
            source.write(0, 0, b"x" * PAGE)
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
        self.assertLess(len(daemon.output().splitlines()), 60, daemon.output())
        wait_until(lambda: Send(self, guest, daemon, "--dry-run").finish()[0] == DONE, "the daemon is free")

    @staticmethod
    def pour(connection, data):
        with contextlib.suppress(OSError):
            connection.settimeout(20)
            connection.sendall(data)


class Failures(Limits):
    def test_block(self):
        """Garbage, wrong tokens and impossible messages: the address is blocked, in two lines of the log, and let in again
        later; other addresses notice nothing."""
        guest = Qemu(self, "source", **self.SMALL)
        guest.wait_letters()
        target, daemon = self.waiting(env={"RDMAMIG_FAULT": "block-for=4"})
        kinds = [b"GET / HTTP/1.0\r\n\r\n", b"RMDATA1\n" + bytes(40), b'{"type":"hello","id":1}\n', b'{"type":7}\n',
                 b'{"type":"query","id":1,"session":"x","token":7}\n']
        for i in range(140):
            with stranger(daemon, "127.0.0.5", kinds[i % len(kinds)]) as connection:
                answer(connection)
            if self.count(daemon, r"127\.0\.0\.5: \d+ failures"):
                break
        else:
            self.fail("the address is not blocked")
        with stranger(daemon, "127.0.0.5") as connection:
            self.assertIn(b'"reason":"limit"', answer(connection))  # without having said a word
        for _ in range(200):
            stranger(daemon, "127.0.0.5", b"GET /").close()
        self.send(guest, daemon, "--dry-run")
        wait_until(lambda: self.count(daemon, r"127\.0\.0\.5: let in again; 20\d of its connections"), "the block ends")
        with stranger(daemon, "127.0.0.5", b'{"type":"query","id":1,"session":"x","token":"x"}\n') as connection:
            self.assertIn(b'"fate":"unknown"', answer(connection))
        self.assertLess(len(daemon.output().splitlines()), 40, daemon.output())
        self.assertEqual(self.count(daemon, "failures within"), 1, daemon.output())

    def test_a_session_is_not_blocked(self):
        """Whoever shares an address with a source can't cut it off: its channels come in, and its questions, too."""
        guest = Qemu(self, "source", **self.SMALL)
        guest.wait_letters()
        target, daemon = self.waiting()
        hello = learn_hello(self, guest)

        def fail_often():
            for _ in range(150):
                with stranger(daemon, "127.0.0.1", b"RMDATA1\n" + bytes(40)) as connection:
                    self.assertEqual(answer(connection), b"")
        with Source(daemon, hello) as source:
            self.assertEqual(source.greet()["type"], "accept")
            fail_often()
            source.open_data()
            source.write(0, 0, b"x" * PAGE)
            source.end_round(1)
            self.assertEqual(source.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
        fail_often()
        with contextlib.closing(Line(socket.create_connection((daemon.host, daemon.port)))) as line:
            reply = line.request("query", session=source.session, token=source.accept["token"])
            self.assertEqual((reply["type"], reply["fate"]), ("fate", "aborted"), reply)
        self.assertEqual(self.count(daemon, "failures within"), 0, daemon.output())
        self.assertLess(self.count(daemon, "token-rejected"), 30)
        wait_until(lambda: Send(self, guest, daemon, "--dry-run").finish()[0] == DONE, "the daemon is free")


class Sessions(Limits):
    def test_rights_end_with_the_session(self):
        """Its token opens no data channel after it, nor before; another session doesn't notice."""
        guest = Qemu(self, "source", **self.SMALL)
        guest.wait_letters()
        hello = learn_hello(self, guest)
        target, daemon = self.waiting()

        def greet():
            source = Source(daemon, hello)
            if source.greet()["type"] == "accept":
                return source
            source.close()
        with Source(daemon, hello) as nobody:  # a data channel without any session
            nobody.accept = {"token": "5a" * 32}
            connection, reply = nobody.connect(0)
            self.assertEqual(reply, b"")
            connection.close()
        with wait_until(greet, "a session is accepted") as first:
            self.assertEqual(Source.connect(first, 0, first.accept["token"][:-2] + "00")[1], b"")
            first.open_data()
        with wait_until(greet, "a session is accepted") as second:
            self.assertNotEqual(first.accept["token"], second.accept["token"])
            for channel in (0, 1):
                connection, reply = first.connect(channel)  # the token of the first, replayed
                self.assertEqual(reply, b"")
                connection.close()
            second.open_data()
            connection, reply = second.connect(1)  # once more
            self.assertEqual(reply, b"")
            connection.close()
            for channel in first.data:  # what is still open of it
                with contextlib.suppress(OSError):
                    channel.sendall(b"\0" * 64)
            second.write(0, 0, b"y" * PAGE)
            second.end_round(1)
            self.assertEqual(second.line.request("round-end", round=1, more=False, zero=[])["type"], "round-end-ok")
            # After `load` none may come any more, of the session's own either.
            self.assertEqual(second.line.request("state", length=PAGE)["type"], "state-ok")
            self.assertEqual(second.line.request("load")["type"], "failed")
            connection, reply = second.connect(0)
            self.assertEqual(reply, b"")
            connection.close()
        guest.assert_runs()

    def test_max_sessions(self):
        """One too many is refused in words, and gets in when there is room; a query always does."""
        guests = [Qemu(self, name, guest_name=name, **self.SMALL) for name in ("one", "two")]
        targets = [Qemu(self, f"{name}-target", guest_name=name, incoming=True, rams=(64,)) for name in ("one", "two")]
        daemon = Daemon(self, *(word for target in targets for word in ("--qmp", target.path)), "--max-sessions", "1")
        for guest in guests:
            guest.wait_letters()
        with Source(daemon, learn_hello(self, guests[0])) as source:
            self.assertEqual(source.greet()["type"], "accept")
            send = Send(self, guests[1], daemon)
            code, result = send.finish()
            self.assertEqual((code, result["reason"], result["owner"]), (REFUSED, "limit", "source"), send.explain())
            self.assertRegex(result["detail"], "1 session.*--max-sessions")
            guests[1].assert_runs()
            self.assertEqual(targets[1].status(), "inmigrate")
            with contextlib.closing(Line(socket.create_connection((daemon.host, daemon.port)))) as line:
                self.assertEqual(line.request("query", session="x", token="x")["type"], "fate")
            source.open_data()
        wait_until(lambda: Send(self, guests[1], daemon, "--dry-run").finish()[0] == DONE, "the daemon is free")
        self.move(guests[1], targets[1], daemon)

    def test_options(self):
        for value in ("0", "257", "-1", "many", ""):
            done = subprocess.run([str(RDMAMIGD), "--listen", "--qmp", "/x", "--max-sessions", value], capture_output=True, text=True)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn("--max-sessions", done.stderr)

    def test_few_descriptors(self):
        """Fewer sessions than were wished for, said at the start, rather than the end of all of them."""
        target = Qemu(self, "target", incoming=True, rams=(64,))
        daemon = Daemon(self, "--qmp", target.path, "--max-sessions", "100", wrapper=("prlimit", "--nofile=1024:1024"))
        self.assertRegex(daemon.output(), r"no more than \d sessions.*1024 descriptors.*LimitNOFILE")


if __name__ == "__main__":
    sys.exit(run())
