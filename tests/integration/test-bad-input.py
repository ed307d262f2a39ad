#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything that can be wrong before a byte moves: one clear line, a documented exit status, the guest untouched."""
import mmap
import os
import socket
import subprocess
import sys
import threading

from lib import (DONE, FAILED, MIB, RDMAMIG, RDMAMIGD, REFUSED, USAGE, Case, Daemon, Qemu, Send, each_qemu, free_port,
                 run)


class Clear(Case):
    def assert_clear(self, send, *words):
        """One line says what is wrong, one where the guest is; beside the states' names there is nothing else."""
        states = {"connecting", "preflight", "refused"}
        lines = [line for line in send.text().splitlines() if line not in states]
        self.assertEqual(len(lines), 2, send.text())
        self.assertRegex(lines[0], r"^rdmamig: [a-z-]+: ")
        self.assertRegex(lines[1], r"^guest .*(runs|was not touched|does not answer)")
        for word in words:
            self.assertIn(word, lines[0])


# Options of either end, a value just beyond what they take, and how that is told.
PACKETS = (("--tos", "256", "from 0 to 255"), ("--rdma-ack-timeout", "0", "from 1 to 31"),
           ("--rdma-ack-timeout", "32", "from 1 to 31"))


class CommandLine(Case):
    def check(self, command, status, *words):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30, env=self.env,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, status, f"{command}: {done.stdout}{done.stderr}")
        lines = done.stderr.strip().splitlines()
        self.assertTrue(1 <= len(lines) <= 3, f"{command}: not one clear line but: {done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr, f"{command}")
        return done

    def test_usage_of_rdmamig(self):
        send = [RDMAMIG, "send", "--qmp", "/nonexistent", "--to", "127.0.0.1:9"]
        table = [
            ([RDMAMIG], ()),
            ([RDMAMIG, "no-such-verb"], ("no-such-verb",)),
            ([RDMAMIG, "send"], ("--qmp",)),
            ([RDMAMIG, "send", "--qmp", "/x"], ("--to",)),
            ([RDMAMIG, "send", "--to", "localhost"], ("--qmp",)),
            ([*send, "--no-such-option"], ("--no-such-option",)),
            ([*send, "left-over"], ("left-over",)),
            ([RDMAMIG, "send", "--qmp", "/x", "--to", ""], ("--to",)),
            ([RDMAMIG, "send", "--qmp", "/x", "--to", "host:0"], ("--to",)),
            ([RDMAMIG, "send", "--qmp", "/x", "--to", "host:65536"], ("--to",)),
            ([RDMAMIG, "send", "--qmp", "/x", "--to", "host:port"], ("--to",)),
        ]
        for value in ("0", "-64M", "63M", "2G", "512K", "18014398509482112K", "17179869184G", "64X", "", "1e6", "64M64"):
            table.append(([*send, "--chunk-size", value], ("--chunk-size",)))
        for value in ("0", "-64M", "4095K", "64X", "", "1e9", "17179869184G"):
            table.append(([*send, "--max-pinned", value], ("--max-pinned",)))
        for value in ("0", "65", "-1", "two", ""):
            table.append(([*send, "--channels", value], ("--channels",)))
        for option, value in (("--transport", "carrier-pigeon"), ("--max-bandwidth", "-1"), ("--max-bandwidth", "fast"),
                              ("--downtime-limit", "-5"), ("--downtime-limit", "soon"), ("--max-rounds", "-1"),
                              ("--max-rounds", "x"), ("--timeout", "-1s"), ("--timeout", "x"), ("--on-timeout", "panic"),
                              ("--max-stall", "-1")):
            table.append(([*send, option, value], (option,)))
        for option, value, limits in (*PACKETS, ("--rdma-retries", "7", "from 0 to 6")):
            table.append(([*send, option, value], (option, limits)))
        for command, words in table:
            with self.subTest(command=command[1:]):
                self.check(command, USAGE, *words)

    def test_usage_of_rdmamigd(self):
        for options, words in (
                (["--no-such-option"], ("--no-such-option",)),
                (["--listen", "127.0.0.1:99999", "--qmp", "/x"], ("--listen",)),
                (["--listen", "127.0.0.1:x", "--qmp", "/x"], ("--listen",)),
                (["--listen", f"0.0.0.0:{free_port()}", "--qmp", "/x"], ("--insecure",)),
                (["--listen", "127.0.0.1:0x10", "--qmp", "/x", "left-over"], ()),
                (["--listen", "--qmp", "/x", "--rdma-retries", "1"], ("--rdma-retries",)),
                (["--listen", "--qmp", "/x", "--max-pinned", "4095K"], ("--max-pinned", "4M")),
                *((["--listen", "--qmp", "/x", option, value], (option, limits)) for option, value, limits in PACKETS)):
            with self.subTest(options=options):
                self.check([RDMAMIGD, *options], USAGE, *words)

    def test_help_and_version(self):
        for command in ([RDMAMIG, "--version"], [RDMAMIGD, "--version"], [RDMAMIG, "--help"], [RDMAMIG, "send", "--help"],
                        [RDMAMIGD, "--help"]):
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=30, env=self.env)
            self.assertEqual(done.returncode, 0, f"{command}")
            self.assertTrue(done.stdout)
            if command[1:] == ["send", "--help"]:
                for word in ("64M", "300", "auto", "cancel", "--chunk-size", "--keep-source"):
                    self.assertIn(word, done.stdout)

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.check([RDMAMIGD, "--listen", f"127.0.0.1:{port}", "--qmp", "/x"], FAILED, str(port))


