#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutual TLS: a guest moves inside it; strangers are refused, by name in the log, and harm nobody; credentials are read
again while the daemon runs; a session that is broken off is asked after with the credentials that it had."""
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from lib import (DONE, DOUBTFUL, MIB, PATIENCE, RDMAMIG, RDMAMIGD, REFUSED, USAGE, Case, Daemon, Process, Qemu,
                 Send, free_port, holders, listens, run, wait_until)
from pki import make_certs

HELLO = b'{"type":"hello","id":1}\n'


def setUpModule():
    """What every case uses and none changes. The `old` certificate is one for no days: it is over by the next second."""
    global PKI
    PKI = Path(tempfile.mkdtemp(prefix=f"rdmamig-test-{os.getpid()}-pki-", dir="/dev/shm"))
    unittest.addModuleCleanup(shutil.rmtree, PKI)
    make_certs("ca", PKI / "ca", "--name", "the CA")
    make_certs("host", PKI / "ca", "dst.example.com", "127.0.0.1")
    make_certs("host", PKI / "ca", "src.example.com")
    make_certs("host", PKI / "ca", "other.example.org")
    make_certs("host", PKI / "ca", "old.example.com", "--days", "0")
    make_certs("ca", PKI / "wrong", "--name", "another CA")
    make_certs("host", PKI / "wrong", "src.example.com", "127.0.0.1")
    time.sleep(1.1)


def creds(host, ca="ca"):
    return ["--tls-creds", PKI / ca / host]


class Tls(Case):
    def small_pair(self, *options, name="", **keywords):
        """With a daemon that knows TLS, and lets in whom it is told to."""
        keywords = {"rams": (64,), "guest": {"last": 5 * MIB}, **keywords}
        source, target, daemon = self.pair(*creds("dst.example.com"), "--tls-allow", "*.example.com", *options,
                                           **keywords)
        return source, target, daemon

    def refused(self, source, daemon, *options, says):
        result = self.send(source, daemon, *options, expect=REFUSED)
        self.assertEqual((result["reason"], result["outcome"], result["owner"]), ("tls", "refused", "source"), result)
        self.assertIn(says, result["detail"])
        self.assertEqual(result["metrics"]["sent_bytes"], 0)
        return result

    def ends_well(self, session, source, target):
        """A session that has not converged until now: its guest comes to rest."""
        source.set_parameter("mode", 0)
        status, _ = session.finish()
        self.assertEqual(status, DONE, session.explain())
        self.assert_equal_memory(source, target)

    def logged(self, daemon, text, times=1):
        wait_until(lambda: daemon.output().count(text) >= times, f"the daemon logs `{text}`", 20)

    def stranger(self, daemon, certificate=None, says=None, ca=None):
        """One that does not use our source: the handshake, a hello, and whatever comes then."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=PKI / (ca or "ca") / "ca-cert.pem")
        context.check_hostname = False
        if certificate:
            folder, kind = certificate
            context.load_cert_chain(folder / f"{kind}-cert.pem", folder / f"{kind}-key.pem")
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError), \
                socket.create_connection((daemon.host, daemon.port), PATIENCE) as plain, \
                context.wrap_socket(plain, server_hostname="127.0.0.1") as line:
            line.sendall(HELLO)
            answer = line.recv(1000)
        self.assertNotIn(b"{", answer)
        self.logged(daemon, says)


