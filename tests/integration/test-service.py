#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamigd as a systemd service, with the unit as it is installed: container.py boots systemd for it."""
import os
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import container
from lib import (BUILD, CANCELLED, DONE, FAILED, MIB, PATIENCE, RDMAMIGD, REFUSED, ROOT, Case, Process, Qemu, Send, free_port,
                 run, wait_until)

UNIT = BUILD / "contrib/systemd/rdmamigd.service"
DROP_IN = container.UNITS / "rdmamigd.service.d/test.conf"
STATE, RUN = Path("/var/lib/rdmamig"), Path("/run/rdmamig")
NUMBERS = {"DAC_OVERRIDE": 1, "NET_BIND_SERVICE": 10, "IPC_LOCK": 14, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_RESOURCE": 24,
           "CHECKPOINT_RESTORE": 40}  # linux/capability.h
# What root has here: some containers and VMs lack one or the other.
BOUNDING = int(re.search(r"^CapBnd:\t(\w+)$", Path("/proc/self/status").read_text(), re.M)[1], 16)
NOBODY = 65534
# Some six seconds in the first round: the status is told once a second.
SLOW = "--max-bandwidth", "4M", "--downtime-limit", "2s"


def systemctl(*words, check=True):
    done = subprocess.run(["systemctl", *map(str, words)], capture_output=True, text=True, timeout=4 * PATIENCE)
    if check and done.returncode != 0:
        raise AssertionError(f"systemctl {words}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def journal():
    """What the daemon that runs, or was started last by Service.start(), has said."""
    words = ["journalctl", "-q", "--no-pager", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={show('InvocationID') or Service.invocation}"]
    return subprocess.run(words, capture_output=True, text=True).stdout


def show(name):
    return systemctl("show", "--value", "-p", name, "rdmamigd")


def cgroup_of(pid):
    return Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2]


class Service(Case):
    """The daemon is the unit's; sources, QEMUs and `rdmamig send` are the test's own."""
    invocation = ""

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
        Service.invocation = show("InvocationID")

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

    def guardians(self):
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/comm")
                if path.read_text() == "rdmamig-guard\n"]

    def wait_held(self, fault):
        wait_until(lambda: f"fault point {fault}" in journal(), f"{fault} is reached")

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
        self.assertIn("nothing to reload without --tls-creds", journal())
        systemctl("stop", "rdmamigd")
        self.wait_stopped()
        target.assert_runs()
        self.assertTrue(RUN.is_dir())
        self.assert_modes()

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
            of = ("send", "daemon") if program == "guardian" else (program,)  # a guardian's is its daemon's
            allowed = sum(1 << number for name, number in NUMBERS.items() if any(table[name][who] != "no" for who in of))
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


