# SPDX-License-Identifier: LGPL-2.1-or-later
"""Virtual machines with an RDMA device (rdma_rxe), in which the tests run that a host without one can't.

A VM is a kernel of Debian's under QEMU's emulation, with the host's own root (read-only over 9p, under a tmpfs): the same
build tree, programs and paths as outside. Commands run in it as root, several at once:

    with Vm() as vm:
        status, output = vm.run(["ibv_devices"])

    with pair() as (a, b):                     # linked by a virtual cable
        server = a.start(["ib_write_bw"])
        b.run(["ib_write_bw", a.address])
        a.set_link(False)

One VM has rxe0 on a veth; of two, each has rxe0 on its end of the cable. What the VM writes is gone with it; what the host
changes in files that the VM has read already, it does not see.
"""
import base64
import collections
import contextlib
import ctypes
import json
import os
import queue
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import initramfs

ROOT = Path(__file__).resolve().parents[2]
CHANNELS = 6        # commands that may run at once
BOOT_PATIENCE = 300  # s; it takes 5 to 10 on an idle machine, 30 on a very busy one
PATIENCE = 180       # s; for what takes a moment
# Without the processor's fast string moves, which are slow under emulation: byte by byte. A kernel that is told that there
# are none clears and copies pages by words, and everything here takes a fifth less time.
CPU = "max,erms=off,fsrm=off"
KEPT = ("PATH", "HOME", "LANG", "XDG_CACHE_HOME", "PYTHONDONTWRITEBYTECODE")  # environment variables; and RDMAMIG_*

Channel = collections.namedtuple("Channel", "name socket")

_libc = ctypes.CDLL(None)


class VmError(Exception):
    pass


class Unavailable(VmError):
    """This host can't run the VM at all: a reason to skip."""


def _remove_stale():
    """Folders of VMs whose program was killed; their QEMUs died with it."""
    for path in Path(tempfile.gettempdir()).glob("rdmamig-vm-*-*"):
        if not Path(f"/proc/{path.name.split('-')[2]}").exists():
            shutil.rmtree(path, ignore_errors=True)


