#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What there is to watch: metrics over HTTP. Read by a parser that is strict (prometheus.py)."""
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from lib import (CANCELLED, DONE, MIB, PATIENCE, RDMAMIGD, REFUSED, ROOT, USAGE, Case, Daemon, Qemu, Send, free_port, run,
                 wait_until)
from prometheus import Page, promtool


def get(port, path="/metrics", method="GET", host="127.0.0.1"):
    """(status, headers, body)."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def scrape(port, **keywords):
    status, headers, body = get(port, **keywords)
    assert status == 200, body
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", headers
    return Page(body)


class Scraper(threading.Thread):
    """Reads the page again and again, and looks for counters that decrease."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.pages, self.problem, self.over = port, [], None, threading.Event()
        self.start()

    def run(self):
        last = {}
        try:
            while not self.over.wait(0.02):
                page = scrape(self.port)
                for key, value in page.counters().items():
                    assert value >= last.get(key, 0), f"{key}: {last[key]}, then {value}"
                last = page.counters()
                self.pages.append(page)
        except Exception as problem:
            self.problem = problem

    def end(self):
        self.over.set()
        self.join(PATIENCE)
        assert self.problem is None, repr(self.problem)
        return self.pages


def state(page, name):
    return page["rdmamigd_sessions", f"state={name}"]


def ended(page, outcome, reason):
    return page["rdmamigd_sessions_total", f"outcome={outcome}", f"reason={reason}"]