class Stop(Service):
    """systemctl stop in the middle of a migration: before `commit` the guest goes on at the source, afterwards it arrives."""

    def cut_short(self, source, target, send):
        """The session is held somewhere before `commit`, or in pre-copy."""
        self.begin_stop()
        self.release()
        code, result = send.finish()
        self.assertIn(code, (FAILED, CANCELLED), send.explain() + journal())
        self.assertEqual(result["owner"], "source")
        self.wait_stopped()
        self.assert_source_has_it(source, target)
        self.assert_counted_on(source)

    def test_before_commit(self):
        source, target = self.small_pair()
        for fault in (None, "destination-load", "state-prepared"):
            with self.subTest(fault=fault or "pre-copy"):
                if not target.alive():
                    target = Qemu(self, "target", incoming=True, rams=(64,))
                self.start("--qmp", target.path, fault=fault)
                send = self.begin(source, *(() if fault else SLOW))
                if fault:
                    self.wait_held(fault)
                else:
                    send.wait_precopy()
                self.cut_short(source, target, send)
                # A QEMU whose load was tried is used up; another waits on.
                wait_until(lambda: not fault or not target.alive(), "the burnt QEMU ends")
                self.assertEqual(target.alive(), not fault)
        target = target if target.alive() else Qemu(self, "target", incoming=True, rams=(64,))
        self.start("--qmp", target.path)
        self.assertEqual(self.begin(source).finish()[0], DONE)
        self.assertEqual(self.running(source, target), [target.name])

    def test_past_commit(self):
        """`commit` is recorded and the guest does not run yet: it arrives, however often it is told to stop."""
        source, target = self.small_pair()
        self.start("--qmp", target.path, fault="destination-committed")
        send = self.begin(source)
        self.wait_held("destination-committed")
        pid = self.main_pid()
        self.begin_stop()
        other = Qemu(self, "other", rams=(64,), guest={"last": 5 * MIB}, guest_name="other")
        late = Send(self, other, self.address)
        code, result = late.finish()
        self.assertEqual((code, result["reason"]), (REFUSED, "limit"), late.explain() + journal())
        self.assertIn("is stopping and takes no new sessions", result["detail"])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        wait_until(lambda: "Stopping; no new sessions: 1 session" in show("StatusText"), "the status says so")
        self.assertEqual((show("ActiveState"), self.main_pid()), ("deactivating", pid))
        self.assertEqual(self.running(source, target), [])
        self.release()
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.wait_stopped()
        self.assertEqual(journal().count("stopping: no new sessions"), 1)
        self.assertFalse(source.alive())
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_more_time_than_the_unit_gives(self):
        """It asks for it: the stop takes longer than TimeoutStopSec, and is a clean one."""
        source, target = self.small_pair()
        self.start("--qmp", target.path, fault="destination-committed", unit=("TimeoutStopSec=2",))
        send = self.begin(source)
        self.wait_held("destination-committed")
        self.begin_stop()
        time.sleep(4)
        self.assertEqual(show("ActiveState"), "deactivating")
        self.release()
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.wait_stopped()
        target.assert_runs()


class Restart(Service):
    """What is in the unit's control group, and must outlive the daemon: guardians, and QEMUs that --exec started."""

    def setUp(self):
        super().setUp()
        systemctl("start", "dbus.service")
        wait_until(lambda: subprocess.run(["busctl", "--quiet", "status", "org.freedesktop.systemd1"], capture_output=True)
                   .returncode == 0, "systemd is on the bus")

    def exec_command(self, target, delay=0):
        """A script that starts `target`, as --exec wants it."""
        script = self.folder / "start-qemu"
        words = " ".join(map(shlex.quote, map(str, target.command)))
        script.write_text(f"#!/bin/sh\numask >{self.folder}/umask\nsleep {delay}\n{words} </dev/null >/dev/null 2>&1 &\n"
                          f"echo $! >{self.folder}/qemu.pid\necho {target.path}\n")
        script.chmod(0o700)
        return script

    def adopt(self, target):
        pid = int(wait_until(lambda: (self.folder / "qemu.pid").exists() and (self.folder / "qemu.pid").read_text().strip(),
                             "--exec starts QEMU"))
        target.adopt(pid)

    def test_stopped_while_exec_starts_a_qemu(self):
        """It is waited for, to be ended: nobody else knows of it."""
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,), start=False)
        self.start("--exec", self.exec_command(target, delay=2))
        send = self.begin(source)
        wait_until((self.folder / "umask").exists, "the command runs")
        self.begin_stop()
        self.assertNotEqual(send.finish()[0], DONE)
        self.wait_stopped()
        pid = (self.folder / "qemu.pid").read_text().strip()
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the QEMU is ended")
        source.assert_runs()

    def begin_into_exec(self, *options, fault=None):
        source = Qemu(self, "source", rams=(64,), guest={"last": 5 * MIB})
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, rams=(64,), start=False)
        self.start("--exec", self.exec_command(target), fault=fault)
        send = self.begin(source, *options)
        self.adopt(target)
        return source, target, send

    def test_restart_with_a_qemu_of_exec(self):
        source, target, send = self.begin_into_exec()
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.assertRegex(cgroup_of(target.pid), r"/rdmamig-guest-[-0-9a-f]+\.scope$")
        self.assertEqual((self.folder / "umask").read_text(), "0022\n")
        target.assert_runs()
        before = self.main_pid()
        systemctl("restart", "rdmamigd")
        self.assertNotEqual(self.main_pid(), before)
        self.assertNotIn("left-over", journal())
        target.assert_runs()
        self.assert_counted_on(source, target)
        # It has inherited the unit's seccomp filters, and can be moved on all the same.
        self.assertIn("Seccomp:\t2\n", Path(f"/proc/{target.pid}/status").read_text())
        last = Qemu(self, "last", incoming=True, rams=(64,))
        self.start("--qmp", last.path)
        systemctl("restart", "rdmamigd")
        send = self.begin(target)
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        last.assert_runs()
        self.assert_counted_on(source, target, last)

    def test_without_scopes(self):
        """systemd can't be asked, since there is no bus: KillMode=process leaves the QEMU alone, and so does the next start."""
        systemctl("stop", "dbus.socket", "dbus.service")
        source, target, send = self.begin_into_exec()
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.assertTrue(cgroup_of(target.pid).endswith("/rdmamigd.service"))
        systemctl("restart", "rdmamigd")
        systemctl("stop", "rdmamigd")
        target.assert_runs()
        self.assertTrue(cgroup_of(target.pid).endswith("/rdmamigd.service"))
        self.assert_counted_on(source, target)

    def test_killed(self):
        """kill -9 past `commit`: the guardian lets the guest run, and systemd starts the daemon again."""
        source, target, send = self.begin_into_exec("--keep-source", fault="destination-committed")
        self.wait_held("destination-committed")
        for pid in self.guardians():
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"rdmamigd"):
                wait_until(lambda: cgroup_of(pid).endswith(".scope"), "the guardian has a scope")
        before = self.main_pid()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.running(target), "the guest runs")
        wait_until(lambda: self.main_pid() not in (0, before) and show("ActiveState") == "active", "the daemon is back")
        self.assertEqual(show("NRestarts"), "1")
        send.finish()
        self.assertEqual(self.running(source, target), [target.name])
        target.assert_runs()
        self.assert_counted_on(source, target)

    def test_service_killed_as_a_whole(self):
        """systemctl kill, which means all of the control group: the QEMU and the guardian are not in it."""
        source, target, send = self.begin_into_exec("--keep-source", fault="destination-committed")
        self.wait_held("destination-committed")
        wait_until(lambda: all(cgroup_of(pid).endswith(".scope") for pid in self.guardians()
                               if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"rdmamigd")), "scopes")
        systemctl("kill", "--signal=KILL", "rdmamigd")
        wait_until(lambda: self.running(target), "the guest runs")
        send.finish()
        self.assertEqual(self.running(source, target), [target.name])
        target.assert_runs()


