#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk on shared storage: both QEMUs have the same image open, and at no moment may both write it.

The guest writes to it all the time (tests/guest/boot.S, WRITE), each write with the next number. Whatever becomes of the
attempt, it goes on writing where it is, and every write that it saw completed is in the image.

Who may write shows in the locks that QEMU holds on the image file: byte 100 + n is locked by who has permission n, and
writing is permission 1. A thread looks at them as long as a case lasts.

RDMAMIG_MATRIX=full runs each case on both QEMUs with both formats; else each runs once, those about a QEMU that
has loaded the state and waits on 7.2: 10.0 never takes an image as long as its guest is paused.
"""
import os
import signal
import struct
import subprocess
import sys
import threading

from lib import CANCELLED, DISK, DONE, FAILED, MIB, WRITE, Case, Daemon, Qemu, QmpError, Send, qemu_command, run, wait_until
from peers import Proxy

WRITER_LOCK = 101
SLOTS = 64
DISK_MIB = 8
UNTOUCHED = 4 * MIB  # an offset that the guest does not write to
FULL = os.environ.get("RDMAMIG_MATRIX") == "full"


class LockWatch:
    """How many open files hold the writer's lock of an image, over and over."""

    def __init__(self, case, path):
        info = path.stat()
        self.file = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
        self.most, self.none_seen, self.end = 0, False, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        case.addCleanup(self.stop)

    def stop(self):
        self.end.set()
        self.thread.join()

    def writers(self):
        count = 0
        for fields in (line.split() for line in open("/proc/locks")):
            if len(fields) == 8 and fields[5] == self.file:
                last = WRITER_LOCK if fields[7] == "EOF" else int(fields[7])
                count += int(fields[6]) <= WRITER_LOCK <= last
        return count

    def _watch(self):
        while not self.end.wait(0.001):
            # The kernel tells its locks in pieces, so that one is seen twice if others' come and go in between: look again. Two
            # QEMUs that have the image open for writing hold it for longer than that takes.
            count = min(self.writers() for _ in range(5)) if (count := self.writers()) > 1 else count
            self.most = max(self.most, count)
            self.none_seen = self.none_seen or count == 0