class Moves(Tls):
    def test_move(self):
        """All of it inside TLS: nothing that passes on the wire is to be read, and the guest arrives whole."""
        source, target, daemon = self.small_pair()
        source.rams[0].fill(10, 20)
        result = self.move(source, target, daemon, *creds("src.example.com"), "--verify")
        self.assertEqual(result["outcome"], "done")
        self.logged(daemon, "(src.example.com)")
        self.assertIn("with TLS", daemon.output())

    def test_everywhere(self):
        """--listen without an address: loopback in clear, all addresses with TLS."""
        for options, hosts in (([], ["127.0.0.1"]), (creds("dst.example.com"), ["127.0.0.1", "127.0.0.2", "::1"])):
            port = free_port()
            daemon = Process(self, f"everywhere{port}", [RDMAMIGD, f"--listen=:{port}", "--qmp-dir", self.folder,
                                                         *options], env={})
            wait_until(lambda: listens(port) or not daemon.alive(), "it listens")
            for host in ["127.0.0.1", "127.0.0.2", "::1"]:
                if host == "::1" and not Path("/proc/net/if_inet6").exists():
                    continue
                with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as line:
                    self.assertEqual(line.connect_ex((host, port)) == 0, host in hosts, f"{options} {host}")
            daemon.kill()

    def test_usage(self):
        """What can't work is said before anything listens or is touched."""
        def refused(program, *words, status, says):
            done = subprocess.run([program, *map(str, words)], env=self.env, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((done.returncode, says in done.stderr), (status, True), done.stderr)
        listen = ("--listen", f"127.0.0.1:{free_port()}", "--qmp-dir", self.folder)
        refused(RDMAMIGD, *listen, "--tls-allow", "a.example.com", status=2, says="--tls-allow needs --tls-creds")
        refused(RDMAMIGD, *listen, *creds("dst.example.com"), "--tls-allow", "a*.example.com", status=2, says="is no name")
        refused(RDMAMIGD, "--listen", f"0.0.0.0:{free_port()}", "--qmp-dir", self.folder, status=2, says="--tls-creds")
        refused(RDMAMIGD, *listen, *creds("old.example.com"), status=1, says="server-cert.pem: the certificate has expired")
        refused(RDMAMIGD, *listen, "--tls-creds", self.folder, status=1, says="ca-cert.pem")
        send = ("send", "--qmp", self.folder / "none", "--to", "127.0.0.1")
        refused(RDMAMIG, *send, "--tls-hostname", "a.example.com", status=USAGE, says="--tls-creds")


class Strangers(Tls):
    def test_refused_and_nobody_harmed(self):
        """A session runs on all the while, and the waiting QEMU that they asked for is as good as before."""
        source, target, daemon = self.small_pair()
        busy = Qemu(self, "busy", rams=(64,), guest={"last": 5 * MIB}), Qemu(self, "room", incoming=True, rams=(64,))
        busy[0].rams[0].fill(10, 40)
        busy_daemon = Daemon(self, "--qmp", busy[1].path, *creds("dst.example.com"))
        session = Send(self, busy[0], busy_daemon, "--max-bandwidth", "5M", "--suspend", "--keep-source",
                       *creds("src.example.com"))
        session.wait_precopy()
        for at in (daemon, busy_daemon):
            self.stranger(at, says="refused: tls: the source showed no certificate")
            self.stranger(at, (PKI / "wrong/src.example.com", "client"), says="(names src.example.com, 127.0.0.1) is not signed by")
            self.stranger(at, (PKI / "ca/old.example.com", "client"), says="(names old.example.com) has expired on")
            self.stranger(at, (PKI / "ca/src.example.com", "server"), says="(names src.example.com) is not meant for a source")
        self.stranger(daemon, (PKI / "ca/other.example.org", "client"), says="names other.example.org: --tls-allow has none")

        # The same by our own source, which says what it is told.
        for options, here, there in (
                ([], "takes TLS only: give --tls-creds", "takes TLS only"),
                (creds("src.example.com", "wrong"), "is not signed by", "TLS handshake failed"),
                (creds("other.example.org"), "did not accept this host's certificate (names other.example.org)", "--tls-allow has none"),
                (creds("old.example.com"), "client-cert.pem: the certificate has expired on", None),
                ([*creds("src.example.com"), "--tls-hostname", "elsewhere.example.com"],
                 "has names dst.example.com, 127.0.0.1, and not elsewhere.example.com", "TLS handshake failed")):
            with self.subTest(options=options):
                before = daemon.output().count(there) if there else 0
                self.refused(source, daemon, *options, says=here)
                if there:
                    self.logged(daemon, there, before + 1)
        self.refused(source, f"localhost:{daemon.port}", *creds("src.example.com"), says="and not localhost")
        # A data channel in clear, whatever its token.
        with socket.create_connection((daemon.host, daemon.port), PATIENCE) as line:
            line.sendall(b"RMDATA1\n" + bytes(40))
            self.assertEqual(line.recv(1), b"")
        self.logged(daemon, "a data channel without a valid token was turned away")
        source.assert_runs()
        source.assert_left_alone()

        self.assertIsNone(session.popen.poll(), session.explain())  # it does not converge before it is let to
        self.send(source, daemon, "--suspend", "--keep-source", *creds("src.example.com"), "--tls-hostname", "DST.example.com")
        self.assert_equal_memory(source, target)
        self.ends_well(session, *busy)

    def test_tls_to_clear(self):
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        target = Qemu(self, "target", incoming=True, rams=(64,))
        daemon = Daemon(self, "--qmp", target.path)
        self.refused(source, daemon, *creds("src.example.com"), says="rdmamigd may have no --tls-creds there")
        self.logged(daemon, "refused: tls: a TLS connection came, but there is no --tls-creds")
        self.move(source, target, daemon)


class Reload(Tls):
    def own_folder(self):
        """A copy of the daemon's credentials that the case may change."""
        folder = self.folder / "pki"
        shutil.copytree(PKI / "ca/dst.example.com", folder)
        return folder

    def hangup(self, daemon, says):
        before = daemon.output().count(says)
        daemon.kill(signal.SIGHUP)
        self.logged(daemon, says, before + 1)

    def test_new_and_broken(self):
        """A broken folder changes nothing; a new CA shuts the old one's hosts out; the session that runs stays."""
        folder = self.own_folder()
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        target = Qemu(self, "target", incoming=True, rams=(64,))
        source.wait_letters()
        source.rams[0].fill(10, 30)
        daemon = Daemon(self, "--qmp", target.path, "--tls-creds", folder)
        self.hangup(daemon, "reloaded")

        (folder / "ca-cert.pem").write_text("rubbish")
        self.hangup(daemon, "nothing was reloaded, and what was loaded before still holds")
        self.assertIn("ca-cert.pem: there is no certificate in it", daemon.output())
        self.send(source, daemon, "--dry-run", *creds("src.example.com"))

        session = Send(self, source, daemon, "--max-bandwidth", "10M", "--suspend", "--keep-source", *creds("src.example.com"))
        session.wait_precopy()
        for file in (PKI / "wrong/src.example.com").iterdir():
            shutil.copy(file, folder)
        self.hangup(daemon, "reloaded")
        other = Qemu(self, "other", rams=(64,))
        self.refused(other, daemon, *creds("src.example.com"), says="is not signed by")
        busy = self.send(other, daemon, "--dry-run", *creds("src.example.com", "wrong"), expect=REFUSED)
        self.assertNotEqual(busy["reason"], "tls", busy)  # let in, and told that the waiting QEMU is taken
        self.ends_well(session, source, target)


class Resolve(Tls):
    def test_with_the_credentials_of_the_session(self):
        """Killed with its guardian after it has recorded `committed`; given a relative path, from another folder."""
        source, target, daemon = self.small_pair(daemon_env={"RDMAMIG_STATE_DIR": str(self.folder / "there")})
        folder = self.folder / "pki"
        shutil.copytree(PKI / "ca/src.example.com", folder)
        session = Send(self, source, daemon, "--tls-creds", os.path.relpath(folder), "--tls-hostname", "dst.example.com",
                       env={"RDMAMIG_FAULT": "switchover-commit=60000"})
        session.wait_state("committed")
        wait_until(lambda: source.status() == "postmigrate", "the state is saved")
        journal, = (self.folder / "state/journal/source").iterdir()
        facts = json.loads(journal.read_text().splitlines()[0])
        self.assertEqual((facts["tls_creds"], facts["tls_host"]), (str(folder), "dst.example.com"))
        self.kill_with_guardian(session, journal)

        def resolve(*options, expect, where=self.folder):
            done = subprocess.run([RDMAMIG, "resolve", journal.name, "--json", *map(str, options)], env=self.env, cwd=where,
                                  capture_output=True, text=True, timeout=2 * PATIENCE)
            self.assertEqual(done.returncode, expect, done.stdout + done.stderr + daemon.output())
            return json.loads(done.stdout)

        # Nobody can be asked without credentials, with the wrong ones, or with those of a stranger: then it is doubtful.
        folder.rename(self.folder / "away")
        self.assertIn("client-cert.pem" if folder.exists() else str(folder), resolve(expect=DOUBTFUL)["detail"])
        for options, says in ((creds("other.example.org"), "did not accept this host's certificate"),
                              (creds("src.example.com", "wrong"), "is not signed by")):
            self.assertIn(says, resolve(*options, expect=DOUBTFUL)["detail"])
        self.assertEqual(source.status(), "postmigrate")
        event = resolve("--tls-creds", "away", expect=0)
        self.assertEqual((event["outcome"], event["owner"]), ("failed", "source"))
        source.assert_runs()
        source.assert_left_alone()
        self.logged(daemon, "was asked after: aborted")

        # And with what the journal says.
        (self.folder / "away").rename(folder)
        again = Qemu(self, "again", incoming=True, rams=(64,))
        self.move(source, again, Daemon(self, "--qmp", again.path, *creds("dst.example.com")), "--tls-creds", folder)

    def test_guardian_asks(self):
        """The guardian, too: the daemon alone is killed, and the guest runs again by itself."""
        source, target, daemon = self.small_pair(daemon_env={"RDMAMIG_STATE_DIR": str(self.folder / "there")})
        session = Send(self, source, daemon, *creds("src.example.com"), env={"RDMAMIG_FAULT": "switchover-commit=kill"})
        session.popen.wait(PATIENCE)
        wait_until(lambda: source.status() == "running", "the guardian lets the guest run")
        source.assert_runs()
        source.assert_left_alone()
        self.logged(daemon, "was asked after: aborted")

    def kill_with_guardian(self, session, journal):
        pids = holders((f"{journal.parent}/",))
        self.assertIn(session.pid, pids)
        self.assertEqual(len(pids), 2, pids)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        session.popen.wait(PATIENCE)
        wait_until(lambda: not holders((f"{journal.parent}/",)), "nobody holds the journal")


if __name__ == "__main__":
    sys.exit(run())
