# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the end-to-end tests are made of: real QEMUs, real daemons, and checks that can fail.

A test program is `test-*.py` with classes derived from Case; run() reports in TAP. Each program runs alone, as root:

    tests/integration/test-basic.py [NAME-OR-PART-OF-IT]...

Every process, file and mount is registered for removal before it is made, dies with this process (PR_SET_PDEATHSIG), and
lives below one folder in /dev/shm that the next program removes if this one was killed.

Environment: RDMAMIG_BUILD the build folder (default: build), RDMAMIG_QEMU_7 and RDMAMIG_QEMU_10 the two QEMUs;
RDMAMIG_TEST_TRANSPORT (tcp, rdma) and RDMAMIG_TEST_ADDRESS, an address of this host, for every migration that does not
choose by itself (tests/vm); RDMAMIG_TEST_PATIENCE a factor for hosts that are slow.
"""
import ctypes
import errno
import functools
import json
import mmap
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RDMAMIG_BUILD", ROOT / "build")).resolve()
RDMAMIG = BUILD / "src/source/rdmamig"
RDMAMIGD = BUILD / "src/destination/rdmamigd"
COMPARE = BUILD / "tests/tools/compare-pages"
GUEST = BUILD / "tests/guest/guest.img"
MIB = 1 << 20

# How long anything may take before a test gives up on it. Generous: it only matters when something hangs.
PATIENCE = 60 * int(os.environ.get("RDMAMIG_TEST_PATIENCE", 1))

TRANSPORT = os.environ.get("RDMAMIG_TEST_TRANSPORT")
ADDRESS = os.environ.get("RDMAMIG_TEST_ADDRESS", "127.0.0.1")

DONE, FAILED, USAGE, REFUSED, CANCELLED, DOUBTFUL, CLEANUP = range(7)  # exit status of rdmamig

HUGE_POOL = Path("/proc/sys/vm/nr_hugepages")

# The guest's parameters (tests/guest/boot.S): offsets in its image.
PARAMETERS = {"mode": 0x0C, "first": 0x10, "last": 0x14, "pace": 0x18, "high_first": 0x1C, "high_size": 0x20,
              "disk_first": 0x24, "disk_last": 0x28, "depth": 0x2C, "batch": 0x30,
              "sweeps": 0x34, "reads": 0x38, "faults": 0x3C}
LOADED_AT = 0x7C00
SWEEP, HIGH, ZERO, DISK, POWEROFF, RESET, WRITE = 1, 2, 4, 8, 16, 32, 64
LETTERS = "BCDEFGHIJKLMNOPQRSTUVWXYZ"


# ---- QEMU versions ----

def _qemu_command(path):
    """The command of a QEMU; one unpacked by contrib/fetch-qemu.sh finds its data and libraries beside it."""
    prefix, separator, _ = str(path).rpartition("/usr/bin/")
    if separator and prefix:
        return ["env", f"LD_LIBRARY_PATH={prefix}/usr/lib/x86_64-linux-gnu:{prefix}/lib/x86_64-linux-gnu",
                str(path), "-L", f"{prefix}/usr/share/qemu", "-L", "/usr/share/seabios"]
    return [str(path)]


@functools.cache
def qemu_command(version):
    """The command of QEMU `version` ("7.2" or "10.0"); skips the test if it isn't there."""
    candidates = {"7.2": [os.environ.get("RDMAMIG_QEMU_7"), "/usr/bin/qemu-system-x86_64"],
                  "10.0": [os.environ.get("RDMAMIG_QEMU_10"), "/opt/qemu-10/root/usr/bin/qemu-system-x86_64"]}[version]
    for path in filter(None, candidates):
        if os.access(path, os.X_OK):
            command = _qemu_command(path)
            words = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout.split()
            if words[3:4] and words[3].startswith(version + "."):
                return command
    raise unittest.SkipTest(f"no QEMU {version} (looked at {', '.join(filter(None, candidates))})")


