# SPDX-License-Identifier: LGPL-2.1-or-later
"""One measured migration: of rdmamig, or of QEMU itself. Both move the same guest between two QEMUs of the same version,
and are measured by the same events, on one clock:

  total_ms          from `rdmamig send` or `migrate` to the guest's RESUME event at the destination; a stopped guest: to
                    the end, when rdmamig has exited, or both QEMUs say that they're through
  downtime_ms       from the STOP event at the source to that RESUME
  bulk_mib_s        what the guest holds, by the time of the first round; a --pin all or rdmamig's start is not part of
                    it, a registration on the way is
  last_round_mib_s  what was sent of the guest's RAM while it stood still, by the time from the first look for it until
                    all of it had landed
  cpu_s             user and system time of both QEMUs and both daemons within total_ms; the guest's own is part of it
  registrations     requests to make memory writable that the sender had to wait for or ask ahead; registration_ms: how
                    long it stood still for them (pinned: the whole of pinning)

The guest (tests/guest) holds random bytes almost throughout: no zero pages to be spared. While it runs it writes to each
page of its first `dirtied` MiB once, and again every `pace` times 10 ms.
"""
import json
import os
import re
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/integration"))

import lib  # noqa: E402
import pki  # noqa: E402
from lib import MIB  # noqa: E402

PATIENCE = 10 * lib.PATIENCE  # a migration that takes longer has failed
QEMU = "10.0"  # an older one tells less of its rounds
PORT = 4444  # of QEMU's rdma, which can't be asked for a free one

# QEMU tells the times of its rounds by events, and these by lines in its log, a few for each round.
TRACES = ("migrate_pending_exact", "migration_bitmap_sync_start", "migration_bitmap_sync_end",
          "vmstate_downtime_checkpoint", "qemu_rdma_write_one_sendreg", "qemu_rdma_write_one_recvregres")


class Failed(Exception):
    pass


class Guest:
    """What is moved: sizes in MiB, `limit` the downtime in ms that all aim for."""

    def __init__(self, memory, dirtied, pace, limit):
        self.memory, self.dirtied, self.pace, self.limit = memory, dirtied, pace, limit

    @property
    def held(self):
        return self.memory - 1  # all but the first MiB, most of which nobody writes

    def __str__(self):
        return (f"{self.memory} MiB guest, all random; dirtying: {self.dirtied} MiB every {self.pace * 10} ms or slower; "
                f"downtime limit {self.limit} ms; QEMU {QEMU}")


