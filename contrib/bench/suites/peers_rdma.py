# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamig over rdma beside QEMU's own rdma migration and the bare device."""
import os
import subprocess
import sys

import moves
from suites import Subject

NAME = "peers-rdma"
SUMMARY = "rdmamig over rdma, QEMU's rdma, ib_write_bw: one VM with rdma_rxe, or this host's device"
SIZES = {"4 KiB": 4 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20}  # of ib_write_bw's writes: cases of its own
MOVES = ("stopped", "dirtying")
CASES = (*SIZES, *MOVES)
IN_VM = True


def add_arguments(parser):
    # In the VM everything is emulated twice: a guest writes some 10 MiB a second, and the device moves 40 to 80.
    parser.add_argument("--memory", type=int, default=512, metavar="MIB")
    parser.add_argument("--dirtied", type=int, default=16, metavar="MIB")
    parser.add_argument("--pace", type=int, default=50, metavar="10MS", help="the guest's rest after each sweep")
    parser.add_argument("--downtime-limit", type=int, default=1000, metavar="MS")


def warm_up(options):
    """The programs and libraries, which a VM reads from the host over 9p: whoever comes first would pay for all."""
    guest = moves.Guest(64, 1, 50, 60000)
    moves.ours(guest, True, "--transport", "rdma")
    moves.peer(guest, True, f"rdma:{os.environ['RDMAMIG_TEST_ADDRESS']}:{moves.PORT}")


def guest_of(options):
    return moves.Guest(options.memory, options.dirtied, options.pace, options.downtime_limit)


def describe(options):
    return str(guest_of(options))


def write_bandwidth(size):
    """ib_write_bw between two processes of this host; MiB/s."""
    address, device = os.environ["RDMAMIG_TEST_ADDRESS"], os.environ["RDMAMIG_TEST_DEVICE"].partition(":")[0]
    port = str(moves.lib.free_port())
    iterations = str(max(32, (32 << 20) // size))
    # Not with -R: the client may then come before the server listens.
    command = ["ib_write_bw", "-F", "-d", device, "-s", str(size), "-n", iterations, "-p", port]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        moves.lib.wait_until(lambda: moves.lib.listens(int(port)) or server.poll() is not None, "ib_write_bw listens")
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=moves.PATIENCE)
    finally:
        server.kill()
        server.communicate()
    lines = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(size)]]
    if done.returncode != 0 or not lines:
        raise moves.Failed(f"ib_write_bw: {done.stdout}{done.stderr}")
    return {"bulk_mib_s": float(lines[0][3])}


def subjects(options):
    guest, qemu = guest_of(options), f"qemu-{moves.QEMU}"
    address = os.environ["RDMAMIG_TEST_ADDRESS"]

    def ours(*words):
        return lambda case: moves.ours(guest, case == "stopped", "--transport", "rdma", *words)

    def peer(*capabilities):
        uri = f"rdma:{address}:{moves.PORT}"
        return lambda case: moves.peer(guest, case == "stopped", uri, capabilities)

    found = [
        Subject("ib_write_bw", tuple(SIZES), lambda case: write_bandwidth(SIZES[case])),
        Subject("ours", MOVES, ours()),
        Subject(f"{qemu} rdma-lazy", MOVES, peer()),
        Subject("ours pin=all", MOVES, ours("--pin", "all")),
        Subject(f"{qemu} rdma-pin", MOVES, peer("rdma-pin-all")),
    ]
    if moves.supports("--serialise-chunks"):
        found.append(Subject("ours serialise-chunks", MOVES, ours("--serialise-chunks")))
    else:
        print("bench: ours serialise-chunks is left out: this rdmamig has no --serialise-chunks", file=sys.stderr)
    return found