class OtherUser(Service):
    """What is kept of root's rights is enough for QEMUs of another user, the source's in a seccomp sandbox."""

    def qemu_of_nobody(self, name, *extra, incoming=False):
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        os.chown(folder, NOBODY, NOBODY)
        qemu = Qemu(self, name, incoming=incoming, rams=(64,), guest={"last": 5 * MIB}, ram_folder=folder, extra=extra, start=False)
        qemu.serial_path.touch()
        os.chown(qemu.serial_path, NOBODY, NOBODY)
        Process.__init__(qemu, self, qemu.name,
                         ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *qemu.command])
        qemu.connect()
        return qemu

    def test_moves(self):
        self.folder.chmod(0o777)  # for their sockets
        source = self.qemu_of_nobody("source", "-sandbox", "on,resourcecontrol=deny")
        source.wait_letters()
        target = self.qemu_of_nobody("target", incoming=True)
        for qemu in (source, target):
            self.assertEqual(Path(f"/proc/{qemu.pid}").stat().st_uid, NOBODY)
        self.start("--qmp", target.path)
        send = self.begin(source, "--suspend", "--keep-source")
        self.assertEqual(send.finish()[0], DONE, send.explain() + journal())
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()


class Terminal(Service):
    """rdmamigd by hand, in the foreground."""

    def test_lost(self):
        """SIGHUP because the terminal has gone is as SIGTERM."""
        pid, terminal = os.forkpty()
        if pid == 0:
            os.execve(RDMAMIGD, [str(RDMAMIGD), f"--listen={self.address}", "--qmp", "/nowhere"], self.env)
        output = b""
        while b"listening" not in output:
            output += os.read(terminal, 4096)
        os.kill(pid, signal.SIGHUP)  # not lost: a wish to reload
        while b"nothing to reload" not in output:
            output += os.read(terminal, 4096)
        os.close(terminal)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


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
