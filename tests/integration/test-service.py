#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamigd as a systemd service, with the unit as it is installed: container.py boots systemd for it."""
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import unittest
from pathlib import Path

import container
from lib import (BUILD, CANCELLED, DONE, FAILED, MIB, PATIENCE, RDMAMIG, RDMAMIGD, REFUSED, ROOT, Case, Qemu, Send, free_port,
                 run, wait_until)

UNIT = BUILD / "contrib/systemd/rdmamigd.service"
DROP_IN = container.UNITS / "rdmamigd.service.d/test.conf"
STATE, RUN = Path("/var/lib/rdmamig"), Path("/run/rdmamig")
NUMBERS = {"DAC_OVERRIDE": 1, "IPC_LOCK": 14, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_RESOURCE": 24,
           "CHECKPOINT_RESTORE": 40}  # linux/capability.h
# What root has here: some containers and VMs lack one or the other.
BOUNDING = int(re.search(r"^CapBnd:\t(\w+)$", Path("/proc/self/status").read_text(), re.M)[1], 16)
SLOW = "--max-bandwidth", "20M", "--downtime-limit", "2s"


def systemctl(*words, check=True):
    done = subprocess.run(["systemctl", *map(str, words)], capture_output=True, text=True, timeout=4 * PATIENCE)
    if check and done.returncode != 0:
        raise AssertionError(f"systemctl {words}: {done.stdout}{done.stderr}\n{journal()}")
    return done.stdout.strip()


def journal(lines=60):
    return subprocess.run(["journalctl", "-q", "--no-pager", "-o", "cat", "-n", str(lines), "-u", "rdmamigd"],
                          capture_output=True, text=True).stdout


def show(name):
    return systemctl("show", "--value", "-p", name, "rdmamigd")


def cgroup_of(pid):
    return Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2]


class Service(Case):
    """The daemon is the unit's; sources, QEMUs and `rdmamig send` are the test's own."""

    def setUp(self):
        super().setUp()
        # The places that the unit is about, not the test's own.
        for name in ("RDMAMIG_STATE_DIR", "RDMAMIG_RUN_DIR"):
            del self.env[name]
        self.address = f"127.0.0.1:{free_port()}"
        self.addCleanup(systemctl, "reset-failed", check=False)
        self.addCleanup(systemctl, "stop", "rdmamigd", check=False)
        self.addCleanup(self.release)

    def configure(self, *options, fault=None, unit=()):
        """The unit's drop-in: options, a fault point that holds until release()."""
        self.hold = self.folder / "hold"
        self.hold.touch()
        lines = [f'Environment="RDMAMIGD_OPTIONS=--listen={self.address} {" ".join(map(str, options))}"']
        if fault:
            lines += [f"Environment=RDMAMIG_FAULT={fault}={self.hold}"]
        DROP_IN.parent.mkdir(exist_ok=True)
        DROP_IN.write_text("\n".join(["[Service]", *lines, *unit]) + "\n")
        systemctl("daemon-reload")

    def start(self, *options, **keywords):
        self.configure(*options, **keywords)
        systemctl("start", "rdmamigd")

    def release(self):
        (self.folder / "hold").unlink(missing_ok=True)

    def main_pid(self):
        return int(show("MainPID"))

    def small_pair(self):
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        source.wait_letters()
        source.rams[0].fill(16, 20)
        return source, Qemu(self, "target", incoming=True, rams=(64,))

    def begin(self, source, *options, fault=None):
        return Send(self, source, self.address, *options, env={"RDMAMIG_FAULT": f"{fault}={self.hold}"} if fault else None)

    def begin_stop(self, verb="stop"):
        """Returns once rdmamigd has begun to stop."""
        systemctl("--no-block", verb, "rdmamigd")
        wait_until(lambda: "stopping: no new sessions" in journal(), "rdmamigd stops")

    def wait_stopped(self):
        wait_until(lambda: show("ActiveState") in ("inactive", "failed"), "the unit is inactive")
        self.assertEqual(show("Result"), "success", journal())

    def running(self, *qemus):
        return [qemu.name for qemu in qemus if qemu.alive() and qemu.qmp("query-status")["running"]]

    def assert_source_has_it(self, source, target):
        self.assertEqual(self.running(source, target), [source.name])
        source.assert_runs()
        source.assert_left_alone()