class Pair:
    """Two QEMUs, one with the guest, one that waits for it: with Pair(guest, stopped) as pair."""

    def __init__(self, guest, stopped):
        self.guest, self.stopped = guest, stopped

    def __enter__(self):
        self.case = lib.Case("run")
        self.case.version = QEMU
        self.case.setUp()
        try:
            self._start()
        except BaseException:
            self.case.doCleanups()
            raise
        return self

    def __exit__(self, *_):
        self.case.doCleanups()

    def _start(self):
        first = 1 + self.guest.dirtied
        keywords = {"rams": (self.guest.memory,), "guest": {"last": first * MIB, "pace": self.guest.pace}}
        traces = ["-msg", "timestamp=on", *sum((["-trace", name] for name in TRACES), [])]
        self.source = lib.Qemu(self.case, "source", extra=traces, **keywords)
        self.target = lib.Qemu(self.case, "target", incoming=True, **keywords)
        # Its BIOS runs at the top of memory, so not before it is through.
        self.source.wait_letters()
        if self.stopped:
            self.source.qmp("stop")
        self.source.rams[0].fill(first, self.guest.memory - first)
        self.target.qmp("query-status")

    def _cpu_seconds(self):
        """Of a process that has ended, too: until it's waited for."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def begin(self, *processes):
        self.pids = [self.source.pid, self.target.pid, *(process.pid for process in processes)]
        for qemu in (self.source, self.target):
            qemu.qmp("query-status")
            qemu.qmp.events.clear()
        self.cpu, self.began = self._cpu_seconds(), time.time()

    def end(self, end=None):
        """The figures that are the same for all, once the guest has arrived; `end` is the time, if it is stopped."""
        figures = {"cpu_s": self._cpu_seconds() - self.cpu}
        if not self.stopped:
            if not self.target.status() == "running":
                raise Failed(f"the guest is {self.target.status()} at the destination")
            self.source.qmp("query-status")  # takes in the events
            stop, end = stamp(self.source, "STOP"), stamp(self.target, "RESUME")
            figures["downtime_ms"] = (end - stop) * 1000
            if self.target.parameter("faults"):
                raise Failed("the guest found pages at the destination that are not as it left them")
        return {"total_ms": (end - self.began) * 1000, **figures}


def stamp(qemu, name, **data):
    """The time of an event, the last of its kind."""
    found = [event["timestamp"] for event in qemu.qmp.events
             if event["event"] == name and data.items() <= event.get("data", {}).items()]
    if not found:
        raise Failed(f"{qemu.name}: no event {name} {data or ''}")
    return found[-1]["seconds"] + found[-1]["microseconds"] / 1e6


def wait_event(qemu, name, ended=None, **data):
    """Waits for an event without asking for it again and again, which would take time from what is measured. `ended` is a
    function that returns why there is nothing to wait for any more, or None."""
    qmp, deadline, seen = qemu.qmp, time.monotonic() + PATIENCE, 0
    while True:
        for event in qmp.events[seen:]:
            if event["event"] == name and data.items() <= event.get("data", {}).items():
                return
            if event["event"] == "MIGRATION" and event["data"]["status"] == "failed":
                raise Failed(f"{qemu.name}: {qmp('query-migrate').get('error-desc')}\n{qemu.output()[-2000:]}")
        seen = len(qmp.events)
        if ended and (why := ended()):
            raise Failed(why)
        if time.monotonic() > deadline:
            raise Failed(f"{qemu.name}: no {name} {data or ''} within {PATIENCE} s")
        qmp.next_event(1)


# ---- rdmamig ----

def supports(option):
    """Whether this rdmamig has it."""
    return option in os.popen(f"{lib.RDMAMIG} send --help").read()


def tls_creds(pair):
    """The option that each end has for TLS, with certificates that are new with each pair."""
    folder = pair.case.folder / "pki"
    pki.make_certs("ca", folder)
    for host in ("source", "destination"):
        pki.make_certs("host", folder, host, "127.0.0.1")
    return ["--tls-creds", folder / "source"], ["--tls-creds", folder / "destination"]


def ours(guest, stopped, *options, tls=False):
    """One migration by rdmamig, with these options of `send`."""
    with Pair(guest, stopped) as pair:
        here, there = tls_creds(pair) if tls else ([], [])
        daemon = lib.Daemon(pair.case, "--qmp", pair.target.path, *there)
        pair.begin(daemon)
        send = lib.Send(pair.case, pair.source, daemon, "--keep-source", "--downtime-limit", guest.limit, *here, *options)
        pair.pids.append(send.pid)
        end = None
        if stopped:
            process = os.pidfd_open(send.pid)
            ready = select.select([process], [], [], PATIENCE)[0]
            end = time.time()
            os.close(process)
            if not ready:
                raise Failed("rdmamig send does not end")
        else:
            wait_event(pair.target, "RESUME", lambda: send.popen.poll() and send.explain())
        figures = pair.end(end)
        status, result = send.finish(PATIENCE)
        if status != lib.DONE:
            raise Failed(send.explain())
        return figures | our_rounds(guest, stopped, send.events, result["metrics"])


def our_rounds(guest, stopped, events, metrics):
    rounds = [event for event in events if event["event"] == "round"]
    last = [one for one in rounds if one["stopped"]]
    figures = {"bulk_mib_s": guest.held * 1000 / rounds[0]["send_ms"], "sent_mib": metrics["wire_bytes"] / MIB,
               "rounds": metrics["rounds"], "registrations": metrics["registrations"],
               "registration_ms": metrics.get("registration_ms")}
    if not stopped:
        took = sum(one["scan_ms"] + one["send_ms"] for one in last)
        figures["last_round_mib_s"] = sum(one["sent_bytes"] for one in last) / MIB * 1000 / took
    return figures


# ---- QEMU ----

def peer(guest, stopped, uri, capabilities=(), **parameters):
    """One migration by QEMU itself."""
    with Pair(guest, stopped) as pair:
        source, target = pair.source, pair.target
        for qemu in (source, target):
            qemu.qmp("migrate-set-capabilities",
                     capabilities=[{"capability": name, "state": True} for name in ("events", *capabilities)])
            qemu.qmp("migrate-set-parameters", max_bandwidth=100 << 30, downtime_limit=guest.limit, **parameters)
        target.qmp("migrate-incoming", uri=uri)
        time.sleep(0.5)  # rdma: it listens a moment after the answer
        pair.begin()
        source.qmp("migrate", uri=uri)
        wait_event(source, "MIGRATION", status="completed")
        wait_event(target, *(["MIGRATION"] if stopped else ["RESUME"]), **({"status": "completed"} if stopped else {}))
        end = max(stamp(qemu, "MIGRATION", status="completed") for qemu in (source, target)) if stopped else None
        figures = pair.end(end)
        return figures | peer_rounds(guest, stopped, source, uri)


def traced(qemu, name):
    """[(time, text)…] of one trace event."""
    return [(float(match[1]), match[2]) for match in re.finditer(rf"^\d+@([\d.]+):{name} ?(.*)$", qemu.output(), re.M)]


def peer_rounds(guest, stopped, source, uri):
    info = source.qmp("query-migrate")
    begin = stamp(source, "MIGRATION", status="active")
    # It looks for what the guest has written before all of the first round is sent: as soon as that is little enough. A
    # first round of a few milliseconds is followed by the last one without that.
    looked = stamp(source, "MIGRATION_PASS", **{"pass": 2})
    pending = [int(re.search(r"pre = (\d+)", text)[1]) / MIB for _, text in traced(source, "migrate_pending_exact")]
    dirtied = [int(text.split()[-1]) * 4096 / MIB for _, text in traced(source, "migration_bitmap_sync_end")]
    sent = guest.held - (pending[0] - dirtied[1] if pending else 0)
    asked = [time for time, _ in traced(source, "qemu_rdma_write_one_sendreg")]
    answered = [time for time, _ in traced(source, "qemu_rdma_write_one_recvregres")]
    figures = {"bulk_mib_s": sent / (looked - begin), "sent_mib": info["ram"]["transferred"] / MIB,
               "rounds": info["ram"]["dirty-sync-count"]}
    if asked:
        figures["registrations"] = len(asked)
        figures["registration_ms"] = sum(answered) * 1000 - sum(asked) * 1000
    elif uri.startswith("rdma:"):
        figures["registration_ms"] = info["setup-time"]
    if not stopped:
        # What was left when it decided to stop the guest, and what was written until it had stopped.
        begin = traced(source, "migration_bitmap_sync_start")[-1][0]
        end = next(time for time, text in traced(source, "vmstate_downtime_checkpoint") if "src-iterable-saved" in text)
        figures["last_round_mib_s"] = (sum(pending[-1:]) + dirtied[-1]) / (end - begin)
    return figures
