#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure QEMU's own live migration of one guest between two QEMU processes on this host.

A yardstick to run beside rdmamig on the same guest image, memory size and fill:

    qemu-peer.py --mode multifd --boot guest.img --memory 2048 --fill 1792
    qemu-peer.py --mode rdma-lazy --host 10.9.0.1 --boot guest.img --memory 768 --fill 512

Prints one JSON object. total_ms: from the `migrate` command to the RESUME event at the destination
(to completion, for a stopped guest); downtime_ms: from the STOP event at the source to that RESUME;
cpu_s: user + system seconds of both QEMU processes in that interval; and beside them what QEMU
itself reports (qemu_*), bytes sent, and scan rounds.
"""
import argparse, json, os, socket, subprocess, sys, tempfile, time

MODES = {  # name: (uri, capabilities)
    "tcp": ("tcp:{host}:{port}", []),
    "multifd": ("tcp:{host}:{port}", ["multifd"]),
    "rdma-pin": ("rdma:{host}:{port}", ["rdma-pin-all"]),
    "rdma-lazy": ("rdma:{host}:{port}", []),
}


class Qmp:
    def __init__(self, path):
        for _ in range(300):
            try:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(path)
                break
            except OSError:
                time.sleep(0.1)
        self.file = self.sock.makefile("rw")
        self.events = {}  # name: time of the last one, in seconds
        self.file.readline()
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            reply = json.loads(self.file.readline())
            if "event" in reply:
                stamp = reply["timestamp"]
                self.events[reply["event"]] = stamp["seconds"] + stamp["microseconds"] / 1e6
                continue
            if "error" in reply:
                sys.exit(f"{command}: {reply['error']['desc']}")
            return reply["return"]


def start(options, folder, name, extra):
    return subprocess.Popen(
        [options.qemu, *sum((["-L", d] for d in options.firmware), []),
         "-accel", options.accel, "-m", str(options.memory), "-display", "none", "-nodefaults",
         "-drive", f"file={options.boot},format=raw,if=floppy,readonly=on",
         "-serial", f"file:{folder}/{name}.serial",
         "-object", f"memory-backend-memfd,id=ram,size={options.memory}M,share=on",
         "-machine", "pc,memory-backend=ram",
         "-qmp", f"unix:{folder}/{name}.qmp,server=on,wait=off", *extra],
        stderr=subprocess.DEVNULL)


def cpu_seconds(*processes):
    ticks = 0
    for process in processes:
        fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def guest_memory(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if "memfd:memory-backend" in os.readlink(f"/proc/{pid}/fd/{fd}"):
            return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    sys.exit("no guest memory found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--boot", required=True, help="512-byte or larger raw boot image")
    parser.add_argument("--qemu", default="qemu-system-x86_64")
    parser.add_argument("--firmware", action="append", default=["/usr/share/seabios", "/usr/share/qemu"])
    parser.add_argument("--accel", default="tcg")
    parser.add_argument("--memory", type=int, default=2048, help="guest RAM in MiB")
    parser.add_argument("--fill", type=int, default=1792, help="MiB of random bytes, from 128 MiB up")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds the guest runs first")
    parser.add_argument("--stopped", action="store_true", help="stop the guest first: bulk speed only")
    parser.add_argument("--downtime-limit", type=int, default=300, help="ms")
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4444)
    options = parser.parse_args()
    uri, capabilities = MODES[options.mode]
    uri = uri.format(host=options.host, port=options.port)

    with tempfile.TemporaryDirectory() as folder:
        source = start(options, folder, "source", [])
        target = start(options, folder, "target", ["-incoming", "defer"])
        try:
            qs, qt = Qmp(f"{folder}/source.qmp"), Qmp(f"{folder}/target.qmp")
            time.sleep(options.warm)
            if options.stopped:
                qs("stop")
            memory, block = guest_memory(source.pid), os.urandom(1 << 20)
            for i in range(128, 128 + options.fill):
                os.pwrite(memory, block[i % 997:] + block[:i % 997], i << 20)
            for qmp in (qs, qt):
                qmp("migrate-set-capabilities", capabilities=[{"capability": c, "state": True} for c in ["events", *capabilities]])
                parameters = {"max_bandwidth": 100 << 30, "downtime_limit": options.downtime_limit}
                if "multifd" in capabilities:
                    parameters["multifd_channels"] = options.channels
                qmp("migrate-set-parameters", **parameters)
            qt("migrate-incoming", uri=uri)
            time.sleep(0.2)
            qs.events.clear(), qt.events.clear()
            begin, cpu = time.time(), cpu_seconds(source, target)
            qs("migrate", uri=uri)
            while (info := qs("query-migrate"))["status"] not in ("completed", "failed"):
                time.sleep(0.005)
            for _ in range(400):  # the figures, and the guest at the far end, can come a little later
                info = qs("query-migrate")
                state = qt("query-status")
                if info["status"] == "failed" or info.get("total-time") and (options.stopped or state["running"]):
                    break
                time.sleep(0.005)
            end = time.time() if options.stopped else qt.events.get("RESUME", time.time())
            cpu = cpu_seconds(source, target) - cpu
            stop = qs.events.get("STOP")
        finally:
            for process in (source, target):
                process.kill()
                process.wait()
    ram = info.get("ram", {})
    print(json.dumps({
        "peer": "qemu " + subprocess.run([options.qemu, "--version"], capture_output=True, text=True).stdout.split()[3],
        "mode": options.mode, "status": info["status"], "error": info.get("error-desc"),
        "memory_mib": options.memory, "fill_mib": options.fill, "stopped": options.stopped,
        "total_ms": round((end - begin) * 1000, 1),
        "downtime_ms": None if options.stopped or not stop else round((end - stop) * 1000, 1),
        "cpu_s": round(cpu, 2), "sent_bytes": ram.get("transferred"), "rounds": ram.get("dirty-sync-count"),
        "qemu_total_ms": info.get("total-time"), "qemu_downtime_ms": info.get("downtime"), "qemu_setup_ms": info.get("setup-time")}))
    return info["status"] != "completed"


if __name__ == "__main__":
    sys.exit(main())
