#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Several at once: two sends of one guest, several guests at one daemon, two daemons or two sockets at one waiting QEMU, and
people who change the guest during pre-copy."""
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from lib import (COMPARE, DONE, FAILED, MIB, REFUSED, SWEEP, Case, Daemon, Qemu, QmpError, Send, each_qemu, run, wait_until)

SLOWLY = ("--max-bandwidth", "20M")


class Several(Case):
    version = "10.0"
    SMALL = {"rams": (64,), "guest": {"last": 5 * MIB}}

    def control_socket(self, qemu):
        """The test's own QMP socket of a QEMU, given free for somebody else."""
        qemu.qmp.close()
        return Path(str(qemu.path).replace(".qmp", ".ctl"))

    def test_one_guest_sent_twice(self):
        """By two QMP sockets, so that QEMU itself doesn't stop the second: it is refused, and the first goes on."""
        source, target, daemon = self.pair(rams=(128,), guest={"last": 5 * MIB})
        source.rams[0].fill(20, 80)
        other = Qemu(self, "other", incoming=True, rams=(128,))
        other_daemon = Daemon(self, "--qmp", other.path)
        first = Send(self, source, daemon, *SLOWLY, "--suspend", "--keep-source")
        first.wait_precopy()
        second = Send(self, self.control_socket(source), other_daemon)
        code, result = second.finish()
        self.assertEqual(code, REFUSED, second.explain())
        self.assertEqual(result["owner"], "source")
        self.assertEqual(first.finish()[0], DONE, first.explain())
        self.assertEqual(other.status(), "inmigrate")
        done = subprocess.run([str(COMPARE), source.rams[0].path, target.rams[0].path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_guests_at_once_into_a_folder(self):
        """Each finds its own QEMU among those of --qmp-dir, although all of them look at the same time."""
        names = ["one", "two", "three", "four"]
        folder = self.folder / "sockets"
        folder.mkdir()
        sources, targets = [], []
        for name in names:
            sources.append(Qemu(self, f"s{name}", guest_name=name, **self.SMALL))
            targets.append(Qemu(self, f"t{name}", guest_name=name, incoming=True, rams=(64,)))
            (folder / name).symlink_to(targets[-1].path)
        for source in sources:
            source.wait_letters()
        daemon = Daemon(self, "--qmp-dir", folder)
        sends = [Send(self, source, daemon, "--suspend", "--keep-source") for source in sources]
        for send, source, target in zip(sends, sources, targets):
            self.assertEqual(send.finish()[0], DONE, send.explain())
            self.assert_equal_memory(source, target)

    def test_two_sockets_of_one_waiting_qemu(self):
        """Two daemons that reach one QEMU by different sockets: only one guest may be written into its RAM."""
        first, second = Qemu(self, "first", **self.SMALL), Qemu(self, "second", **self.SMALL)
        target = Qemu(self, "target", incoming=True, rams=(64,))
        daemons = [Daemon(self, "--qmp", path) for path in (target.path, self.control_socket(target))]
        for source in (first, second):
            source.wait_letters()
        first.rams[0].fill(16, 40)
        one = Send(self, first, daemons[0], *SLOWLY, "--keep-source", "--suspend")
        one.wait_precopy()
        two = Send(self, second, daemons[1])
        code, result = two.finish()
        self.assertEqual((code, result["reason"]), (REFUSED, "guest-busy"), two.explain())
        second.assert_runs()
        self.assertEqual(one.finish()[0], DONE)

    def test_what_exec_starts_in_vain_is_ended(self):
        """A QEMU that --exec started for somebody else."""
        source = Qemu(self, "source", extra=["-uuid", "11111111-1111-4111-8111-111111111111"], **self.SMALL)
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,), extra=["-uuid", "22222222-2222-4222-8222-222222222222"])
        result = self.send(source, Daemon(self, "--exec", f"echo {target.path}"), expect=REFUSED)
        self.assertEqual(result["reason"], "guest-not-found")
        wait_until(lambda: not target.alive(), "the QEMU ends")
        source.assert_runs()

    def test_an_idle_daemon_ends(self):
        """Again and again: it once missed its own last word."""
        for _ in range(60):
            daemon = Daemon(self, "--qmp", "/nonexistent")
            daemon.popen.terminate()
            self.assertEqual(daemon.popen.wait(20), 0, daemon.output())

    def test_a_folder_with_a_socket_that_is_silent(self):
        """Another program's socket, or a monitor that libvirt holds, delays the search but doesn't end it."""
        folder = self.folder / "sockets"
        folder.mkdir()
        source = Qemu(self, "source", **self.SMALL)
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,))
        silent = socket.socket(socket.AF_UNIX)
        silent.bind(str(folder / "aaa"))
        silent.listen()
        self.addCleanup(silent.close)
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(folder / "bbb"))
        dead.close()
        (folder / "target").symlink_to(target.path)
        self.move(source, target, Daemon(self, "--qmp-dir", folder))