class Unreachable(Clear):
    def setUp(self):
        super().setUp()
        self.source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        self.source.wait_letters()

    def refused(self, to, status, reasons, *options, qmp=None, words=()):
        send = Send(self, qmp or self.source, to, *options, human=True)
        code, result = send.finish(60)
        self.assertEqual(code, status, send.text())
        self.assertIn(result["reason"], reasons, send.text())
        self.assertEqual(result["owner"], "source")
        self.assert_clear(send, *words)
        self.source.assert_runs()
        self.source.assert_left_alone()

    def test_nobody_at_the_port(self):
        port = free_port()
        self.refused(f"127.0.0.1:{port}", REFUSED, ("peer-unreachable",), words=(str(port),))

    def test_no_such_host(self):
        self.refused("no-such-host.invalid", REFUSED, ("peer-unreachable",), words=("no-such-host.invalid",))

    def test_a_peer_that_hangs_up(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        self.refused(f"127.0.0.1:{server.getsockname()[1]}", REFUSED, ("peer-lost", "peer-unreachable", "protocol"))

    def test_a_peer_that_says_nonsense(self):
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)

        def talk():
            peer = server.accept()[0]
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.recv(1 << 16)
            peer.close()
        threading.Thread(target=talk, daemon=True).start()
        self.refused(f"127.0.0.1:{server.getsockname()[1]}", REFUSED, ("protocol", "peer-lost"))

    def test_no_qmp_socket(self):
        path = self.folder / "nothing.qmp"
        self.refused("127.0.0.1:9", REFUSED, ("qmp-unreachable",), qmp=path, words=(str(path),))

    def test_dead_qmp_socket(self):
        path = self.folder / "dead.qmp"
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(path))
        self.refused("127.0.0.1:9", REFUSED, ("qmp-unreachable",), qmp=path, words=(str(path),))

    def test_busy_qmp_socket(self):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(self.source.path))
        self.addCleanup(client.close)
        self.refused("127.0.0.1:9", REFUSED, ("qmp-busy",), words=("client",))

    def test_nobody_waits_for_the_guest(self):
        daemon = Daemon(self, "--qmp", self.folder / "none.qmp")
        self.refused(daemon, REFUSED, ("guest-not-found", "qmp-unreachable"))
        self.assertTrue(daemon.alive())

    def test_the_destination_runs_its_guest(self):
        other = Qemu(self, "other", rams=(64,), guest={"last": 5 * MIB})
        daemon = Daemon(self, "--qmp", other.path)
        self.refused(daemon, REFUSED, ("guest-not-found", "guest-state"))
        other.assert_runs()

    def test_strangers_at_the_daemons_port(self):
        """Half a word, nonsense, a long line, silence: the daemon serves the next migration."""
        target = Qemu(self, "target", incoming=True, rams=(64,))
        daemon = Daemon(self, "--qmp", target.path)
        silent = socket.create_connection(("127.0.0.1", daemon.port))
        self.addCleanup(silent.close)
        for words in (b"", b"\n", b"{", b"GET / HTTP/1.0\r\n\r\n", b'{"type":"hello"}\n', b"x" * (3 << 20), os.urandom(65536),
                      b'{"type":"hello","id":1,"protocol":1,"chunk_size":18446744073709551616}\n', b"[" * 100000 + b"\n"):
            with socket.create_connection(("127.0.0.1", daemon.port)) as stranger:
                try:
                    stranger.sendall(words)
                except OSError:
                    pass  # it hung up on us: its right
        self.move(self.source, target, daemon)


