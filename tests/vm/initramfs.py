# SPDX-License-Identifier: LGPL-2.1-or-later
"""The initial root of the test VM: a cpio archive of busybox, two scripts and the kernel modules, in loading order.

The modules' dependencies are read from the modules themselves (.modinfo), since a package that was only unpacked has no
modules.dep and the host may have no depmod.
"""
import lzma
import re
from pathlib import Path

# What the kernel needs beside what is built in, in the order that works: `rdma link add` fails with ENOENT when the
# CRC that rxe asks for is missing, which no dependency names.
MODULES = ["crc32_generic", "virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay", "ib_core",
           "ib_uverbs", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe", "ib_umad",
           "veth"]
COMMANDS = ["mount", "insmod", "mkdir", "cp", "switch_root"]  # busybox's that init.sh uses
KVM_MODULES = ["kvm", "kvm-amd"]


class Kernel:
    """A folder that contrib/fetch-kernel.sh filled."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.image = next(self.folder.glob("boot/vmlinuz-*"))
        self.version = self.image.name.removeprefix("vmlinuz-")
        self.modules = self.folder / "lib/modules" / self.version
        self.files = {self._name(path): path for path in self.modules.glob("kernel/**/*.ko*")}
        self.built_in = {self._name(Path(line)) for line in (self.modules / "modules.builtin").read_text().split()}

    @staticmethod
    def _name(path):
        return path.name.split(".ko")[0].replace("-", "_")

    def load_order(self, names):
        """[(name, contents)…]: the modules with what they depend on, each after its dependencies."""
        done, order = set(), []

        def visit(name):
            name = name.replace("-", "_")
            if name in done or name in self.built_in:
                return
            done.add(name)
            if name not in self.files:
                raise FileNotFoundError(f"kernel {self.version} has no module {name}")
            path = self.files[name]
            data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            depends = re.search(rb"\0depends=([^\0]*)\0", data)
            for other in filter(None, depends.group(1).decode().split(",") if depends else []):
                visit(other)
            order.append((name, data))

        for name in names:
            visit(name)
        return order


class Cpio:
    """An archive in cpio's "newc" format."""

    def __init__(self, file):
        self.file, self.inode = file, 0

    def add(self, name, data=b"", mode=0o100644, device=(0, 0)):
        self.inode += 1
        fields = [self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self.file.write(header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4))

    def folder(self, name):
        self.add(name, mode=0o040755)

    def program(self, name, data):
        self.add(name, data, 0o100755)

    def link(self, name, to):
        self.add(name, to.encode(), 0o120777)

    def end(self):
        self.add("TRAILER!!!", mode=0)


def write_guest(path, kernel, program, modules):
    """The archive of a Linux test guest: `program`, which loads the modules itself (tests/guest/linux-guest.c)."""
    with open(path, "wb") as file:
        cpio = Cpio(file)
        cpio.folder("modules")
        cpio.folder("dev")
        cpio.add("dev/console", mode=0o020600, device=(5, 1))
        cpio.program("init", Path(program).read_bytes())
        for number, (name, data) in enumerate(kernel.load_order(modules)):
            cpio.add(f"modules/{number:03}-{name}.ko", data)
        cpio.end()


def write(path, kernel, kvm=False):
    """Writes the archive to `path`."""
    here = Path(__file__).resolve().parent
    with open(path, "wb") as file:
        cpio = Cpio(file)
        for name in ("bin", "modules", "proc", "sys", "dev", "host", "over", "new"):
            cpio.folder(name)
        cpio.program("bin/busybox", (kernel.folder / "bin/busybox").read_bytes())
        for name in COMMANDS:
            cpio.link(f"bin/{name}", "busybox")
        cpio.program("init", (here / "init.sh").read_bytes())
        cpio.program("agent", (here / "agent.sh").read_bytes())
        for number, (name, data) in enumerate(kernel.load_order(MODULES + (KVM_MODULES if kvm else []))):
            cpio.add(f"modules/{number:03}-{name}.ko", data)
        cpio.end()