class Metrics(Case):
    def setUp(self):
        super().setUp()
        done = subprocess.run([RDMAMIGD, "--listen", "--qmp", "none", "--metrics", "none"], capture_output=True, text=True)
        if "built without libmicrohttpd" in done.stderr:
            self.skipTest("this rdmamigd was built without libmicrohttpd")

    def assert_nothing_open(self, port):
        wait_until(lambda: sum(scrape(port).families["rdmamigd_sessions"].samples.values()) == 0, "no session is left")
        wait_until(lambda: scrape(port)["rdmamigd_connections"] == 0, "no connection is left")

    def test_sessions(self):
        """Refused, checked, cancelled, moved: each counts once, under its name; the page can be read all the while."""
        port = free_port()
        source, target, daemon = self.pair("--metrics", f":{port}", rams=(128,), guest={"last": 5 * MIB})
        source.rams[0].fill(20, 60)
        other = Qemu(self, "other", rams=(64,), guest={"last": 5 * MIB})
        other.wait_letters()
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        self.addCleanup(lambda: [connection.close() for connection in idle])
        scraper = Scraper(port)

        self.assertEqual(self.send(other, daemon, expect=REFUSED)["reason"], "guest-mismatch")
        self.send(source, daemon, "--dry-run")
        send = Send(self, source, daemon, "--max-bandwidth", "10M")
        send.wait_precopy()
        page = wait_until(lambda: (page := scrape(port)) and page["rdmamigd_received_bytes_total"] > 0 and page, "bytes come")
        self.assertEqual(state(page, "precopy"), 1)
        self.assertGreaterEqual(page["rdmamigd_connections"], 1)
        send.kill(signal.SIGINT)
        self.assertEqual(send.finish()[0], CANCELLED)
        self.assert_nothing_open(port)
        before = scrape(port)
        self.assertEqual(ended(before, "done", "none"), 0)
        result = self.send(source, daemon)
        self.assert_nothing_open(port)
        pages = scraper.end()
        page = scrape(port)
        self.assertGreater(len(pages), 10)
        self.assertTrue(any(state(page, "precopy") for page in pages), "precopy was never seen")

        self.assertEqual(ended(page, "refused", "guest-mismatch"), 1)
        self.assertEqual(ended(page, "cancelled", "cancelled"), 1)
        self.assertEqual(ended(page, "done", "none"), 1)
        self.assertEqual(page["rdmamigd_checks_total"], 1)
        self.assertEqual(sum(page.families["rdmamigd_sessions_total"].samples.values()), 3)
        self.assertEqual(page["rdmamigd_connections_total", "kind=control"], 4)
        self.assertEqual(page["rdmamigd_connections_total", "kind=data"], 4, "two channels, twice")
        got = page["rdmamigd_received_bytes_total"] - before["rdmamigd_received_bytes_total"]
        self.assertEqual(got, result["metrics"]["sent_bytes"] + -(-result["metrics"]["state_bytes"] // 4096) * 4096)
        self.assertGreater(page["rdmamigd_registrations_total"], before["rdmamigd_registrations_total"])
        self.assertGreater(page["rdmamigd_registration_seconds_total"], 0)
        self.assertEqual(page["rdmamigd_state_load_seconds_count"], 1)
        self.assertEqual(page["rdmamigd_commit_to_running_seconds_count"], 1)
        load = result["metrics"]["state_load_ms"] / 1000
        self.assertGreater(page["rdmamigd_state_load_seconds_sum"], 0)
        self.assertLessEqual(page["rdmamigd_state_load_seconds_sum"], load + 0.001)
        self.assertNotIn("guest", repr([list(family.samples) for family in page.families.values()]).replace("guest-mismatch", ""))

    def test_strangers(self):
        port = free_port()
        daemon = Daemon(self, "--qmp", self.folder / "none", "--metrics", f":{port}", env={"RDMAMIG_FAULT": "hello-wait=1"})
        for first in (b"X", b"RMDATA1\n" + bytes(40), b"", b'{"type":"query","session":"x","token":"y"}\n', b'{"type":"hello"}\n'):
            with socket.create_connection(("127.0.0.1", daemon.port)) as stranger:
                stranger.settimeout(PATIENCE)
                stranger.sendall(first)
                try:
                    while stranger.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        self.assert_nothing_open(port)
        page = scrape(port)
        refused = {dict(labels)["cause"]: value
                   for (_, labels), value in page.families["rdmamigd_connections_refused_total"].samples.items() if value}
        self.assertEqual(refused, {"stranger": 1, "token": 1, "silent": 1})
        self.assertEqual(page["rdmamigd_connections_total", "kind=query"], 1)
        self.assertEqual(ended(page, "refused", "protocol"), 1)

    def test_http(self):
        port = free_port()
        daemon = Daemon(self, "--qmp", self.folder / "none", "--metrics", f"[::1]:{port}")
        status, headers, body = get(port, "/", host="::1")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn('href="/metrics"', body)
        self.assertEqual(get(port, "/other", host="::1")[0], 404)
        status, headers, body = get(port, method="POST", host="::1")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        status, headers, body = get(port, method="HEAD", host="::1")
        self.assertEqual((status, body), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 1000)
        for request in (b"GET /metrics HTTP/9.9\r\n\r\n", b"\0" * 20000, b"GET /" + b"x" * 50000 + b" HTTP/1.1\r\n\r\n",
                        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"):
            with socket.create_connection(("::1", port)) as stranger:
                stranger.settimeout(PATIENCE)
                try:
                    stranger.sendall(request)
                    while stranger.recv(65536):
                        pass
                except OSError:
                    pass
        page = scrape(port, host="::1")
        version = subprocess.run([RDMAMIGD, "--version"], capture_output=True, text=True).stdout.split()[1]
        rdma = dict(list(page.families["rdmamigd_build_info"].samples)[0][1])["rdma"]
        self.assertEqual(page["rdmamigd_build_info", f"version={version}", f"rdma={rdma}"], 1)
        self.assertAlmostEqual(page["process_start_time_seconds"], time.time(), delta=PATIENCE)
        self.assertGreater(page["process_cpu_seconds_total"], 0)
        self.assertGreater(page["process_resident_memory_bytes"], MIB)
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024
        self.assertAlmostEqual(page["process_resident_memory_bytes"], resident, delta=4 * MIB)
        self.assertAlmostEqual(page["process_open_fds"], len(os.listdir(f"/proc/{daemon.pid}/fd")), delta=4)
        lint = promtool(get(port, host="::1")[2])
        if lint is None:
            print(f"# {self.id()}: promtool is not installed; our own parser alone has read the page")
        self.assertIn(lint, (None, []))
        daemon.kill(signal.SIGTERM)
        self.assertEqual(daemon.popen.returncode, 0)

    def test_wrong(self):
        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for address, status, text in (
                (f":{port}", 1, f"--metrics: cannot listen on 127.0.0.1:{port}: .*in use"),
                ("127.0.0.1", USAGE, "has no port"), ("::1", USAGE, "has no port"), ("[::1]", USAGE, "has no port"),
                (":0", USAGE, "port"), (":99999", USAGE, "port"), ("", USAGE, "empty"), ("a.example:9", USAGE, "IP address")):
            with self.subTest(address=address):
                done = subprocess.run([RDMAMIGD, f"--listen=:{free_port()}", "--insecure", "--qmp", "none", "--metrics", address],
                                      env=self.env, capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertRegex(done.stderr, text)

    def test_documented(self):
        """docs/metrics.md has each family, and each event's MESSAGE_ID, and no others."""
        port = free_port()
        Daemon(self, "--qmp", self.folder / "none", "--metrics", f":{port}")
        text = (ROOT / "docs/metrics.md").read_text()
        families = set(re.findall(r"^\| `((?:rdmamigd|process)_[a-z_]+)", text, re.M))
        self.assertEqual(families, set(scrape(port).families))
        header = (ROOT / "src/common/log-event.h").read_text()
        events = {name.lower(): number for name, number in re.findall(r'X\((\w+), "([0-9a-f]{32})"\)', header)}
        self.assertEqual(dict(re.findall(r"^\| (\w+) \| `([0-9a-f]{32})`", text, re.M)), events)
        self.assertEqual(len(set(events.values())), len(events))


if __name__ == "__main__":
    sys.exit(run())