class Unit(Service):
    def test_starts_migrates_reloads_stops(self):
        source, target = self.small_pair()
        self.start("--qmp", target.path)
        pid = self.main_pid()
        self.assertIn("Serving: 0 sessions", show("StatusText"))
        self.assert_limits(pid)
        self.assert_rights(pid, "daemon")
        send = self.begin(source, "--suspend", "--keep-source", *SLOW)
        send.wait_precopy()
        wait_until(lambda: "Serving: 1 session" in show("StatusText"), "the status counts it")
        self.assert_rights(send.pid, "send")
        for guardian in self.guardians():
            self.assert_rights(guardian, "guardian")
        self.assert_ram_in_no_core(pid, send.pid, source, target)
        systemctl("reload", "rdmamigd")
        self.assertEqual(self.main_pid(), pid)
        self.assert_modes()
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assertIn("reloaded", journal())
        systemctl("stop", "rdmamigd")
        self.wait_stopped()
        target.assert_runs()
        self.assertTrue(RUN.is_dir())
        self.assert_modes()

    def guardians(self):
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm")
                if path.read_text() == "rdmamig-guard\n"]

    def assert_limits(self, pid):
        """As the unit says, or as far as systemd may go where it lacks CAP_SYS_RESOURCE."""
        self.assertEqual((show("LimitMEMLOCK"), show("LimitNOFILE")), ("infinity", "65536"))
        bounded = not BOUNDING & 1 << NUMBERS["SYS_RESOURCE"]
        if bounded:
            print("# systemd has no CAP_SYS_RESOURCE here: it can't raise limits, they are compared with its own")
        for kind, wanted in ((resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY), (resource.RLIMIT_NOFILE, 65536)):
            hard = resource.prlimit(1, kind)[1]
            expected = hard if bounded and (wanted == resource.RLIM_INFINITY or -1 < hard < wanted) else wanted
            self.assertEqual(resource.prlimit(pid, kind), (expected, expected))

    def assert_rights(self, pid, program):
        """As docs/architecture.md has it."""
        table = rights_table()
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            for key, wanted in (("CapEff", ("yes",)), ("CapPrm", ("yes", "permitted"))):
                expected = sum(1 << number for name, number in NUMBERS.items() if BOUNDING >> number & 1 and table[name][program] in wanted)
                self.assertEqual(int(status[key], 16), expected, f"{key} of {program}, {(task / 'comm').read_text()}")
            self.assertEqual(int(status["CapInh"], 16), 0)
            # A guardian's is its daemon's.
            allowed = sum(1 << number for name, number in NUMBERS.items()
                          if table[name]["send" if program == "guardian" else program] != "no")
            self.assertEqual(int(status["CapBnd"], 16) & ~allowed, 0, f"CapBnd of {program}")
            self.assertEqual(status["NoNewPrivs"], "1")

    def assert_ram_in_no_core(self, daemon, send, source, target):
        """Mappings of the guests' RAM are marked as not to be dumped (dd)."""
        for pid, qemu in ((daemon, target), (send, source)):
            flags = re.findall(rf"{qemu.rams[0].path}\n(?:\w+: .*\n)*?VmFlags:(.*)", Path(f"/proc/{pid}/smaps").read_text())
            self.assertTrue(flags, f"{qemu.name}'s RAM is not mapped")
            for words in flags:
                self.assertIn("dd", words.split())

    def assert_modes(self):
        """Nobody but root has anything of what is ours."""
        seen = []
        for top in (STATE, RUN):
            for path in (top, *top.rglob("*")):
                info = path.lstat()
                seen.append(path)
                self.assertEqual(info.st_uid, 0, path)
                self.assertEqual(stat.S_IMODE(info.st_mode) & 0o077, 0, f"{path}: {oct(info.st_mode)}")
        self.assertGreater(len(seen), 4, seen)

    def test_unit_is_sound(self):
        done = subprocess.run(["systemd-analyze", "--man=no", "verify", str(container.UNITS / "rdmamigd.service"),
                               str(container.UNITS / "rdmamigd@one.service")], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT)],
                              capture_output=True, text=True)
        figure = re.search(r"Overall exposure level for rdmamigd.service: ([\d.]+)", done.stdout)
        self.assertTrue(figure, done.stdout + done.stderr)
        print(f"# systemd-analyze security: {figure[1]}")
        self.assertLess(float(figure[1]), 6)

    def test_capabilities_of_the_unit_are_the_table(self):
        unit = re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.M)[1].split()
        table = {f"CAP_{name}" for name, row in rights_table().items() if row["daemon"] != "no"}
        self.assertEqual(set(unit), table)


def rights_table():
    """docs/architecture.md: {capability: {program: "yes", "permitted" or "no"}}."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| CAP_(\w+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \| ", text, re.M)
    programs = "send", "daemon", "guardian", "resolve", "ask"
    return {row[0]: dict(zip(programs, row[1:], strict=True)) for row in rows}


def install():
    """What `meson install` would do."""
    shutil.rmtree(STATE, ignore_errors=True)  # the host's: what goes is a copy
    words = re.search(r"^ExecStart=(\S+)", UNIT.read_text(), re.M)[1]
    Path(words).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(RDMAMIGD, words)
    for unit in BUILD.glob("contrib/systemd/*.service"):
        shutil.copy(unit, container.UNITS)


if __name__ == "__main__":
    container.enter(ROOT, BUILD, PATIENCE)
    install()
    sys.exit(run())
