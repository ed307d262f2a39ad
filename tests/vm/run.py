#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a command in a virtual machine that has an RDMA device, rxe0, and returns its exit status.

    tests/vm/run.py [--vms 1|2] [--kernel 6.12|6.1] [--memory MIB] [--cpus N] [--timeout S] [--kvm] -- COMMAND…

The command finds the host's files under the same paths (read-only; what it writes is gone with the VM) and runs as root in
the same folder. It has RDMAMIG_VM=a, RDMAMIG_VM_ADDRESS=10.9.0.1. With --vms 2 it runs in both, a and b (10.9.0.2), with
RDMAMIG_VM_PEER the other's address; the lines of output begin with the VM's name, and the exit status is the first that
isn't 0.
"""
import argparse
import signal
import sys
import threading

import vm as harness


class Lines:
    """Passes on output, whole lines at a time, with a prefix."""
    lock = threading.Lock()

    def __init__(self, prefix):
        self.prefix, self.rest = prefix, b""

    def __call__(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.write(b"".join(self.prefix + line + b"\n" for line in lines))

    def end(self):
        if self.rest:
            self.write(self.prefix + self.rest + b"\n")

    def write(self, data):
        with Lines.lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vms", type=int, choices=(1, 2), default=1)
    parser.add_argument("--kernel", choices=("6.12", "6.1"), default="6.12")
    parser.add_argument("--memory", type=int, default=3072, metavar="MIB", help="of each VM")
    parser.add_argument("--cpus", type=int, default=2, help="of each VM")
    parser.add_argument("--timeout", type=int, default=600, metavar="S")
    parser.add_argument("--kvm", action="store_true", help="load kvm in the VM")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    settings = {"kernel": harness.find_kernel(options.kernel), "memory": options.memory, "cpus": options.cpus,
                "kvm": options.kvm}
    if options.vms == 1:
        with harness.Vm(**settings) as vm:
            print(f"vm: up after {vm.boot_seconds:.1f} s", file=sys.stderr, flush=True)
            return vm.run(options.command, timeout=options.timeout, sink=harness.to_stdout)[0]
    with harness.pair(**settings) as vms:
        print(f"vm: up after {max(vm.boot_seconds for vm in vms):.1f} s", file=sys.stderr, flush=True)
        sinks = [Lines(f"{vm.name}: ".encode()) for vm in vms]
        commands = [vm.start(options.command, timeout=options.timeout, sink=sink)
                    for vm, sink in zip(vms, sinks, strict=True)]
        statuses = [command.wait()[0] for command in commands]
        for sink in sinks:
            sink.end()
        return next(filter(None, statuses), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except harness.Unavailable as error:
        print(f"vm: {error}", file=sys.stderr)
        sys.exit(77)
    except (harness.VmError, TimeoutError) as error:
        print(f"vm: {error}", file=sys.stderr)
        sys.exit(125)
