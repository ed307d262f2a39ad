#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rdmamig beside QEMU's own migration: the same guest, the same QEMU, this host, loopback.

    contrib/bench/first-figure.py [--build DIR] [--qemu PATH] [--runs N] [--memory MIB] [--fill MIB] [--case dirtying|stopped]

Moves one guest with rdmamig over tcp, with QEMU's tcp, and with QEMU's multifd, in turn, N times, so that whatever else
the machine does hits all of them alike, and prints the medians as a table. The guest has MIB of random bytes beside what
it dirties (100 MiB, as fast as it can). Definitions are the same for all: total_ms from the command to the guest's RESUME
at the destination (stopped: to the end); downtime_ms from STOP to RESUME, by QEMU's own events; cpu_s of both QEMUs and
both daemons.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
PEER = Path(__file__).with_name("qemu-peer.py")


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def stamp(events, name):
    times = [event["timestamp"] for event in events if event["event"] == name]
    return times[-1]["seconds"] + times[-1]["microseconds"] / 1e6 if times else None


def ours(options, version):
    """One run of rdmamig; the figures of one row."""
    import lib
    case = lib.Case("run")
    case.version = version
    case.setUp()
    try:
        keywords = {"rams": (options.memory,)}
        source = lib.Qemu(case, "source", **keywords)
        target = lib.Qemu(case, "target", incoming=True, **keywords)
        daemon = lib.Daemon(case, "--qmp", target.path)
        time.sleep(1)
        if options.case == "stopped":
            source.qmp("stop")
        source.rams[0].fill(128, options.fill)
        pids = (source.pid, target.pid, daemon.pid)
        for qemu in (source, target):
            qemu.qmp("query-status")
            qemu.qmp.events.clear()
        cpu, begin = cpu_seconds(pids), time.time()
        send = lib.Send(case, source, daemon, "--keep-source", "--downtime-limit", options.downtime_limit)
        status, result = send.finish(600)
        ended = time.time()
        for qemu in (source, target):
            qemu.qmp("query-status")
        cpu = cpu_seconds(pids) - cpu + result["metrics"]["cpu_s"]
        if status != 0:
            raise SystemExit(f"rdmamig send failed: {send.explain()}")
        stop, resume = stamp(source.qmp.events, "STOP"), stamp(target.qmp.events, "RESUME")
        end = ended if options.case == "stopped" else resume
        return {"total_ms": (end - begin) * 1000,
                "downtime_ms": None if options.case == "stopped" else (resume - stop) * 1000,
                "cpu_s": cpu, "sent_bytes": result["metrics"]["wire_bytes"], "rounds": result["metrics"]["rounds"]}
    finally:
        case.doCleanups()


def peer(options, mode, port):
    """One run of QEMU's own migration."""
    command = [sys.executable, PEER, "--mode", mode, "--boot", options.build / "tests/guest/guest.img", "--qemu", options.qemu,
               "--memory", options.memory, "--fill", options.fill, "--downtime-limit", options.downtime_limit, "--port", port]
    for folder in options.firmware:
        command += ["--firmware", folder]
    if options.case == "stopped":
        command.append("--stopped")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"qemu-peer {mode} failed: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build-bench", help="an optimised build; made if it isn't there")
    parser.add_argument("--qemu", default="/usr/bin/qemu-system-x86_64")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", type=int, default=2048, help="MiB")
    parser.add_argument("--fill", type=int, default=1792, help="MiB of random bytes")
    parser.add_argument("--case", choices=("dirtying", "stopped"), default="dirtying")
    parser.add_argument("--downtime-limit", type=int, default=300, help="ms, for all")
    options = parser.parse_args()
    if not (options.build / "build.ninja").exists():
        subprocess.run(["meson", "setup", "--buildtype=release", options.build, ROOT], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", options.build], check=True, stdout=subprocess.DEVNULL)

    words = subprocess.run([options.qemu, "--version"], capture_output=True, text=True, check=True).stdout.split()
    version = next(v for v in ("7.2", "10.0") if words[3].startswith(v + "."))
    os.environ["RDMAMIG_BUILD"] = str(options.build)
    os.environ["RDMAMIG_QEMU_7" if version == "7.2" else "RDMAMIG_QEMU_10"] = options.qemu
    prefix = options.qemu.rpartition("/usr/bin/")[0]
    options.firmware = [f"{prefix}/usr/share/qemu"] if prefix else []
    import lib
    port = lib.free_port()

    rows = {"ours": [], f"qemu-{version} tcp": [], f"qemu-{version} multifd": []}
    for number in range(options.runs):
        rows["ours"].append(ours(options, version))
        rows[f"qemu-{version} tcp"].append(peer(options, "tcp", port))
        rows[f"qemu-{version} multifd"].append(peer(options, "multifd", port))
        print(f"run {number + 1} of {options.runs} done", file=sys.stderr)

    print(f"{options.case}, {options.memory} MiB guest, {options.fill} MiB random, {options.runs} runs, "
          f"QEMU {words[3]}, {os.uname().release}, {os.cpu_count()} CPUs, downtime limit {options.downtime_limit} ms\n")
    print("| subject | metric | median | min | max | n |\n| --- | --- | --- | --- | --- | --- |")
    for subject, runs in rows.items():
        for metric, digits in (("total_ms", 0), ("downtime_ms", 1), ("cpu_s", 2), ("sent_bytes", 0), ("rounds", 0)):
            values = [run[metric] for run in runs if run.get(metric) is not None]
            if values:
                figures = [f"{f(values):.{digits}f}" for f in (statistics.median, min, max)]
                print(f"| {subject} | {metric} | {' | '.join(figures)} | {len(values)} |")


if __name__ == "__main__":
    sys.exit(main())