def each_qemu(*versions):
    """Class decorator: runs each test once for each version, which it finds in self.version."""
    def decorate(cls):
        for name in [name for name in vars(cls) if name.startswith("test_")]:
            body = vars(cls)[name]
            for version in versions:
                def test(self, body=body, version=version):
                    self.version = version
                    qemu_command(version)
                    body(self)
                test.__doc__ = body.__doc__
                setattr(cls, f"{name}_qemu_{version.replace('.', '_')}", test)
            delattr(cls, name)
        return cls
    return decorate


# ---- processes ----

_libc = ctypes.CDLL(None)


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)


def wait_until(condition, what, timeout=PATIENCE):
    """Polls until `condition` returns something true, and returns that."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)
    return value


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listens(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def holders(folders):
    """The processes that have a file below one of these folders (a tuple of texts) open."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            links = [os.readlink(link) for link in (folder / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(folders) for link in links):
            found.append(int(folder.name))
    return found


class Process:
    """A child whose output goes to a file below the test's folder."""

    def __init__(self, case, name, command, env=None, wrapped=False):
        self.log = case.folder / f"{name}.log"
        self.name = name
        case.addCleanup(self.kill)
        case.processes.append(self)
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          preexec_fn=_die_with_parent, env={**case.env, **(env or {})})
        self.pid = self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def kill(self, number=signal.SIGKILL):
        if hasattr(self, "popen") and self.alive():
            self.popen.send_signal(number)
            if number in (signal.SIGKILL, signal.SIGTERM):
                self.popen.wait(PATIENCE)

    def output(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class _Adopted:
    """The part of Popen that Process uses, for a process that is not our child."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else None

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout):
        wait_until(lambda: self.poll() is not None, f"process {self.pid} ends", timeout)


# ---- QEMU ----

class QmpError(Exception):
    pass


class Qmp:
    """A QMP client that keeps the events it sees."""

    def __init__(self, path, process):
        def connect():
            if not process.alive():
                raise AssertionError(f"{process.name} ended: {process.output()}")
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                return True
            except OSError:
                self.socket.close()
                return False
        wait_until(connect, f"QMP at {path}")
        self.socket.settimeout(PATIENCE)
        self.rest = b""  # received, and not yet a line
        self.events = []
        self._message()  # the greeting
        self("qmp_capabilities")

    def _message(self):
        while b"\n" not in self.rest:
            data = self.socket.recv(1 << 16)
            if not data:
                raise QmpError("QEMU closed the connection")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def __call__(self, command, **arguments):
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            reply = self._message()
            if "event" in reply:
                self.events.append(reply)
            elif "error" in reply:
                raise QmpError(reply["error"]["desc"])
            else:
                return reply["return"]

    def next_event(self, timeout):
        """Waits for an event without asking QEMU for anything, and adds it to those that were seen; False at the time-out."""
        if b"\n" not in self.rest and not select.select([self.socket], [], [], timeout)[0]:
            return False
        self.events.append(self._message())
        return True

    def close(self):
        self.socket.close()


PAGE, PUNCH_HOLE, KEEP_SIZE = 4096, 2, 1
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Ram:
    """One memory backend's file."""

    def __init__(self, path, mib):
        self.path, self.name, self.mib = Path(path), Path(path).name, mib

    def write(self, offset, data):
        with open(self.path, "r+b", buffering=0) as file:
            try:
                file.seek(offset)
                file.write(data)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                with mmap.mmap(file.fileno(), 0) as memory:  # hugetlbfs has no write()
                    memory[offset:offset + len(data)] = data

    def read(self, offset, length):
        with open(self.path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(length)

    def fill(self, first_mib, mib, seed=1):
        """Random bytes, unlike in each page; as the harness does it only while nothing tracks the guest."""
        block = random.Random(seed).randbytes(MIB + 997)
        for i in range(first_mib, first_mib + mib):
            self.write(i * MIB, block[i % 997:][:MIB])

    def punch(self, page, count=1):
        """Gives pages back to the host, as a balloon does."""
        with open(self.path, "r+b") as file:
            if _fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, page * PAGE, count * PAGE) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")

    def used(self):
        """Bytes of memory that the file holds."""
        return os.stat(self.path).st_blocks * 512


class Qemu(Process):
    """A guest, or a QEMU that waits for one (`incoming`).

    `rams` is a list of sizes in MiB, one memory backend each; two or more become NUMA nodes. Their files are new ones in
    `ram_folder`, or `ram_paths`, which may exist and keep their contents. `guest` are parameters of the test guest. There are two QMP sockets: self.path for rdmamig, and one of our own, self.qmp.
    """
    count = 0

    def __init__(self, case, name, incoming=False, rams=(256,), guest=None, version=None, ram_folder=None, ram_paths=None,
                 disk=None, extra=(), machine="pc", guest_name="guest", memory="share=on", env=None,
                 start=True):
        Qemu.count += 1
        self.case, self.guest_name = case, guest_name
        tag = self.name = f"{name}{Qemu.count}"
        folder = case.folder
        self.log = folder / f"{tag}.log"
        self.path, control = folder / f"{tag}.qmp", folder / f"{tag}.ctl"
        self.serial_path = folder / f"{tag}.serial"
        paths = ram_paths or [Path(ram_folder or folder) / f"{tag}.ram{i}" for i in range(len(rams))]
        self.rams = [Ram(path, mib) for path, mib in zip(paths, rams, strict=True)]
        for ram in self.rams:
            case.addCleanup(ram.path.unlink, missing_ok=True)
        case.addCleanup(self.serial_path.unlink, missing_ok=True)
        image = bytearray(GUEST.read_bytes())
        for key, value in (guest or {}).items():
            struct.pack_into("<I", image, PARAMETERS[key], value)
        image_path = folder / f"{tag}.img"
        image_path.write_bytes(image)
        options = ["-name", guest_name, "-accel", "tcg", "-m", f"{sum(rams)}M", "-display", "none", "-nodefaults",
                   "-drive", f"file={image_path},format=raw,if=floppy,readonly=on",
                   "-serial", f"file:{self.serial_path}",
                   "-qmp", f"unix:{self.path},server=on,wait=off", "-qmp", f"unix:{control},server=on,wait=off"]
        for i, ram in enumerate(self.rams):
            options += ["-object",
                        f"memory-backend-file,id=ram{i},size={ram.mib}M,mem-path={ram.path}"
                        + (f",{memory}" if memory else "")]
            if len(rams) > 1:
                options += ["-numa", f"node,memdev=ram{i}"]
        options += ["-machine", machine + (",memory-backend=ram0" if len(rams) == 1 else "")]
        if disk:
            options += ["-drive", f"if=none,id=disk,format=raw,{disk}", "-device", "virtio-blk-pci,drive=disk"]
        if incoming:
            options += ["-incoming", "defer"]
        self.command = [*qemu_command(version or case.version), *options, *extra]
        self.control = control
        if start:
            super().__init__(case, tag, self.command, env=env)
            self.connect()

    def connect(self):
        self.qmp = Qmp(self.control, self)
        self.case.addCleanup(self.qmp.close)

    def adopt(self, pid):
        """Takes over a QEMU that somebody else has started with self.command."""
        self.popen, self.pid = _Adopted(pid), pid
        self.case.addCleanup(self.kill)
        self.connect()

    def serial(self):
        return self.serial_path.read_text() if self.serial_path.exists() else ""

    def status(self):
        return self.qmp("query-status")["status"]

    def parameter(self, key):
        return struct.unpack("<I", self.rams[0].read(LOADED_AT + PARAMETERS[key], 4))[0]

    def set_parameter(self, key, value):
        """Changes a parameter of the running guest from outside; only while nothing tracks it."""
        self.rams[0].write(LOADED_AT + PARAMETERS[key], struct.pack("<I", value))

    def wait_letters(self, more=3, timeout=PATIENCE):
        """Waits for that many letters beyond those that are there now."""
        target = len(self.serial()) + more
        wait_until(lambda: len(self.serial()) >= target or not self.alive(), f"{self.name} prints letters", timeout)
        self.case.assertTrue(self.alive(), f"{self.name} ended: {self.output()}")

    def assert_runs(self):
        """The guest runs, and counts on."""
        self.case.assertEqual(self.status(), "running")
        self.wait_letters()
        self.case.assertNotIn("!", self.serial())

    def assert_left_alone(self):
        """Nothing of ours is left in the process: no tracer, no stopped thread, no userfaultfd."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            except FileNotFoundError:
                continue
            self.case.assertEqual(fields["TracerPid"], "0", f"{self.name}: thread {task.name} is traced")
            self.case.assertNotIn(fields["State"][0], "Tt", f"{self.name}: thread {task.name} is stopped")
        links = [os.readlink(fd) for fd in Path(f"/proc/{self.pid}/fd").iterdir() if fd.is_symlink()]
        self.case.assertFalse([link for link in links if "userfaultfd" in link])
        self.case.assertNotRegex(Path(f"/proc/{self.pid}/smaps").read_text(), r"VmFlags:.*\b(uw|um|ui)\b")


# ---- rdmamig ----

class Daemon(Process):
    """rdmamigd on a free port of the loopback, or of ADDRESS, or of `host`; `wrapper` is a command that executes it."""

    def __init__(self, case, *options, env=None, port=None, wrapper=(), host=ADDRESS):
        self.port, self.host = port or free_port(), host
        insecure = [] if host.startswith("127.") or "--insecure" in options else ["--insecure"]
        super().__init__(case, f"rdmamigd{self.port}",
                         [*wrapper, RDMAMIGD, "--listen", self.address, *insecure, *options], env=env)
        wait_until(lambda: listens(self.port) or not self.alive(), "rdmamigd listens")
        case.assertTrue(self.alive(), f"rdmamigd ended: {self.output()}")

    @property
    def address(self):
        return f"{self.host}:{self.port}"


# A fault point: rdmamig asks a destination that is gone for its word for three seconds instead of thirty.
SHORT_QUERY = "query-for=3000"


class Send:
    """`rdmamig send`, running. With --json, the default here, its events arrive in self.events; without (`human`), what
    an operator would read is in text(). `wrapper` is a command that executes it."""

    def __init__(self, case, qemu, to, *options, env=None, human=False, wrapper=()):
        self.case, self.events = case, []
        path = qemu.path if isinstance(qemu, Qemu) else qemu
        to = to.address if isinstance(to, Daemon) else to
        self.report_path = case.folder / f"report-{time.monotonic_ns()}.json"
        self.stderr_path = self.report_path.with_suffix(".stderr")
        if TRANSPORT and "--transport" not in options:
            options = ["--transport", TRANSPORT, *options]
        case.addCleanup(self.kill)
        with open(self.stderr_path, "wb") as stderr:
            self.popen = subprocess.Popen(
                [*map(str, wrapper), str(RDMAMIG), "send", "--qmp", str(path), "--to", to, "--report", str(self.report_path),
                 *([] if human else ["--json"]), *map(str, options)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
                preexec_fn=_die_with_parent, env={**case.env, **(env or {})})
        self.pid, self.human, self.lines = self.popen.pid, human, []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            (self.lines if self.human else self.events).append(line if self.human else json.loads(line))

    def kill(self, number=signal.SIGKILL):
        if hasattr(self, "popen") and self.popen.poll() is None:
            self.popen.send_signal(number)
            if number == signal.SIGKILL:
                self.popen.wait(PATIENCE)

    def stderr(self):
        return self.stderr_path.read_text(errors="replace")

    def text(self):
        return "".join(self.lines) + self.stderr()

    def explain(self):
        """What it said, for a failed assertion."""
        last = [f"{event.get('reason')}: {event.get('detail')}" for event in self.events if event["event"] == "result"]
        logs = [f"{process.name}: {line}" for process in self.case.processes for line in process.output().splitlines()[-12:]]
        return "\n".join([self.text(), *last, *logs])

    def wait_event(self, condition, what, timeout=PATIENCE):
        def look():
            found = [event for event in list(self.events) if condition(event)]
            return found or self.popen.poll() is not None
        found = wait_until(look, what, timeout)
        if found is True:
            self.reader.join(PATIENCE)
            found = [event for event in self.events if condition(event)]
            self.case.assertTrue(found, f"rdmamig ended ({self.popen.returncode}) before: {what}\n{self.explain()}")
        return found[0]

    def wait_state(self, state, timeout=PATIENCE):
        return self.wait_event(lambda event: event["event"] == "state" and event["state"] == state,
                               f"state {state}", timeout)

    def wait_precopy(self):
        """Waits until pre-copy is well under way: the first progress that shows bytes sent."""
        self.wait_state("precopy")
        return self.wait_event(lambda event: event["event"] == "progress" and event["state"] == "precopy",
                               "progress in pre-copy")

    def finish(self, timeout=2 * PATIENCE):
        """Waits for the end. Returns (exit status, the result)."""
        try:
            status = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"rdmamig did not end within {timeout} s\n{self.text()}\n{self.events[-3:]}")
        self.reader.join(PATIENCE)
        result = json.loads(self.report_path.read_text()) if self.report_path.exists() else None
        if not self.human:
            self.case.assertEqual([event for event in self.events if event["event"] == "result"], [result])
        return status, result


# ---- cases ----

class Case(unittest.TestCase):
    version = "7.2"

    def setUp(self):
        _remove_stale()
        self.folder = Path(tempfile.mkdtemp(prefix=f"rdmamig-test-{os.getpid()}-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "run").mkdir(mode=0o700)
        self.env = {**os.environ, "RDMAMIG_RUN_DIR": str(self.folder / "run"), "RDMAMIG_STATE_DIR": str(self.folder / "state"),
                    "RDMAMIG_CONFIG_DIR": str(self.folder / "etc")}
        self.env.pop("RDMAMIG_FAULT", None)
        self.processes = []

    def disk_folder(self):
        """A folder that is not on tmpfs."""
        path = Path(tempfile.mkdtemp(prefix=f"rdmamig-test-{os.getpid()}-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        return path

    def hugepages(self, mib):
        """A hugetlbfs mount with room for `mib` MiB; put back as it was afterwards."""
        if not HUGE_POOL.exists():
            raise unittest.SkipTest("this kernel has no hugepages")
        before = HUGE_POOL.read_text().strip()
        self.addCleanup(HUGE_POOL.write_text, before)
        want = int(before) + mib // 2
        HUGE_POOL.write_text(str(want))
        if int(HUGE_POOL.read_text()) < want:
            raise unittest.SkipTest(f"no {mib} MiB of free memory for hugepages")
        mount = self.folder / "huge"
        mount.mkdir()
        self.addCleanup(subprocess.run, ["umount", "-l", mount])
        subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M", "none", mount], check=True)
        return mount

    def pair(self, *options, daemon_env=None, **keywords):
        """A running guest that has printed letters, a waiting QEMU, and a daemon for it."""
        source = Qemu(self, "source", **keywords)
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, **keywords)
        return source, target, Daemon(self, "--qmp", target.path, *options, env=daemon_env)

    def send(self, qemu, to, *options, env=None, expect=DONE):
        """Runs rdmamig send to its end and checks the exit status; returns the result event."""
        send = Send(self, qemu, to, *options, env=env)
        status, result = send.finish()
        self.assertEqual(status, expect, f"exit status\n{send.explain()}")
        self.last_send = send
        return result

    def assert_equal_memory(self, source, target):
        """Compares every page of every block; neither guest may run."""
        for qemu in (source, target):
            self.assertFalse(qemu.qmp("query-status")["running"], f"{qemu.name} runs; {qemu.qmp.events[-6:]}")
        for a, b in zip(source.rams, target.rams, strict=True):
            done = subprocess.run([str(COMPARE), a.path, b.path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{a.name}: {done.stdout}{done.stderr}")
            self.assertIn(f"{a.mib * 256} pages, 0 differ", done.stdout)

    def count_differing(self, source, target):
        """How many pages of the first block differ."""
        done = subprocess.run([str(COMPARE), source.rams[0].path, target.rams[0].path], capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return int(done.stdout.split(" pages, ")[1].split()[0])

    def assert_counted_on(self, *qemus):
        """The letters of all stations of the guest are one unbroken count, and A came once."""
        parts = [qemu.serial() for qemu in qemus]
        self.assertTrue(all(parts), "a station without letters")
        text = "".join(parts)
        count = "A" + LETTERS * (len(text) // len(LETTERS) + 1)
        if text != count[:len(text)]:
            at = next(i for i, letter in enumerate(text) if letter != count[i])
            ends = [len(part) for part in parts]
            self.fail(f"broken count at letter {at} (parts of {ends}): …{text[max(0, at - 10):at]}|{text[at:at + 10]}…")

    def move(self, source, target, daemon, *options, env=None):
        """Moves the guest and compares all memory; then it counts on at the target. Returns the result event."""
        result = self.send(source, daemon, "--suspend", "--keep-source", *options, env=env)
        self.assertEqual(result["outcome"], "done")
        self.assertEqual(result["owner"], "destination")
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assertFalse(source.qmp("query-status")["running"])
        self.assert_counted_on(source, target)
        return result


def _remove_stale():
    """Folders, and mounts below them, of test programs that were killed."""
    mounts = [line.split()[1] for line in open("/proc/self/mounts")]
    for base in ("/dev/shm", "/var/tmp"):
        for path in Path(base).glob("rdmamig-test-*-*"):
            if not Path(f"/proc/{path.name.split('-')[2]}").exists():
                for mount in reversed([mount for mount in mounts if mount.startswith(f"{path}/")]):
                    subprocess.run(["umount", "-l", mount])
                shutil.rmtree(path, ignore_errors=True)


class _Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number = 0

    def _say(self, verdict, test, directive=""):
        self.number += 1
        print(f"{verdict} {self.number} - {test.id().removeprefix('__main__.')}{directive}", flush=True)

    def _detail(self, test, error):
        for line in self._exc_info_to_string(error, test).splitlines():
            print(f"# {line}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._say("ok", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._say("ok", test, f" # SKIP {reason}")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._detail(test, error)
        self._say("not ok", test)

    def addError(self, test, error):
        super().addError(test, error)
        self._detail(test, error)
        self._say("not ok", test)

    def startTest(self, test):
        super().startTest(test)
        self.subtest_failed = False

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            print(f"# {subtest}", flush=True)
            self._detail(test, error)
            self.subtest_failed = True

    def stopTest(self, test):
        if self.subtest_failed:
            self._say("not ok", test)
        super().stopTest(test)


def run():
    """Runs the calling program's cases, or those whose names contain one of the arguments; reports in TAP."""
    if os.geteuid() != 0:
        print("1..0 # SKIP needs root: the memory of another process opens to no one else")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    loader = unittest.TestLoader()
    tests = [test for suite in loader.loadTestsFromModule(sys.modules["__main__"]) for test in suite]
    wanted = sys.argv[1:]
    tests = [test for test in tests if not wanted or any(part in test.id() for part in wanted)]
    print("TAP version 13")
    print(f"1..{len(tests)}", flush=True)
    result = _Tap()
    unittest.TestSuite(tests).run(result)
    return 0 if result.wasSuccessful() and tests else 1
