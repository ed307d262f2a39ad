# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a program of cases over an RDMA device: in a VM, or on this host if RDMAMIG_TEST_DEVICE names a device of its own.

RDMAMIG_TEST_TRANSPORT=tcp runs the same over tcp. RDMAMIG_TEST_ADDRESS is needed with a device whose address is not an IPv4
one (RoCE's GIDs tell it).
"""
import ipaddress
import os
import sys
from pathlib import Path

import vm as harness


def skip(reason):
    print(f"1..0 # SKIP {' '.join(str(reason).split())}")
    return 0


def address_of(device):
    """The IPv4 address of a device (NAME or NAME:PORT), from the GIDs of RoCE; None if there is none."""
    name, _, port = device.partition(":")
    for path in sorted(Path(f"/sys/class/infiniband/{name}/ports/{port or 1}/gids").glob("*")):
        mapped = ipaddress.IPv6Address(path.read_text().strip()).ipv4_mapped
        if mapped:
            return str(mapped)
    return None


def run(cases, timeout, **options):
    """Runs `cases`, a file beside this one, with this program's arguments; `options` are the VM's. Returns its status."""
    environment = {"RDMAMIG_TEST_TRANSPORT": os.environ.get("RDMAMIG_TEST_TRANSPORT", "rdma")}
    command = [sys.executable, str(Path(__file__).resolve().with_name(cases)), *sys.argv[1:]]
    device = os.environ.get("RDMAMIG_TEST_DEVICE")
    if device:
        address = os.environ.get("RDMAMIG_TEST_ADDRESS") or address_of(device)
        if not address:
            return skip(f"RDMAMIG_TEST_DEVICE: {device} has no IPv4 GID; give its address in RDMAMIG_TEST_ADDRESS")
        os.execve(sys.executable, command, {**os.environ, **environment, "RDMAMIG_TEST_ADDRESS": address})
    try:
        with harness.Vm(**options) as vm:
            environment |= {"RDMAMIG_TEST_ADDRESS": vm.address, "RDMAMIG_TEST_DEVICE": "rxe0",
                            "RDMAMIG_TEST_PATIENCE": os.environ.get("RDMAMIG_TEST_PATIENCE", "3")}
            status = vm.run(command, env=environment, timeout=timeout, sink=harness.to_stdout)[0]
            # Not before: TAP's version must be the first line.
            print(f"# the VM was up after {vm.boot_seconds:.1f} s", flush=True)
            return status
    except harness.Unavailable as reason:
        return skip(reason)