@each_qemu("7.2", "10.0")
class Refused(Clear):
    """Guests that can't be moved: refused before a byte moves, naming what is wrong and the fix."""

    def check(self, source, target, reason, *words, options=()):
        daemon = Daemon(self, "--qmp", target.path)
        send = Send(self, source, daemon, *options, human=True)
        code, result = send.finish()
        self.assertEqual((code, result["reason"]), (REFUSED, reason), send.text())
        self.assert_clear(send, *words)
        self.assertEqual(target.rams[0].read(MIB, 4096), bytes(4096), "bytes moved")
        source.assert_runs()
        source.assert_left_alone()
        self.assertTrue(daemon.alive(), daemon.output())
        self.assertTrue(target.alive(), target.output())

    def guest(self, name, incoming=False, **keywords):
        keywords = {"rams": (64,), "guest": {"last": 5 * MIB}, **keywords}
        qemu = Qemu(self, name, incoming=incoming, **keywords)
        if not incoming:
            qemu.wait_letters()
        return qemu

    def test_private_memory(self):
        self.check(self.guest("source", memory="share=off"), self.guest("target", True), "ram-not-shared", "ram0", "share=on")

    def test_memory_on_disk(self):
        self.check(self.guest("source", ram_folder=self.disk_folder()), self.guest("target", True), "ram-backing", "ram0", "tmpfs")

    def test_another_process_maps_the_memory(self):
        source = self.guest("source")
        with open(source.rams[0].path, "r+b") as file, mmap.mmap(file.fileno(), 0):
            self.check(source, self.guest("target", True), "ram-other-writers", str(os.getpid()), "--allow-untracked-writers")

    def test_other_process_allowed(self):
        source, target = self.guest("source"), self.guest("target", True)
        with open(source.rams[0].path, "r+b") as file, mmap.mmap(file.fileno(), 0):
            self.move(source, target, Daemon(self, "--qmp", target.path), "--allow-untracked-writers")

    def test_blocked_by_a_device(self):
        extra = ["-device", "nvme,serial=1,drive=n", "-drive", f"if=none,id=n,file={self.zeroes()},format=raw,read-only=on,file.locking=off"]
        self.check(self.guest("source", extra=extra), self.guest("target", True, extra=extra), "migration-blocked", "nvme")

    def zeroes(self):
        path = self.folder / "zeroes.img"
        path.write_bytes(bytes(MIB))
        return path

    def test_block_sizes_differ(self):
        self.check(self.guest("source"), self.guest("target", True, rams=(65,)), "guest-mismatch", "ram0",
                   str(64 * MIB), str(65 * MIB))

    def test_block_count_differs(self):
        self.check(self.guest("source"), self.guest("target", True, rams=(32, 32)), "guest-mismatch")

    def test_machine_differs(self):
        self.check(self.guest("source"), self.guest("target", True, machine="q35"), "guest-mismatch", "q35")

    def test_vcpus_differ(self):
        self.check(self.guest("source"), self.guest("target", True, extra=["-smp", "2"]), "guest-mismatch", "vcpus")

    def test_same_memory_at_both_ends(self):
        source = self.guest("source")
        target = self.guest("target", True, ram_paths=[source.rams[0].path])
        daemon = Daemon(self, "--qmp", target.path)
        # Seen here, by the process that maps the memory; and, if that is said to be harmless, by the destination.
        for reason, options in (("same-memory", ()), ("same-memory", ("--allow-untracked-writers",))):
            send = Send(self, source, daemon, *options, human=True)
            code, result = send.finish()
            self.assertEqual((code, result["reason"]), (REFUSED, reason), send.text())
            self.assert_clear(send, "ram0")
            source.assert_runs()
        self.assertEqual(source.parameter("faults"), 0)

    def test_chunk_sizes_that_do_not_meet(self):
        source, target = self.guest("source"), self.guest("target", True)
        daemon = Daemon(self, "--qmp", target.path, "--min-chunk-size", "16M", "--max-chunk-size", "32M")
        send = Send(self, source, daemon, "--chunk-size", "4M", human=True)
        code, result = send.finish()
        self.assertEqual((code, result["reason"]), (REFUSED, "chunk-size"), send.text())
        self.assert_clear(send, "4", "16")
        source.assert_runs()
        self.move(source, target, daemon, "--chunk-size", "64M")  # cut down to 32M

    def test_dry_run_moves_nothing(self):
        source, target = self.guest("source"), self.guest("target", True)
        daemon = Daemon(self, "--qmp", target.path)
        for _ in range(2):
            self.send(source, daemon, "--dry-run", expect=DONE)
            self.assertEqual(target.rams[0].read(MIB, 4096), bytes(4096))
            self.assertEqual(target.status(), "inmigrate")
            source.assert_runs()
            source.assert_left_alone()
        self.move(source, target, daemon)


class Busy(Case):
    def test_second_send_of_the_same_guest(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        send = Send(self, source, daemon, "--max-bandwidth", "30M", "--suspend", "--keep-source")
        send.wait_precopy()
        second = Send(self, source, daemon)
        code, result = second.finish()
        self.assertEqual((code, result["outcome"]), (REFUSED, "refused"), second.explain())
        self.assertIn(result["reason"], ("guest-busy", "qmp-busy"))
        send.kill(2)
        send.finish()
        self.move(source, target, daemon)


if __name__ == "__main__":
    sys.exit(run())
