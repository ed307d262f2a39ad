#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A running guest moves from one QEMU to another, whole, and goes on once."""
import os
import shlex
import socket
import sys

from lib import CANCELLED, DONE, MIB, Case, Daemon, Qemu, Send, each_qemu, run, wait_until


@each_qemu("7.2", "10.0")
class Basic(Case):
    def test_every_page_while_the_guest_dirties_100_mib(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        result = self.move(source, target, daemon)
        self.assertEqual(target.parameter("faults"), 0)
        self.assertGreater(result["metrics"]["sent_bytes"], 160 * MIB)

    def test_default_run_ends_with_one_guest_at_the_destination(self):
        source, target, daemon = self.pair()
        result = self.send(source, daemon)
        self.assertEqual((result["outcome"], result["owner"]), ("done", "destination"))
        target.assert_runs()
        wait_until(lambda: not source.alive(), "the source's QEMU is quit")
        self.assert_counted_on(source, target)
        self.assertEqual(target.parameter("faults"), 0)

    def test_paused_guest_arrives_paused(self):
        source, target, daemon = self.pair()
        source.qmp("stop")
        letters = source.serial()
        self.send(source, daemon, "--keep-source")
        self.assertEqual(target.status(), "paused")
        self.assertEqual(target.serial(), "")
        self.assertEqual(source.serial(), letters)
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)


class Options(Case):
    def test_small_and_large_chunks_and_many_channels(self):
        for options in (["--chunk-size", "1M", "--channels", "1"], ["--chunk-size", "1G", "--channels", "8"]):
            with self.subTest(options=options):
                source, target, daemon = self.pair(rams=(257,))
                source.rams[0].fill(128, 129)
                self.move(source, target, daemon, *options)
                for process in (source, target, daemon):
                    process.kill()

    def test_verify(self):
        source, target, daemon = self.pair()
        source.rams[0].fill(128, 64)
        self.move(source, target, daemon, "--verify")

    def test_several_guests_at_once_through_one_daemon(self):
        sources = [self.new("source", name) for name in ("one", "two")]
        targets = [self.new("target", name) for name in ("one", "two")]
        daemon = Daemon(self, *(word for target in targets for word in ("--qmp", target.path)))
        sends = [Send(self, source, daemon, "--suspend", "--keep-source") for source in sources]
        for send, source, target in zip(sends, sources, targets):
            self.assertEqual(send.finish()[0], DONE, send.explain())
            self.assert_equal_memory(source, target)
            target.qmp("cont")
            target.assert_runs()
            self.assert_counted_on(source, target)

    def test_guest_found_by_name_in_a_folder(self):
        """--qmp-dir: among several that wait, the one with the guest's name; things that are no QEMU don't matter."""
        folder = self.folder / "sockets"
        folder.mkdir()
        source = self.new("source", "two")
        targets = {name: self.new("target", name) for name in ("one", "two", "three")}
        for name, target in targets.items():
            (folder / f"{name}.qmp").symlink_to(target.path)
        (folder / "note.txt").write_text("not a socket")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "dead.qmp"))
        self.move(source, targets["two"], Daemon(self, "--qmp-dir", folder))
        for name in ("one", "three"):
            self.assertEqual(targets[name].status(), "inmigrate")

    def test_waiting_qemu_started_on_demand(self):
        """--exec: a failed attempt ends the QEMU that it had started, and the next one gets its own."""
        source = self.new("source", "guest")
        source.rams[0].fill(128, 64)
        target = Qemu(self, "target", incoming=True, start=False)
        pid_file = self.folder / "target.pid"
        script = self.folder / "start"
        script.write_text("#!/bin/sh\n" + shlex.join(target.command) + f" -daemonize -pidfile {pid_file} >/dev/null 2>&1\n"
                          f'echo "$RDMAMIG_GUEST" >> {self.folder}/starts\necho {target.path}\n')
        script.chmod(0o755)
        daemon = Daemon(self, "--exec", script)
        send = Send(self, source, daemon, "--max-bandwidth", "20M")
        send.wait_precopy()
        first = int(pid_file.read_text())
        self.addCleanup(lambda: os.path.exists(f"/proc/{first}") and os.kill(first, 9))
        send.kill(2)
        self.assertEqual(send.finish()[0], CANCELLED, send.explain())
        wait_until(lambda: not pid_file.exists(), "the QEMU of the failed attempt is ended")
        target.rams[0].path.unlink()
        result = self.send(source, daemon, "--suspend", "--keep-source")
        target.adopt(int(pid_file.read_text()))
        self.assertEqual(result["owner"], "destination")
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assert_counted_on(source, target)
        self.assertEqual((self.folder / "starts").read_text().split(), ["guest", "guest"])

    def new(self, role, name):
        qemu = Qemu(self, role, incoming=role == "target", guest_name=name)
        if role == "source":
            qemu.wait_letters()
        return qemu


if __name__ == "__main__":
    sys.exit(run())
