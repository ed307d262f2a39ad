# SPDX-License-Identifier: LGPL-2.1-or-later
"""systemd as process 1 of namespaces of its own, natively: no VM, no image, nothing to be cleaned up.

enter() runs the calling program again inside: an overlay of this host's root, whose changes are in memory; processes,
network (a loopback), cgroups, /run, /tmp and /dev/shm of its own. systemd is started there with the units in
/run/units and no others. When the program ends, its process 1 is killed, and the kernel ends all that is left.

Not by systemd-nspawn: it has the kernel filter system calls that a guardian, ptrace or userfaultfd want, and
drops capabilities, which are just what is to be tested; and it wants a cgroup hierarchy that systemd owns.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
INSIDE = "RDMAMIG_TEST_INSIDE"
UNITS = Path("/run/units")
# Those of Debian that are needed, and empty ones for what services depend on by default.
COPIED = ("dbus.socket", "dbus.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
          "systemd-journald.service")
EMPTY = ("sysinit.target", "basic.target", "shutdown.target", "umount.target", "network-online.target", "rdma-hw.target",
         "multi-user.target")

SETUP = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty kvm; do
    [ ! -e /dev/$device ] || { : >dev/$device; mount --bind /dev/$device dev/$device; }
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
# The program and what was built, should they live below one of those.
for folder in "$2" "$3"; do mkdir -p ".$folder"; mount --bind "$folder" ".$folder"; done
ip link set lo up
mkdir run/units
cd run/units
for unit in $4; do cp /lib/systemd/system/$unit .; done
for unit in $5; do printf '[Unit]\nDefaultDependencies=no\n' >$unit; done
printf '[Unit]\nDefaultDependencies=no\nWants=dbus.socket systemd-journald.socket\n' >test.target
cd ../..
mkdir old
pivot_root . old
umount -l /old
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH=/run/units \
    SYSTEMD_LOG_LEVEL=info $6 --system --unit=test.target --log-target=console --show-status=false
"""


def _cgroup_root():
    """Where cgroup2 is mounted, None if it isn't."""
    for line in open("/proc/self/mounts"):
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def lacking():
    """What keeps this host from it; None if nothing does."""
    if not SYSTEMD.exists():
        return "no systemd (Debian: systemd, dbus)"
    if not shutil.which("dbus-daemon"):
        return "no dbus-daemon (Debian: dbus)"
    if _cgroup_root() is None:
        return "cgroup2 is not mounted"
    if not shutil.which("unshare") or not shutil.which("ip"):
        return "no unshare or no ip (Debian: util-linux, iproute2)"
    return None


class _Container:
    def __init__(self, root, build):
        self.cgroup = _cgroup_root() / f"rdmamig-test-{os.getpid()}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"rdmamig-test-{os.getpid()}-", dir="/dev/shm"))
        self.log = tempfile.TemporaryFile("w+")
        self.cgroup.mkdir()
        self.outer = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup", "bash", "-c", SETUP,
             "setup", str(self.folder), str(root), str(build), " ".join(COPIED), " ".join(EMPTY), str(SYSTEMD)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=lambda: (self.cgroup / "cgroup.procs").write_text(str(os.getpid())))
        self.init = None

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def boot(self, patience):
        """Waits until systemd answers; FALSE if it doesn't."""
        end = time.monotonic() + patience
        while time.monotonic() < end and self.outer.poll() is None:
            children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text() == "systemd\n":
                self.init = children[0]
                if subprocess.run([*self.inside(), "systemctl", "is-active", "-q", "test.target"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
                    return True
            time.sleep(0.05)
        return False

    def inside(self):
        return ["nsenter", "-t", self.init, "-m", "-u", "-i", "-n", "-p", "-C"]

    def end(self):
        for pid in filter(None, (self.init, self.outer.pid)):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.outer.wait()
        for _ in range(100):
            try:
                for folder in sorted(self.cgroup.rglob("*/"), reverse=True):
                    folder.rmdir()
                self.cgroup.rmdir()
                break
            except OSError:  # the kernel is still at it
                time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


def enter(root, build, patience):
    """Returns inside; outside it ends the process with the status of what ran inside. `root` is the source tree."""
    if os.environ.get(INSIDE):
        return
    reason = "needs root" if os.geteuid() != 0 else lacking()
    if reason:
        print(f"1..0 # SKIP {reason}")
        sys.exit(77)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    container = _Container(root, build)
    try:
        if not container.boot(patience):
            print(f"1..0 # SKIP systemd does not start in namespaces here: {container.output()[-300:]!r}")
            sys.exit(77)
        status = subprocess.run([*container.inside(), sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]],
                                env={**os.environ, INSIDE: "1", "RDMAMIG_BUILD": str(build)}, stdin=subprocess.DEVNULL).returncode
        if status:
            print("".join(f"# systemd: {line}\n" for line in container.output().splitlines()[-30:]), end="", flush=True)
    finally:
        container.end()
    sys.exit(status)
