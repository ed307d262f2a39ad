# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamig over tcp beside QEMU's tcp and multifd, over the loopback."""
import moves
from suites import Subject

NAME = "peers-tcp"
SUMMARY = "rdmamig over tcp, QEMU's tcp and multifd: one host, loopback"
CASES = ("stopped", "dirtying")
IN_VM = False


def add_arguments(parser):
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB")
    parser.add_argument("--dirtied", type=int, default=100, metavar="MIB")
    parser.add_argument("--pace", type=int, default=0, metavar="10MS", help="the guest's rest after each sweep")
    parser.add_argument("--downtime-limit", type=int, default=300, metavar="MS")


def guest_of(options):
    return moves.Guest(options.memory, options.dirtied, options.pace, options.downtime_limit)


def describe(options):
    return f"{guest_of(options)}; 2 channels for rdmamig and multifd; `ours tls`: inside TLS, control and data"


def warm_up(options):
    pass  # programs and libraries are in this host's page cache, or are read in no time


def subjects(options):
    guest, qemu = guest_of(options), f"qemu-{moves.QEMU}"
    uri = f"tcp:127.0.0.1:{moves.lib.free_port()}"
    return [
        Subject("ours", CASES, lambda case: moves.ours(guest, case == "stopped", "--transport", "tcp")),
        *([Subject("ours tls", CASES, lambda case: moves.ours(guest, case == "stopped", "--transport", "tcp", tls=True))]
          if moves.supports("--tls-creds") else []),
        Subject(f"{qemu} tcp", CASES, lambda case: moves.peer(guest, case == "stopped", uri)),
        Subject(f"{qemu} multifd", CASES,
                lambda case: moves.peer(guest, case == "stopped", uri, ["multifd"], multifd_channels=2)),
    ]
