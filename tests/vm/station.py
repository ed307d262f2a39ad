#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""One end of a migration between two VMs (test-rdma-pair.py), by commands where tests/integration/lib.py has objects.

    tests/vm/station.py qemu FOLDER MIB [DIRTIED]   runs a guest that writes to DIRTIED MiB, or without it a QEMU that
                                                    waits for one; says "up", and goes on until it is killed
    tests/vm/station.py digests FOLDER              one digest for each MiB of its RAM

The files in FOLDER are guest1.ram0, guest1.qmp (for rdmamig), guest1.ctl (for contrib/qmp.py) and guest1.serial.
"""
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import lib  # noqa: E402
from lib import MIB  # noqa: E402


class Station:
    """As much of lib.Case as lib.Qemu needs. Nothing is removed: it is gone with the VM."""
    version = "7.2"

    def __init__(self, folder):
        self.folder, self.processes, self.env = Path(folder), [], dict(os.environ)
        self.folder.mkdir(parents=True)

    def addCleanup(self, *_, **__):
        pass

    def assertTrue(self, value, message):
        assert value, message


def run_qemu(folder, mib, dirtied=None):
    guest = {"last": (1 + int(dirtied)) * MIB} if dirtied else None
    qemu = lib.Qemu(Station(folder), "guest", incoming=not dirtied, rams=(int(mib),), guest=guest)
    if dirtied:
        # Its BIOS runs at the top of memory, so not before it is through.
        qemu.wait_letters()
        qemu.rams[0].fill(int(mib) - 32, 32)
    qemu.qmp.close()
    print("up", flush=True)
    return qemu.popen.wait()


def digests(folder):
    with open(Path(folder) / "guest1.ram0", "rb") as file:
        while data := file.read(MIB):
            print(hashlib.blake2b(data, digest_size=16).hexdigest())


if __name__ == "__main__":
    sys.exit({"qemu": run_qemu, "digests": digests}[sys.argv[1]](*sys.argv[2:]))
