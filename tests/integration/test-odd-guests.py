#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Guests with unusual memory, devices and names: moved with every page equal, or refused in words."""
import os
import subprocess
import sys
from pathlib import Path

from lib import (DONE, FAILED, MIB, REFUSED, SWEEP, Case, Daemon, Qemu, Send, each_qemu, run)


@each_qemu("7.2", "10.0")
class Odd(Case):
    def moved(self, *options, target=None, **keywords):
        source = Qemu(self, "source", **keywords)
        source.wait_letters()
        waiting = Qemu(self, "target", incoming=True, **{**keywords, **(target or {})})
        return self.move(source, waiting, Daemon(self, "--qmp", waiting.path), *options)

    def test_many_devices(self):
        bios = self.folder / "bios"
        bios.write_bytes(next(path for path in (Path("/usr/share/seabios/bios-256k.bin"),) if path.exists()).read_bytes())
        extra = ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={bios}", "-vga", "std", "-smp", "4",
                 "-netdev", "user,id=n0,restrict=on", "-device", "virtio-net-pci,netdev=n0", "-device", "virtio-rng-pci",
                 "-device", "qemu-xhci", "-device", "usb-tablet", "-device", "virtio-serial-pci", "-device", "e1000,romfile="]
        self.moved("--verify", rams=(96, 64), guest={"last": 50 * MIB}, extra=extra)

    def test_channels_and_chunks(self):
        for options in (("--channels", "10", "--chunk-size", "1M"), ("--channels", "3", "--chunk-size", "1G"),
                        ("--channels", "64", "--chunk-size", "2M")):
            with self.subTest(options=options):
                self.moved(*options, "--verify", rams=(65, 67), guest={"last": 30 * MIB})

    def test_sizes_that_are_no_whole_mib(self):
        size = 65 * MIB + 8192
        paths = [self.folder / f"odd{i}" for i in range(2)]
        moved = []
        for name, path, incoming in (("source", paths[0], False), ("target", paths[1], True)):
            moved.append(Qemu(self, name, rams=(64,), incoming=incoming, guest={"last": 20 * MIB},
                              extra=[
                                  "-machine", "memory-backend=odd", "-m", f"{size // 1024}K",
                                  "-object", f"memory-backend-file,id=odd,size={size},mem-path={path},share=on"]))
            moved[-1].rams[0].path.unlink()
            moved[-1].rams[0].path = path

        source, target = moved
        source.wait_letters()
        with open(paths[0], "r+b") as file:
            file.seek(size - 4096)
            file.write(b"last page" * 400)
        self.send(source, Daemon(self, "--qmp", target.path), "--suspend", "--keep-source", "--chunk-size", "1M")
        self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())

    def test_names_of_memory_files(self):
        for name in ("two words", "new\nline", "gone (deleted)", "%s%n", "über"):
            with self.subTest(name=name):
                keywords = {"rams": (64,), "guest": {"last": 5 * MIB}}
                made = []
                for side in ("source", "target"):
                    folder = self.folder / f"{side}-{name}"
                    folder.mkdir()
                    path = folder / name
                    made.append(Qemu(self, side, incoming=side == "target", **keywords, ram_paths=[path]))
                source, target = made
                source.wait_letters()
                self.move(source, target, Daemon(self, "--qmp", target.path))

    def test_memory_file_that_is_deleted(self):
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,))
        opened = [open(qemu.rams[0].path, "rb") for qemu in (source, target)]
        for qemu in (source, target):
            qemu.rams[0].path.unlink()
        self.send(source, Daemon(self, "--qmp", target.path), "--suspend", "--keep-source", "--allow-untracked-writers")
        self.assertEqual(opened[0].read(), opened[1].read())

    def test_small_tmpfs_at_the_destination(self):
        """Refused before a byte moves if it can be known, else failed; the daemon lives, and so does the guest."""
        folder = self.folder / "small"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40M", "none", folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", folder])
        source = Qemu(self, "source", rams=(64, 64), guest={"last": 5 * MIB})
        source.wait_letters()
        paths = [folder / "ram0", self.folder / "ram1"]
        target = Qemu(self, "target", incoming=True, rams=(64, 64), ram_paths=paths)
        daemon = Daemon(self, "--qmp", target.path)
        source.rams[0].fill(8, 55)
        send = Send(self, source, daemon)
        code, result = send.finish()
        self.assertIn(code, (REFUSED, FAILED), send.explain())
        self.assertEqual(result["reason"], "memory-short", send.explain())
        source.assert_runs()
        source.assert_left_alone()
        self.assertTrue(daemon.alive(), daemon.output())
        self.assertEqual(target.status(), "inmigrate")
        subprocess.run(["mount", "-o", "remount,size=100M", folder], check=True)
        self.move(source, target, daemon)

    def test_destination_runs_out_of_memory_later(self):
        """In the middle: the guest dirties pages that were zero at first."""
        folder = self.folder / "small"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=44M", "none", folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", folder])
        source = Qemu(self, "source", rams=(64,), guest={"mode": 0, "last": 60 * MIB})
        source.wait_letters()
        source.rams[0].fill(8, 30)
        target = Qemu(self, "target", incoming=True, rams=(64,), ram_paths=[folder / "ram"])
        daemon = Daemon(self, "--qmp", target.path)
        send = Send(self, source, daemon, "--max-bandwidth", "10M")
        send.wait_precopy()
        source.set_parameter("mode", SWEEP)
        code, result = send.finish()
        self.assertEqual((code, result["reason"]), (FAILED, "memory-short"), send.explain())
        source.assert_runs()
        source.assert_left_alone()
        self.assertTrue(daemon.alive(), daemon.output())
        subprocess.run(["mount", "-o", "remount,size=100M", folder], check=True)
        self.move(source, target, daemon)

    def test_one_file_for_two_blocks(self):
        """Two backends over the same bytes: refused, at either end."""
        path = self.folder / "shared"
        for rams in (((path, path), None), (None, (path, path))):
            with self.subTest(rams=rams):
                source = Qemu(self, "source", rams=(64, 64), guest={"last": 5 * MIB}, ram_paths=rams[0])
                target = Qemu(self, "target", incoming=True, rams=(64, 64), ram_paths=rams[1])
                source.wait_letters()
                result = self.send(source, Daemon(self, "--qmp", target.path), expect=REFUSED)
                self.assertEqual(result["reason"], "ram-backing")
                source.assert_runs()
                source.kill(), target.kill()

    def test_two_blocks_of_one_file_at_offsets(self):
        if self.version == "7.2":
            self.skipTest("QEMU 7.2 has no offset= for memory files")
        made = []
        for side in ("source", "target"):
            path = self.folder / f"{side}-both"
            path.write_bytes(b"")
            os.truncate(path, 128 * MIB)
            made.append(Qemu(self, side, incoming=side == "target", rams=(64, 64), guest={"last": 5 * MIB},
                             ram_paths=[path, f"{path},offset=64M"]))
        source, target = made
        source.wait_letters()
        with open(self.folder / "source-both", "r+b") as file:
            file.seek(100 * MIB)
            file.write(os.urandom(MIB))
        self.send(source, Daemon(self, "--qmp", target.path), "--suspend", "--keep-source")
        self.assertEqual((self.folder / "source-both").read_bytes(), (self.folder / "target-both").read_bytes())

    def test_cpu_differs(self):
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB}, extra=["-cpu", "qemu64"])
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,), extra=["-cpu", "Nehalem"])
        daemon = Daemon(self, "--qmp", target.path)
        send = Send(self, source, daemon)
        code, result = send.finish()
        self.assertEqual(code, REFUSED, send.explain())
        self.assertEqual(target.status(), "inmigrate")

    def test_flipped_byte_is_seen(self):
        """With --verify a wrong byte at the destination fails the move, whichever the block; the guest goes on."""
        source = Qemu(self, "source", rams=(64,), guest={"mode": SWEEP, "last": 20 * MIB})
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,))
        daemon = Daemon(self, "--qmp", target.path, env={"RDMAMIG_FAULT": "flip-byte"})
        result = self.send(source, daemon, "--verify", expect=FAILED)
        self.assertEqual(result["reason"], "verify-mismatch")
        source.assert_runs()
        source.assert_left_alone()
        daemon.kill()
        if not target.alive() or target.status() != "inmigrate":
            target = Qemu(self, "again", incoming=True, rams=(64,))
        self.move(source, target, Daemon(self, "--qmp", target.path), "--verify")

    def test_ping_pong(self):
        """One guest, there and back many times, into new QEMUs with old memory files."""
        hops = int(os.environ.get("RDMAMIG_HOPS", "4"))
        guest = {"mode": SWEEP, "last": 40 * MIB}
        paths = [[self.folder / f"{side}{i}" for i in range(2)] for side in "ab"]
        current = Qemu(self, "a", rams=(64, 33), guest=guest, ram_paths=paths[0])
        current.wait_letters()
        stations = [current]
        for hop in range(1, hops + 1):
            target = Qemu(self, f"hop{hop}", rams=(64, 33), incoming=True, ram_paths=paths[hop % 2])
            daemon = Daemon(self, "--qmp", target.path)
            self.send(current, daemon, "--suspend", "--keep-source", "--verify")
            self.assert_equal_memory(current, target)
            current.kill()
            target.qmp("cont")
            target.assert_runs()
            stations.append(target)
            self.assert_counted_on(*stations)
            daemon.kill()
            current = target
        self.assertEqual(current.parameter("faults"), 0)


if __name__ == "__main__":
    sys.exit(run())