class OneAfterTheOther(Case):
    GUESTS, WARM = 20, 6

    def holds(self, daemon):
        """What the daemon holds of the host: descriptors, mappings, tasks, children, memory in KiB."""
        proc = Path(f"/proc/{daemon.pid}")
        children = [path for path in Path("/proc").glob("[0-9]*") if self.parent(path) == daemon.pid]
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
        return {"descriptors": len(os.listdir(proc / "fd")), "tasks": len(os.listdir(proc / "task")), "children": len(children),
                "mappings": len((proc / "maps").read_text().splitlines()), "memory": int(status["VmRSS"].split()[0]),
                "run": [name for name in os.listdir(self.env["RDMAMIG_RUN_DIR"]) if not name.startswith("recv-")]}

    @staticmethod
    def parent(path):
        try:
            return int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return 0

    def test_guests(self):
        """Twenty, into one daemon: it holds no more in the end than when it was warm."""
        folder = self.folder / "sockets"
        folder.mkdir()
        daemon, after = Daemon(self, "--qmp-dir", folder), []
        for n in range(self.GUESTS):
            self.version = ("7.2", "10.0")[n % 2]
            source, target = (Qemu(self, name, incoming=name == "target", rams=(32,), guest={"last": 3 * MIB, "pace": 1},
                                   guest_name=f"guest-{n}") for name in ("source", "target"))
            (folder / target.path.name).symlink_to(target.path)
            source.wait_letters()
            self.send(source, daemon)
            target.assert_runs()
            self.assert_counted_on(source, target)
            target.kill()
            (folder / target.path.name).unlink()
            wait_until(lambda: len(os.listdir(f"/proc/{daemon.pid}/task")) <= (after or [{"tasks": 8}])[-1]["tasks"],
                       "the session's threads end")
            time.sleep(0.1)
            after.append(self.holds(daemon))
        for key in ("descriptors", "mappings", "tasks", "children", "memory"):
            print(f"# {key}: {[held[key] for held in after]}")
        warm, last = after[self.WARM - 1], after[-1]
        for key in ("descriptors", "tasks", "children", "run"):
            self.assertEqual(last[key], warm[key], key)
        self.assertLessEqual(last["mappings"], warm["mappings"] + 4)  # of the allocator's; a guest's would be one or more each
        self.assertLess(last["memory"], warm["memory"] + 4096)  # a guest's would be 32 MiB each
        self.assertEqual(last["run"], [])


@each_qemu("7.2", "10.0")
class Changing(Case):
    """Somebody changes the guest, by a QMP socket of his own, during pre-copy."""

    def in_precopy(self, **keywords):
        source, target, daemon = self.pair(rams=(128,), guest={"last": 5 * MIB}, **keywords)
        source.rams[0].fill(20, 60)
        send = Send(self, source, daemon, *SLOWLY, "--suspend", "--keep-source")
        send.wait_precopy()
        return source, target, daemon, send

    def assert_ended(self, source, target, daemon, send, *reasons):
        """Moved, with equal memory, or refused with one of the reasons; nothing in between."""
        code, result = send.finish()
        self.assertTrue(daemon.alive(), daemon.output())
        if code == DONE:
            self.assertFalse(reasons, "it should have been refused")
            self.assert_equal_memory(source, target)
            return
        self.assertEqual(code, FAILED, send.explain())
        self.assertIn(result["reason"], reasons, send.explain())
        source.assert_left_alone()

    def test_stop(self):
        source, target, daemon, send = self.in_precopy()
        source.qmp("stop")
        self.assert_ended(source, target, daemon, send, "guest-state")
        self.assertEqual(source.status(), "paused")

    def test_stop_and_cont(self):
        source, target, daemon, send = self.in_precopy()
        source.qmp("stop")
        source.qmp("cont")
        self.assert_ended(source, target, daemon, send, "guest-state")
        source.assert_runs()

    def test_migrate(self):
        source, target, daemon, send = self.in_precopy()
        source.qmp("migrate", uri="exec:cat >/dev/null")
        self.assert_ended(source, target, daemon, send, "guest-state", "guest-busy", "guest-reset")
        self.assertFalse(target.qmp("query-status")["running"])

    def test_memory_plugged(self):
        source, target, daemon, send = self.in_precopy(extra=["-m", "128M,slots=2,maxmem=1G"])
        source.qmp("object-add", **{"qom-type": "memory-backend-file", "id": "more", "size": 64 * MIB,
                                    "mem-path": str(self.folder / "more"), "share": True})
        source.qmp("device_add", driver="pc-dimm", id="dimm", memdev="more")
        self.assert_ended(source, target, daemon, send, "guest-changed")
        source.assert_runs()

    def test_memory_object_added(self):
        """A backend that is not plugged in takes no part in QEMU's migration: either way is right, silence isn't."""
        source, target, daemon, send = self.in_precopy()
        source.qmp("object-add", **{"qom-type": "memory-backend-ram", "id": "more", "size": 16 * MIB})
        code, result = send.finish()
        if code == DONE:
            self.assert_equal_memory(source, target)
        else:
            self.assertEqual((code, result["reason"]), (FAILED, "guest-changed"), send.explain())
            source.assert_runs()

    def test_device_added(self):
        source, target, daemon, send = self.in_precopy()
        source.qmp("device_add", driver="virtio-rng-pci", id="rng")
        self.assert_ended(source, target, daemon, send, "guest-changed")
        source.assert_runs()

    def test_capabilities_changed(self):
        source, target, daemon, send = self.in_precopy()
        source.qmp("migrate-set-capabilities", capabilities=[{"capability": "pause-before-switchover", "state": True}])
        self.assert_ended(source, target, daemon, send)

    def test_system_reset_at_the_waiting_qemu(self):
        source, target, daemon, send = self.in_precopy()
        target.qmp("system_reset")
        code, result = send.finish()
        if code == DONE:
            self.assert_equal_memory(source, target)
        else:
            self.assertEqual(code, FAILED)
            source.assert_runs()


if __name__ == "__main__":
    sys.exit(run())