def find_kernel(series="6.12"):
    """The kernel's folder: $RDMAMIG_VM_KERNEL, or the cache, fetched if it isn't there yet."""
    folder = os.environ.get("RDMAMIG_VM_KERNEL")
    if not folder:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        done = subprocess.run([ROOT / "contrib/fetch-kernel.sh", cache / f"rdmamig/kernel-{series}", series],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Unavailable(f"no kernel for the VM: {done.stderr.strip()}")
        folder = done.stdout.splitlines()[-1]
    return initramfs.Kernel(folder)


class Command:
    """A command that runs in a VM. `sink`, if any, gets its output as it comes."""

    def __init__(self, vm, channel, script, timeout, sink):
        self.vm, self.channel, self.timeout, self.sink = vm, channel, timeout, sink
        self.token = secrets.token_hex(16)
        self.data, self.status, self.error = b"", None, None
        self.started = time.monotonic()
        channel.socket.sendall(f"{self.token} {base64.b64encode(script.encode()).decode()}\n".encode())
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        marker = self.token.encode() + b" "
        pending = b""
        while True:
            try:
                data = self.channel.socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._emit(pending)
                self.error = f"VM {self.vm.name} ended while it ran a command"
                return
            pending += data
            at = pending.find(marker)
            if at >= 0:
                status = pending[at + len(marker):]
                if status.endswith(b"\n"):
                    self._emit(pending[:at])
                    self.status = int(status)
                    self.vm.channels.put(self.channel)
                    return
            else:
                # What could be the beginning of the marker stays.
                keep = next((i for i in range(max(0, len(pending) - len(marker)), len(pending))
                             if marker.startswith(pending[i:])), len(pending))
                self._emit(pending[:keep])
                pending = pending[keep:]

    def _emit(self, data):
        self.data += data
        if self.sink and data:
            self.sink(data)

    @property
    def output(self):
        return self.data.decode(errors="replace")

    def running(self):
        return self.thread.is_alive()

    def wait(self, timeout=None):
        """Waits for its end and returns (exit status, output). At the time-out it is killed: TimeoutError."""
        if timeout is None:
            timeout = max(0, self.started + self.timeout - time.monotonic())
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.kill()
            raise TimeoutError(f"VM {self.vm.name}: not within {timeout:.0f} s; its output:\n{self.output[-4000:]}")
        if self.error:
            raise VmError(f"{self.error}\n{self.vm.console()}")
        return self.status, self.output

    def kill(self):
        """Kills it and what it started, and waits for that."""
        if self.running():
            port = f"$(grep -lx {self.channel.name} /sys/class/virtio-ports/*/name | cut -d/ -f5)"
            # It may not have begun yet.
            self.vm.run(f'pid=/run/vm/job-{port}.pid; for i in $(seq 100); do [ ! -s $pid ] || break; sleep 0.1; done; '
                        'kill -s KILL -- "-$(cat $pid)"', timeout=PATIENCE)
            self.thread.join(PATIENCE)


class Vm:
    """One virtual machine. `link` is the cable's (path, whether this end listens); see pair(). With `virtual_time` its clock
    is the count of what its processors execute, one after the other, 2 ns an instruction: then times don't depend on what
    else the host does. It goes on by itself while they have nothing to do."""

    def __init__(self, name="a", kernel=None, memory=3072, cpus=2, address="10.9.0.1", peer=None, link=None, kvm=False,
                 qemu=None, virtual_time=False):
        self.name, self.memory, self.cpus = name, memory, cpus
        self.address, self.peer, self.link, self.kvm = address, peer, link, kvm
        self.kernel = kernel or find_kernel()
        self.accel = ["-accel", "tcg,thread=single" if virtual_time else "tcg,thread=multi"]
        self.accel += ["-icount", "shift=1"] if virtual_time else []
        self.qemu = qemu or os.environ.get("RDMAMIG_VM_QEMU") or "qemu-system-x86_64"
        self.process, self.sockets, self.control = None, {}, None
        self.channels = queue.Queue()  # those that run nothing
        _remove_stale()
        self.folder = Path(tempfile.mkdtemp(prefix=f"rdmamig-vm-{os.getpid()}-"))

    def __enter__(self):
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def launch(self):
        """Starts QEMU. From the thread that lives longest: QEMU is killed when the thread that started it ends."""
        self.started = time.monotonic()
        names = [f"ch{i}" for i in range(CHANNELS)]
        listeners = {name: self._listen(name) for name in names}
        control = self._listen("qmp")
        initramfs.write(self.folder / "initramfs", self.kernel, self.kvm)
        words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nowatchdog", "audit=0", "no_timer_check",
                 "rcupdate.rcu_cpu_stall_suppress=1", f"rdmamig.name={self.name}",
                 f"rdmamig.address={self.address}/24"]
        command = [self.qemu, "-nodefaults", "-display", "none", "-no-reboot", *self.accel,
                   "-cpu", CPU, "-smp", str(self.cpus), "-m", str(self.memory),
                   "-kernel", self.kernel.image, "-initrd", self.folder / "initramfs", "-append", " ".join(words),
                   "-serial", f"file:{self.folder}/console", "-qmp", f"unix:{self.folder}/qmp",
                   "-fsdev", "local,path=/,id=root,security_model=none,readonly=on,multidevs=remap",
                   "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
                   "-device", f"virtio-serial-pci,max_ports={CHANNELS + 1}"]
        for name in names:
            command += ["-chardev", f"socket,id={name},path={self.folder}/{name}",
                        "-device", f"virtserialport,chardev={name},name={name}"]
        if self.link:
            path, listens = self.link
            command += ["-netdev", f"stream,id=cable,server={'on' if listens else 'off'},addr.type=unix,addr.path={path}",
                        "-device", f"virtio-net-pci,id=nic,netdev=cable,host_mtu=4500,mac=52:54:00:10:09:{ord(self.name):02x}"]
        with open(self.folder / "qemu.log", "wb") as log:
            try:
                self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                preexec_fn=lambda: _libc.prctl(1, signal.SIGKILL))
            except FileNotFoundError:
                raise Unavailable(f"no {self.qemu}: install Debian's qemu-system-x86")
        for name, listener in listeners.items():
            self.sockets[name] = self._accept(listener)
        self.control = self._accept(control)
        self.control_stream = self.control.makefile("rw")
        self.control_stream.readline()
        self.qmp("qmp_capabilities")

    def wait_ready(self):
        end = self.started + BOOT_PATIENCE
        for name, channel in self.sockets.items():
            greeting = b""
            try:
                while not greeting.endswith(b"\n"):
                    channel.settimeout(max(0.01, end - time.monotonic()))
                    data = channel.recv(1)
                    if not data:
                        raise VmError(f"VM {self.name} ended while it booted\n{self.console()}")
                    greeting += data
            except TimeoutError:
                raise VmError(f"VM {self.name} is not up after {BOOT_PATIENCE} s\n{self.console()}")
            if greeting.strip() != b"ready":
                raise VmError(f"VM {self.name}: {greeting.decode().strip()}\n{self.console()}")
            channel.settimeout(None)
            self.channels.put(Channel(name, channel))
        self.boot_seconds = time.monotonic() - self.started

    def _listen(self, name):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / name))
        listener.listen(1)
        listener.settimeout(0.2)
        return listener

    def _accept(self, listener):
        """QEMU's connection, unless it ends first."""
        while True:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                if self.process.poll() is not None:
                    raise VmError(f"QEMU ended: {(self.folder / 'qemu.log').read_text().strip()}")
                continue
            listener.close()
            connection.settimeout(PATIENCE)
            return connection

    def console(self, lines=40):
        """The last lines of the kernel's console and of QEMU's own words."""
        texts = [(self.folder / name).read_text(errors="replace") if (self.folder / name).exists() else ""
                 for name in ("qemu.log", "console")]
        return "\n".join("\n".join(texts).splitlines()[-lines:])

    def qmp(self, command, **arguments):
        self.control_stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.control_stream.flush()
        while True:
            line = self.control_stream.readline()
            if not line:
                raise VmError(f"VM {self.name} closed its QMP connection\n{self.console()}")
            reply = json.loads(line)
            if "error" in reply:
                raise VmError(f"{command}: {reply['error']['desc']}")
            if "return" in reply:
                return reply["return"]

    def set_link(self, up):
        """Plugs or pulls this end of the cable: the other end goes silent, and keeps its carrier."""
        self.qmp("set_link", name="nic", up=up)

    def start(self, command, env=None, cwd=None, timeout=600, sink=None):
        """Starts a command (a list, or a line for the shell) and returns it, a Command."""
        names = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("RDMAMIG_")}
        names |= {"RDMAMIG_VM": self.name, "RDMAMIG_VM_ADDRESS": self.address}
        names |= ({"RDMAMIG_VM_PEER": self.peer} if self.peer else {}) | (env or {})
        text = command if isinstance(command, str) else "exec " + shlex.join(map(str, command))
        lines = [f"cd {shlex.quote(str(cwd or os.getcwd()))} || exit 126"]
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in names.items()]
        try:
            channel = self.channels.get(timeout=PATIENCE)
        except queue.Empty:
            raise VmError(f"VM {self.name} runs {CHANNELS} commands already")
        return Command(self, channel, "\n".join([*lines, text, ""]), timeout, sink)

    def run(self, command, **options):
        """Runs a command to its end and returns (exit status, output)."""
        return self.start(command, **options).wait()

    def listens(self, port):
        """Whether a socket is in state LISTEN (0A) on a TCP port: a connection of before may still linger on it."""
        rows = [row.split() for row in self.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1].splitlines()]
        return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows if len(row) > 3)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for channel in [*self.sockets.values(), *([self.control] if self.control else [])]:
            channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def pair(kernel=None, **options):
    """Two VMs, a and b, linked by a cable, with rxe0 on it at either end."""
    kernel = kernel or find_kernel()
    with contextlib.ExitStack() as stack:
        a = Vm("a", kernel, address="10.9.0.1", peer="10.9.0.2", **options)
        stack.callback(a.close)
        a.link = (a.folder / "cable", True)
        b = Vm("b", kernel, address="10.9.0.2", peer="10.9.0.1", link=(a.folder / "cable", False), **options)
        stack.callback(b.close)
        a.launch()  # listens on the cable's socket by the time that it answers on QMP
        b.launch()
        a.wait_ready()
        b.wait_ready()
        yield a, b



def to_stdout(data):
    """A sink for Vm.start()."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