class Disks(Case):
    format = "qcow2"

    # ---- the rig ----

    def rig(self, image_format, daemon_env=None, source_extra=()):
        self.format, self.image = image_format, self.folder / f"disk.{image_format}"
        self.image.unlink(missing_ok=True)
        subprocess.run(["qemu-img", "create", "-q", "-f", image_format, self.image, f"{DISK_MIB}M"], check=True)
        self.source = self.qemu("source", extra=source_extra)
        self.wait_writes(self.source)
        self.target = self.qemu("target", incoming=True)
        self.daemon = Daemon(self, "--qmp", self.target.path, env=daemon_env)
        self.watch = LockWatch(self, self.image)
        wait_until(lambda: self.watch.most == 1, "the running guest has its image locked")

    def qemu(self, name, incoming=False, extra=()):
        blockdev = f"driver={self.format},node-name=disk,file.driver=file,file.filename={self.image}"
        return Qemu(self, name, incoming=incoming, rams=(64,), guest={"mode": DISK | WRITE, "depth": 1, "pace": 1},
                    extra=["-blockdev", blockdev, "-device", "virtio-blk-pci,drive=disk,id=vd", *extra])

    def wait_writes(self, qemu, more=10):
        goal = qemu.parameter("reads") + more
        wait_until(lambda: qemu.parameter("reads") >= goal or not qemu.alive(), f"{qemu.name} writes to its disk")
        self.assertTrue(qemu.alive(), qemu.output())
        self.assertEqual((qemu.status(), qemu.parameter("faults")), ("running", 0))

    def image_bytes(self):
        raw = self.folder / "disk.copy"
        subprocess.run(["qemu-img", "convert", "-f", self.format, "-O", "raw", self.image, raw], check=True)
        return raw.read_bytes()

    def assert_image_whole(self, qemu):
        """Ends the guest, and finds in the image each write that it saw completed, and no other's."""
        qemu.qmp("stop")
        done = qemu.parameter("reads")
        qemu.qmp("quit")
        wait_until(lambda: not qemu.alive(), "QEMU ends")
        if self.format == "qcow2":
            check = subprocess.run(["qemu-img", "check", "-f", "qcow2", self.image], capture_output=True, text=True)
            self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
            self.assertIn("No errors were found", check.stdout)
        content = self.image_bytes()
        for slot in range(SLOTS):
            last = done - (done - slot) % SLOTS
            expected = last if last > 0 else 0
            first, second = (struct.unpack_from("<I", content, slot * 4096 + at)[0] for at in (0, 4092))
            self.assertIn(first, (expected, done + 1 if (done + 1) % SLOTS == slot else expected), f"page {slot}, {done} writes")
            self.assertEqual(first, second)
        self.assertEqual(content[UNTOUCHED:].count(0), len(content) - UNTOUCHED, "somebody else wrote")

    def assert_source_keeps_it(self, send, status):
        code, result = send.finish()
        self.assertEqual((code, result["owner"]), (status, "source"), send.explain())
        self.wait_writes(self.source)
        self.assertLessEqual(self.watch.most, 1, "two writers at once")
        self.assertEqual(self.watch.writers(), 1)
        self.source.assert_left_alone()
        return result

    def assert_next_attempt_passes(self):
        """With a new QEMU and daemon: the old one may be burnt. Then the image is looked at, which ends the guest."""
        if self.target.alive():
            self.target.kill()
        self.daemon.kill()
        self.target = self.qemu("again", incoming=True)
        self.daemon = Daemon(self, "--qmp", self.target.path)
        self.send(self.source, self.daemon)
        self.wait_writes(self.target)
        self.assertLessEqual(self.watch.most, 1, "two writers at once")
        self.assert_image_whole(self.target)

    def at(self, fault, state, *options):
        send = Send(self, self.source, self.daemon, *options, env={"RDMAMIG_FAULT": f"{fault}=3000"})
        wait_until(lambda: self.source.status() == state, f"the source is {state}\n{send.stderr()}")
        return send

    # ---- success ----

    def moved(self, image_format):
        self.rig(image_format)
        before = self.source.parameter("reads")
        self.send(self.source, self.daemon)
        self.wait_writes(self.target)
        self.assertGreater(self.target.parameter("reads"), before)
        self.assertFalse(self.source.alive())
        self.assertEqual((self.watch.most, self.watch.writers()), (1, 1))
        self.assert_image_whole(self.target)

    def moved_and_kept(self, image_format):
        """The old QEMU can neither write nor be let run again."""
        self.rig(image_format)
        self.send(self.source, self.daemon, "--keep-source")
        self.wait_writes(self.target)
        self.assertEqual((self.watch.most, self.watch.writers()), (1, 1))
        self.assertTrue(self.watch.none_seen, "nobody had it between the save and cont")
        with self.assertRaisesRegex(QmpError, "lock|activate|inactive"):
            self.source.qmp("cont")
        self.assertFalse(self.source.qmp("query-status")["running"])
        try:
            text = self.source.qmp("human-monitor-command", **{
                "command-line": f'qemu-io -d /machine/peripheral/vd/virtio-backend "write -P 0x41 {UNTOUCHED} 4096"'})
        except (QmpError, OSError):  # QEMU before 10.0 aborts rather than write to an inactive image
            wait_until(lambda: not self.source.alive(), "the old QEMU ends")
        else:
            self.assertNotIn("wrote", text)
        self.wait_writes(self.target)
        self.assertEqual(self.watch.writers(), 1)
        self.assert_image_whole(self.target)

    def paused(self, image_format):
        """A guest that its operator had paused: its disks stay the source's until somebody lets it run at the destination."""
        self.rig(image_format)
        self.send(self.source, self.daemon, "--suspend", "--keep-source")
        self.assertEqual(self.watch.writers(), 0)
        self.target.qmp("cont")
        self.wait_writes(self.target)
        self.assertEqual((self.watch.most, self.watch.writers()), (1, 1))
        self.assert_image_whole(self.target)

    # ---- failures, by when they come ----

    def before_the_save(self, image_format):
        self.rig(image_format)
        send = self.at("switchover-stopped", "paused")
        self.daemon.kill()
        self.assert_source_keeps_it(send, FAILED)
        self.assert_next_attempt_passes()

    def after_the_save(self, image_format):
        self.rig(image_format)
        send = self.at("switchover-saved", "postmigrate")
        self.assertEqual(self.watch.writers(), 0, "the source has let go of it")
        send.kill(signal.SIGINT)
        self.assert_source_keeps_it(send, CANCELLED)
        self.assert_next_attempt_passes()

    def killed_after_the_save(self, image_format):
        """kill -9 of rdmamig: its guardian takes the disks back."""
        self.rig(image_format)
        send = self.at("switchover-saved", "postmigrate")
        send.kill()
        wait_until(lambda: self.source.status() == "running", "the guardian resumes the guest")
        self.wait_writes(self.source)
        self.assertEqual((self.watch.most, self.watch.writers()), (1, 1))
        self.assert_next_attempt_passes()

    def at_the_load(self, image_format):
        """The destination's QEMU lacks a device, and rejects the state half-way."""
        self.rig(image_format, source_extra=["-device", "virtio-rng-pci"])
        send = Send(self, self.source, self.daemon)
        result = self.assert_source_keeps_it(send, FAILED)
        self.assertEqual(result["reason"], "state-load")
        wait_until(lambda: not self.target.alive(), "the burnt QEMU is ended")
        self.assert_image_whole(self.source)

    def cut_at(self, word):
        """The connection breaks when this message of either end is on its way."""
        def script(direction, message):
            if message["type"] != word:
                return message
            self.held = self.watch.writers()
            proxy.cut()
            return None
        proxy = Proxy(self, self.daemon, script)
        return Send(self, self.source, proxy.address)

    def loaded(self, image_format):
        """Before commit, with two QEMUs that both hold the guest."""
        self.rig(image_format)
        self.assert_source_keeps_it(self.cut_at("prepared"), FAILED)
        self.assertEqual(self.held, 0, "the destination takes it before it is told to let the guest run")
        wait_until(lambda: not self.target.alive(), "the burnt QEMU is ended")
        self.assert_next_attempt_passes()

    def aborted_after_commit(self, image_format):
        """`commit` never arrives; the destination is asked, and has aborted."""
        self.rig(image_format)
        self.assert_source_keeps_it(self.cut_at("commit"), FAILED)
        self.assertEqual(self.held, 0, "the destination takes it before it is told to let the guest run")
        wait_until(lambda: not self.target.alive(), "the burnt QEMU is ended")
        self.assert_next_attempt_passes()

    def running_lost(self, image_format):
        """`running` is lost: the guest is there, and writes there only."""
        self.rig(image_format)
        self.assertEqual(self.cut_at("running").finish()[0], DONE)
        self.wait_writes(self.target)
        self.assertEqual((self.watch.most, self.watch.writers()), (1, 1))
        self.assert_image_whole(self.target)


def add_cases():
    """A test for each case; in the default run each with one QEMU and one format, in turn."""
    cases = ("moved", "moved_and_kept", "before_the_save", "paused", "after_the_save", "killed_after_the_save", "at_the_load",
             "loaded", "aborted_after_commit", "running_lost")
    rigs = [(version, image_format) for version in ("7.2", "10.0") for image_format in ("qcow2", "raw")]
    for n, case in enumerate(cases):
        for version, image_format in rigs if FULL else [rigs[(n * 3) % len(rigs)]]:
            def test(self, case=case, version=version, image_format=image_format):
                self.version = version
                qemu_command(version)
                getattr(self, case)(image_format)
            setattr(Disks, f"test_{case}_{image_format}_qemu_{version.replace('.', '_')}", test)


add_cases()

if __name__ == "__main__":
    sys.exit(run())
