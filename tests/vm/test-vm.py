#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The VM itself (vm.py): commands, their output and end, the RDMA device, the cable between two."""
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
os.environ.setdefault("RDMAMIG_TEST_PATIENCE", "3")

import lib  # noqa: E402
import vm as harness  # noqa: E402

RUN = Path(__file__).resolve().parent / "run.py"


def ready(vms):
    print(f"# up after {', '.join(f'{vm.boot_seconds:.1f} s' for vm in vms)}", flush=True)


class VmCase(unittest.TestCase):
    # Not with -R: its two ends agree to connect, and the client is then often there before the server listens, and crashes
    # while it tries again. -F: what it thinks of the clock of a busy machine must not end it.
    WRITE = ["ib_write_bw", "-d", "rxe0", "-F", "-s", "65536"]
    PORT = 18515
    PACKETS = 16  # of one write, at a path MTU of 4096

    def start_server(self, vm, *options):
        server = vm.start([*self.WRITE, *options])
        self.addCleanup(server.kill)
        lib.wait_until(lambda: vm.listens(self.PORT) or not server.running(), "ib_write_bw listens")
        self.assertTrue(server.running(), f"ib_write_bw ended: {server.output}")
        return server

    def count(self, vm, name):
        """One of the device's counters."""
        status, output = vm.run(f"cat /sys/class/infiniband/rxe0/ports/1/hw_counters/{name}")
        self.assertEqual(status, 0, output)
        return int(output)

    def write(self, server, client):
        """Writes for a while, and returns MB/s. How the server ends is not looked at: it may miss the client's last word."""
        process = self.start_server(server, "-n", "200")
        before = self.count(client, "sent_pkts")
        status, output = client.run([*self.WRITE, "-n", "200", server.address], timeout=300)
        rows = [line.split() for line in output.splitlines() if line.split()[:2] == ["65536", "200"]]
        both = f"{output}\nserver:\n{process.output}"
        self.assertEqual((status, len(rows)), (0, 1), both)
        self.assertGreaterEqual(self.count(client, "sent_pkts") - before, 200 * self.PACKETS, both)
        return float(rows[0][3])


class One(VmCase):
    @classmethod
    def setUpClass(cls):
        cls.vm = cls.enterClassContext(harness.Vm())
        ready([cls.vm])

    def test_status_and_output_come_back(self):
        self.assertEqual(self.vm.run("echo out; echo err >&2; exit 7"), (7, "out\nerr\n"))
        self.assertEqual(self.vm.run(["printf", "no newline at the end"]), (0, "no newline at the end"))
        self.assertEqual(self.vm.run(["/nonexistent"])[0], 127)
        self.assertEqual(self.vm.run("kill -SEGV $$")[0], 128 + 11)

    def test_output_is_passed_on_as_it_comes_and_whole(self):
        seen = []
        command = self.vm.start("echo first; while [ ! -e /tmp/more ]; do sleep 0.1; done; seq 100000",
                                sink=lambda data: seen.append(data))
        lib.wait_until(lambda: b"".join(seen) == b"first\n", "the first line")
        self.assertTrue(command.running())
        self.vm.run(["touch", "/tmp/more"])
        status, output = command.wait()
        self.assertEqual(status, 0)
        self.assertEqual(output, "first\n" + "".join(f"{i}\n" for i in range(1, 100001)))
        self.assertEqual(b"".join(seen).decode(), output)

    def test_commands_run_at_once(self):
        waiter = self.vm.start("while [ ! -e /tmp/go ]; do sleep 0.1; done; echo went")
        self.assertTrue(waiter.running())
        self.vm.run(["touch", "/tmp/go"])
        self.assertEqual(waiter.wait(), (0, "went\n"))

    def test_a_command_leaves_nothing_behind(self):
        self.vm.run("sleep 1234 & echo started")
        self.assertNotIn("sleep\x001234", self.vm.run("cat /proc/[0-9]*/cmdline")[1])

    def test_a_command_that_takes_too_long_is_killed(self):
        command = self.vm.start("echo before; sleep 1235")
        lib.wait_until(lambda: "before" in command.output, "it has begun")
        with self.assertRaises(TimeoutError) as caught:
            command.wait(1)
        self.assertIn("before", str(caught.exception))
        self.assertNotIn("sleep\x001235", self.vm.run("cat /proc/[0-9]*/cmdline")[1])

    def test_the_hosts_files_are_there_and_cannot_be_written(self):
        self.assertEqual(self.vm.run(["cat", RUN])[1], RUN.read_text())
        marker = RUN.with_name("written-by-the-vm")
        self.assertEqual(self.vm.run(f"echo x >{marker} && cat {marker}"), (0, "x\n"))
        self.assertFalse(marker.exists())
        self.assertEqual(self.vm.run("stat -f -c %T /dev/shm")[1], "tmpfs\n")

    def test_rdma_device(self):
        self.assertIn("rxe0", self.vm.run(["ibv_devices"])[1])
        self.assertIn("active_mtu:\t\t4096", self.vm.run(["ibv_devinfo"])[1])
        self.assertEqual(self.vm.run("ulimit -l")[1], "unlimited\n")

    def test_rdma_writes_to_itself(self):
        print(f"# ib_write_bw, one VM: {self.write(self.vm, self.vm)} MB/s", flush=True)


class Two(VmCase):
    @classmethod
    def setUpClass(cls):
        cls.a, cls.b = cls.enterClassContext(harness.pair())
        ready([cls.a, cls.b])

    def test_1_rdma_writes_to_the_other(self):
        self.assertIn("active_mtu:\t\t4096", self.a.run(["ibv_devinfo"])[1])
        print(f"# ib_write_bw, two VMs: {self.write(self.a, self.b)} MB/s", flush=True)

    def test_2_pulling_the_cable_stops_it(self):
        """rxe tries again for ever, so the writes go on once the cable is back."""
        self.start_server(self.a, "-n", "1000000")
        client = self.b.start([*self.WRITE, "-n", "1000000", self.a.address])
        self.addCleanup(client.kill)

        def arrive(n):
            before = self.count(self.a, "rcvd_pkts")
            lib.wait_until(lambda: self.count(self.a, "rcvd_pkts") > before + n or not client.running(), "writes arrive")
            self.assertTrue(client.running(), client.output)

        arrive(1000)
        self.a.set_link(False)
        pulled = time.monotonic()
        # What the VM had received before that is soon counted; then there is silence, for longer than any retry takes.
        while (before := self.count(self.a, "rcvd_pkts")) != (time.sleep(5), self.count(self.a, "rcvd_pkts"))[1]:
            self.assertLess(time.monotonic() - pulled, lib.PATIENCE, "packets come through a cable that was pulled")
        self.assertTrue(client.running(), client.output)
        self.a.set_link(True)
        arrive(1000)
        print(f"# {before} packets before the cable was pulled", flush=True)


class Program(unittest.TestCase):
    def test_exit_status(self):
        done = subprocess.run([RUN, "--memory", "1024", "--", "sh", "-c", "echo out; exit 9"], capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, done.stdout), (9, "out\n"), done.stderr)


if __name__ == "__main__":
    try:
        harness.find_kernel()
    except harness.Unavailable as error:
        print(f"1..0 # SKIP {' '.join(str(error).split())}")
        sys.exit(0)
    sys.exit(lib.run())
