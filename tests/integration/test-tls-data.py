#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""RAM over tcp with TLS: inside it, unless both ends have --plain-data. A proxy that passes all bytes on looks for what the
guest holds."""
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from lib import MIB, PATIENCE, RDMAMIG, RDMAMIGD, USAGE, Case, Daemon, Qemu, run, wait_until
from peers import Source, learn_hello
from pki import make_certs

MARK = b"<what this guest holds is nobody's business>"
TLS, DATA, CONTROL = 0x16, ord("R"), ord("{")
# Whether it converges says nothing here, and a busy host would wait long for it.
OPTIONS = ["--transport", "tcp", "--max-rounds", "3", "--on-timeout", "suspend"]
PROXY, DESTINATION = "127.0.0.1", "127.0.0.2"


def setUpModule():
    global PKI
    PKI = Path(tempfile.mkdtemp(prefix=f"rdmamig-test-{os.getpid()}-pki-", dir="/dev/shm"))
    unittest.addModuleCleanup(shutil.rmtree, PKI)
    make_certs("ca", PKI)
    make_certs("host", PKI, "dst.example.com", PROXY, DESTINATION)
    make_certs("host", PKI, "src.example.com")
    make_certs("host", PKI, "other.example.com")


def creds(host):
    return ["--tls-creds", PKI / host]


class Tap:
    """On the daemon's port, but another address: what is called here, and the data connections after it, goes there."""

    def __init__(self, case, daemon):
        self.daemon, self.firsts, self.marks, self.bytes = daemon, [], 0, 0
        self.listener = socket.create_server((PROXY, daemon.port))
        self.address = f"{PROXY}:{daemon.port}"
        case.addCleanup(self.listener.close)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection((self.daemon.host, self.daemon.port))
            self.firsts.append(near.recv(1, socket.MSG_PEEK)[:1])
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, sink):
        rest = b""
        try:
            while data := source.recv(1 << 20):
                self.bytes += len(data)
                self.marks += (rest + data).count(MARK)
                rest = data[-len(MARK) + 1:]
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def kinds(self):
        return [first[0] for first in self.firsts if first]


class TlsData(Case):
    def dirty_pair(self, *options, **keywords):
        """A guest that dirties 20 MiB all the time and holds 30 MiB more, each page of which has the mark."""
        keywords = {"rams": (64,), "guest": {"last": 21 * MIB}, **keywords}
        source, target = Qemu(self, "source", **keywords), Qemu(self, "target", incoming=True, **keywords)
        source.wait_letters()
        source.rams[0].fill(30, 30)
        for page in range(30 * MIB, 60 * MIB, 4096):
            source.rams[0].write(page + 100, MARK)
        daemon = Daemon(self, "--qmp", target.path, *creds("dst.example.com"), *options, host=DESTINATION)
        return source, target, daemon, Tap(self, daemon)

    def check(self, daemon, tap, clear, channels):
        kind = "data in clear" if clear else "data inside TLS"
        self.assertIn(kind, daemon.output())
        self.assertIn(f"{channels} data channels over tcp, {kind}", self.last_send.stderr())
        self.assertEqual(tap.kinds(), [TLS] + [DATA if clear else TLS] * channels)
        self.assertGreater(tap.bytes, 30 * MIB)
        if clear:
            self.assertGreaterEqual(tap.marks, 30 * 256)
        else:
            self.assertEqual(tap.marks, 0)

    def test_inside(self):
        for channels in (4, 1):
            with self.subTest(channels=channels):
                source, target, daemon, tap = self.dirty_pair()
                self.move(source, target, daemon if channels == 1 else tap.address, *creds("src.example.com"), "--verify",
                          *OPTIONS, "--channels", channels)
                if channels == 4:
                    self.check(daemon, tap, False, channels)

    def test_plain(self):
        """In clear if both ends say so; the mark that is seen then shows that the look would find it."""
        source, target, daemon, tap = self.dirty_pair("--plain-data")
        self.move(source, target, tap.address, *creds("src.example.com"), "--plain-data", "--verify", *OPTIONS)
        self.check(daemon, tap, True, 2)

    def test_plain_at_one_end(self):
        source, target, daemon, tap = self.dirty_pair()
        self.send(source, tap.address, *creds("src.example.com"), "--plain-data", "--suspend", "--keep-source",
                  *OPTIONS)
        self.assert_equal_memory(source, target)
        self.check(daemon, tap, False, 2)
        self.assertIn("it stays inside TLS, for there is no --plain-data here", daemon.output())
        warnings = [event for event in self.last_send.events if event["event"] == "warning"]
        self.assertTrue(any("inside TLS all the same" in event["detail"] for event in warnings), warnings)

    def test_plain_at_the_other(self):
        source, target, daemon, tap = self.dirty_pair("--plain-data")
        self.send(source, tap.address, *creds("src.example.com"), "--suspend", "--keep-source", *OPTIONS)
        self.assert_equal_memory(source, target)
        self.check(daemon, tap, False, 2)
        self.assertFalse([event for event in self.last_send.events if event["event"] == "warning" and event["reason"] == "tls"])

    def test_strangers(self):
        """The right token does not do: the certificate must be the control connection's, and TLS be there."""
        source, target, daemon, _ = self.dirty_pair("--plain-data")
        hello = learn_hello(self, source)

        def context(host):
            made = ssl.create_default_context(cafile=PKI / host / "ca-cert.pem")
            made.check_hostname = False
            made.load_cert_chain(PKI / host / "client-cert.pem", PKI / host / "client-key.pem")
            return made

        def turned_away(says, **tls):
            connection, answer = peer.connect(0, **tls)
            connection.close()
            peer.line.send({"type": "keep-alive"})
            self.assertEqual(answer, b"")
            wait_until(lambda: says in daemon.output(), f"the daemon logs `{says}`", 20)

        for block in hello["blocks"]:
            block["backing"] = "elsewhere"
        # Without a thread that keeps it alive: two may not use one of Python's TLS sockets at once.
        with Source(daemon, hello, keep_alive=False, tls=context("src.example.com")) as peer:
            self.assertEqual(peer.greet(transports=["tcp"], channels=1)["type"], "accept", daemon.output())
            self.assertNotIn("plain-data", peer.accept["features"])  # it did not ask
            turned_away("with another certificate than its control connection's", tls=context("other.example.com"))
            turned_away("in clear text was turned away", tls=None)
            connection, answer = peer.connect(0, token="00" * 32)
            self.assertEqual(answer, b"")
            connection, answer = peer.connect(0)
            self.assertEqual(answer, b"\x06", daemon.output())
            connection.close()

    def test_usage(self):
        for program in ([RDMAMIGD, "--listen=127.0.0.1:1", "--qmp-dir", self.folder],
                        [RDMAMIG, "send", "--qmp", self.folder / "none", "--to", "127.0.0.1"]):
            done = subprocess.run([*map(str, program), "--plain-data"], env=self.env, capture_output=True, text=True,
                                  timeout=PATIENCE)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn("--plain-data leaves RAM out of TLS, and there is no TLS without --tls-creds", done.stderr)


if __name__ == "__main__":
    sys.exit(run())
