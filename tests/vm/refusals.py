#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is turned away, cut down or told over rdma, and that the guest lives through it: what test-rdma-refuse.py runs.

    tests/vm/refusals.py [NAME-OR-PART-OF-IT]...

The environment is that of cases.py. What attempts only refuse is tried on one guest, one attempt after the other, and at
last the guest moves: that is shorter, and it shows that none of them left anything behind.
"""
import ipaddress
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import cases  # noqa: E402
import lib  # noqa: E402
import peers  # noqa: E402
from cases import DEVICE, LIMIT  # noqa: E402
from lib import MIB, Daemon, Qemu, Send  # noqa: E402

STRANGER = lib.BUILD / "tests/vm/stranger"
SLOWLY = ["--max-bandwidth", "1M"]  # the first round then lasts for half a minute
IN_VM = "RDMAMIG_VM" in os.environ
MEMLOCK = 64  # MiB


def name_and_port():
    name, _, port = os.environ.get("RDMAMIG_TEST_DEVICE", "").partition(":")
    return name, int(port or 1)


def port_files(pattern):
    """{index: contents} of files of the device's port in sysfs, without empty entries."""
    name, port = name_and_port()
    found = {}
    for path in Path(f"/sys/class/infiniband/{name}/ports/{port}").glob(pattern):
        try:
            found[int(path.name)] = path.read_text().strip()
        except OSError:  # an entry of a GID table that is not in use
            continue
    return found


class RefusalCase(cases.MoveCase):
    def guests(self, filled=24, **keywords):
        """A running guest and a QEMU that waits for it."""
        keywords = {"rams": (128,), "guest": {"last": 5 * MIB}} | keywords
        source = Qemu(self, "source", **keywords)
        source.wait_letters()
        source.rams[0].fill(keywords["rams"][0] - filled, filled)
        return source, Qemu(self, "target", incoming=True, **keywords)

    def daemon(self, target, *options, **keywords):
        return Daemon(self, "--qmp", target.path, *options, **keywords)

    def attempt(self, source, to, status, words, *options, **keywords):
        """A `send` that fails: it says all of `words`, and the guest goes on. Returns the Send."""
        send = Send(self, source, to, *options, **keywords)
        found, result = send.finish()
        self.assertEqual(found, status, f"exit status\n{send.explain()}")
        text = send.text() + (result["detail"] if result else "")
        for word in words:
            self.assertIn(word, text, send.explain())
        source.assert_runs()
        source.assert_left_alone()
        return send

    def assert_moved(self, *stations):
        """From the last station but one to the last, every page, and the guest counts on."""
        source, target = stations[-2:]
        self.assert_equal_memory(source, target)
        target.qmp("cont")
        target.assert_runs()
        self.assertEqual(target.parameter("faults"), 0)
        self.assert_counted_on(*stations)

    def warnings(self, send):
        """But that this test's journals are in memory."""
        return [event["detail"] for event in send.events
                if event["event"] == "warning" and not event["detail"].startswith("sessions are recorded in ")]


@unittest.skipUnless(cases.RDMA, "not over rdma")
class Refusals(RefusalCase):
    def test_terms_and_devices(self):
        """The chunk size is negotiated; what no device has is refused by name."""
        name, port = name_and_port()
        device = f"{name}:{port}"
        source, target = self.guests()

        daemon = self.daemon(target, "--min-chunk-size", "16M")
        send = self.attempt(source, daemon, lib.REFUSED, [str(4 * MIB), str(16 * MIB), "--min-chunk-size"],
                            "--chunk-size", "4M")
        self.assertEqual(send.events[-1]["reason"], "chunk-size")
        self.assertRegex(daemon.output(), rf"refused: .*{4 * MIB} .*{16 * MIB} ")
        daemon.kill()
        for options, words in ((["nosuch0"], ["--rdma-device nosuch0", "ibv_devices"]),
                               ([f"{name}:77"], [f"--rdma-device {name}", "no such port", "ibv_devinfo"]),
                               ([device, "--gid-index", "250"], [f"--rdma-device {name}", "GID index", "ibv_devinfo"])):
            for here, there in ((options, []), ([], options)):
                daemon = self.daemon(target, *(["--rdma-device", *there] if there else DEVICE))
                self.attempt(source, daemon, lib.REFUSED, words, *(["--rdma-device", *here] if here else DEVICE))
                daemon.kill()

        daemon = self.daemon(target, "--max-chunk-size", "2M", "--rdma-device", device)
        index = min(index for index, gid in port_files("gids/*").items()
                    if ipaddress.IPv6Address(gid).ipv4_mapped == ipaddress.IPv4Address(lib.ADDRESS))
        self.move(source, target, daemon, *LIMIT, "--chunk-size", "32M", "--rdma-device", device,
                  "--gid-index", str(index))
        self.assertIn("chunk size 2 MiB: the destination's maximum", self.last_send.text())
        self.assertIn("chunks of 2 MiB", daemon.output())
        self.assertRegex(daemon.output(), rf"data channel 0: {name} port {port}, .*GID index")

    def test_strangers(self):
        """Connections that don't belong to the session are turned away, and the session goes on."""
        source, target = self.guests()
        daemon = self.daemon(target, *DEVICE)
        tokens, held = [], []

        def script(direction, message):
            if message["type"] == "accept":
                tokens.append(message["token"])
                message["address"]["host"] = lib.ADDRESS
            if message["type"] == "round-end" and not held:
                held.append(message)  # the round ends once all strangers were there
                return None
            return message
        proxy = peers.Proxy(self, daemon, script)
        send = Send(self, source, proxy.address, *LIMIT, *DEVICE, "--suspend", "--keep-source")
        lib.wait_until(lambda: held or send.popen.poll() is not None, "the first round ends")
        self.assertTrue(held, send.explain())
        token, = tokens
        magic = b"RMDATA1\n".hex()
        none = "00000000"
        for data, log in (("", "without rdmamig's preamble"),
                          ("ff" * 56, "without rdmamig's preamble"),
                          (magic + token[:20], "without a valid token"),  # rdma_cm fills up with zeroes
                          (magic + token + none + "01000000", "without rdmamig's preamble"),
                          (magic + "ab" * 32 + none + none, "without a valid token"),
                          (magic + token[:-2] + f"{int(token[-2:], 16) ^ 1:02x}" + none + none, "without a valid token"),
                          (magic + token + none + none, "data channel 0 came twice"),
                          (magic + token + "01000000" + none, "data channel 1 came, but only 1"),
                          (magic + token + "ffffffff" + none, "data channel 4294967295 came, but only 1")):
            with self.subTest(log, data=data):
                before = daemon.output()
                done = subprocess.run([STRANGER, lib.ADDRESS, str(daemon.port), *filter(None, [data])], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=lib.PATIENCE)
                self.assertEqual((done.returncode, done.stdout), (0, "rejected\n"))
                self.assertIn(log, daemon.output()[len(before):])
        proxy.far.raw(json.dumps(held[0]).encode() + b"\n")
        status, result = send.finish()
        self.assertEqual((status, result["owner"]), (lib.DONE, "destination"), send.explain())
        self.assert_moved(source, target)

    def test_killed(self):
        """Each end killed in the middle of a round: the guest counts on, and the next attempt passes."""
        source, target = self.guests()
        daemon = self.daemon(target, *DEVICE)
        send = Send(self, source, daemon, *SLOWLY, *DEVICE)
        send.wait_precopy()
        daemon.kill()
        status, result = send.finish()
        self.assertEqual((status, result["owner"]), (lib.FAILED, "source"), send.explain())
        source.assert_runs()
        source.assert_left_alone()

        daemon = self.daemon(target, *DEVICE)
        send = Send(self, source, daemon, *SLOWLY, *DEVICE)
        send.wait_precopy()
        send.kill()
        source.assert_runs()
        source.assert_left_alone()
        # The daemon must let go of that session by itself.
        lib.wait_until(lambda: Send(self, source, daemon, "--dry-run", *DEVICE).finish()[0] == lib.DONE,
                       f"the daemon is free again: {daemon.output()}")
        self.move(source, target, daemon, *LIMIT, *DEVICE)


@unittest.skipUnless(cases.RDMA, "not over rdma")
class Memlock(RefusalCase):
    """Root may lock what it wants, by CAP_IPC_LOCK: the limit binds without."""
    BOUND = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", f"--memlock={MEMLOCK * MIB}"]
    NAMES = ("RLIMIT_MEMLOCK", "ulimit -l unlimited", "LimitMEMLOCK=infinity")

    def assert_named(self, text, explanation):
        """The limit, what is needed, and where to raise it, in one line, which is returned."""
        lines = [line for line in text.splitlines() if all(name in line for name in self.NAMES)]
        self.assertTrue(lines, explanation)
        whole = [line for line in lines
                 if re.search(rf"\b{MEMLOCK}(\.0)? MiB", line) and len(re.findall(r"\d [KMG]iB", line)) > 1]
        self.assertTrue(whole, lines)
        return whole[-1]

    def test_limit_at_the_destination(self):
        """RAM is registered as much at a time as the limit allows, with a warning; all of it at once is refused."""
        source, target = self.guests(filled=100)
        daemon = self.daemon(target, *DEVICE, wrapper=self.BOUND)
        self.attempt(source, daemon, lib.REFUSED, ["--pin all", "RLIMIT_MEMLOCK", "ulimit -l unlimited", "LimitMEMLOCK=infinity"],
                     "--pin", "all", *DEVICE)
        send = Send(self, source, daemon, *LIMIT, *DEVICE, "--suspend", "--keep-source")
        self.assertEqual(send.finish()[0], lib.DONE, send.explain())
        print("#", self.assert_named(daemon.output(), send.explain()), flush=True)
        self.assertNotIn("assertion", daemon.output())
        self.assert_equal_memory(source, target)

    def test_limit_at_the_source(self):
        """RAM is copied before it is sent, with a warning."""
        source, target = self.guests(filled=100)
        send = Send(self, source, self.daemon(target, *DEVICE), *LIMIT, *DEVICE, "--suspend", "--keep-source", wrapper=self.BOUND)
        self.assertEqual(send.finish()[0], lib.DONE, send.explain())
        print("#", self.assert_named("\n".join([send.text(), *self.warnings(send)]), send.explain()), flush=True)
        self.assert_equal_memory(source, target)


@unittest.skipUnless(cases.RDMA, "not over rdma")
class Auto(RefusalCase):
    # In a mount namespace of its own, where the devices' files are not.
    WITHOUT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/infiniband && exec "$@"', "sh"]

    def check(self, source, daemon, transport, words, *options, **keywords):
        """Dry runs would not connect: an attempt, ended once its channels are there."""
        send = Send(self, source, daemon, "--transport", "auto", *SLOWLY, *options, **keywords)
        send.wait_precopy()
        send.kill(2)
        self.assertEqual(send.finish()[0], lib.CANCELLED, send.explain())
        taken = re.findall(r"session .* from .*: ([a-z]+), \d channels", daemon.output())
        self.assertEqual(taken[-1:], [transport], send.explain())
        warnings = self.warnings(send)
        self.assertEqual(len(warnings), 1 if words else 0, send.explain())
        for word in words:
            self.assertIn(word, warnings[0])
        daemon.kill()

    def test_falls_back(self):
        """What both ends have and can reach is taken; if that is not rdma, a warning says what would mend it."""
        source, target = self.guests()
        tcp = "RAM travels over tcp"
        self.check(source, self.daemon(target), "rdma", [])
        # RDMA at both ends, but not on the way that the control connection took.
        self.check(source, self.daemon(target, host="127.0.0.1"), "tcp", [tcp, "--data-address"])
        self.check(source, self.daemon(target, "--data-address", lib.ADDRESS, "--insecure", host="127.0.0.1"), "rdma", [])
        # At one end only.
        self.check(source, self.daemon(target, wrapper=self.WITHOUT), "tcp", [tcp, "the destination none", "--rdma-device"])
        self.check(source, self.daemon(target), "tcp", [tcp, "the source none", "--rdma-device"], wrapper=self.WITHOUT)
        # Not there, and wanted.
        self.attempt(source, self.daemon(target, wrapper=self.WITHOUT), lib.REFUSED, ["--transport tcp"])
        self.move(source, target, self.daemon(target), *LIMIT, "--transport", "auto")
        self.assertEqual(self.last_send.finish()[1]["transport"], "rdma")


@unittest.skipUnless(cases.RDMA, "not over rdma")
@unittest.skipUnless(IN_VM, "gives addresses to the device's network interface: only in the VM")
class Ipv6(RefusalCase):
    GLOBAL = "fd09::9:1"

    def test_link_local_and_global(self):
        interface = port_files("gid_attrs/ndevs/*")[0]
        subprocess.run(["ip", "address", "add", f"{self.GLOBAL}/64", "dev", interface, "nodad"], check=True)
        self.addCleanup(subprocess.run, ["ip", "address", "del", f"{self.GLOBAL}/64", "dev", interface])
        lib.wait_until(lambda: ipaddress.IPv6Address(self.GLOBAL).exploded in port_files("gids/*").values(),
                       "the device has the address as a GID")
        shown = subprocess.run(["ip", "-6", "-o", "address", "show", "dev", interface, "scope", "link"],
                               capture_output=True, text=True, check=True).stdout
        local = re.search(r"inet6 (fe80::[0-9a-f:]+)/", shown).group(1)

        source, target = self.guests()
        daemon = self.daemon(target, host=f"[{local}%{interface}]")
        done = subprocess.run([lib.RDMAMIG, "send", "--qmp", source.path, "--to", f"[{local}]:{daemon.port}"], text=True,
                              capture_output=True, timeout=lib.PATIENCE)
        self.assertEqual(done.returncode, lib.USAGE, done.stderr)
        self.assertIn(f"link-local: add the interface, as [{local}%", done.stderr)
        self.move(source, target, daemon, *LIMIT)
        self.assertIn("GID", daemon.output())
        # And on, by the other address.
        third = Qemu(self, "third", incoming=True, rams=(128,))
        self.send(target, self.daemon(third, host=f"[{self.GLOBAL}]"), "--suspend", "--keep-source", *LIMIT)
        self.assert_moved(source, target, third)


class Hugepages(RefusalCase):
    def test_2_mib(self):
        mount = self.hugepages(2 * 128)
        source, target = self.guests(ram_folder=mount)
        self.move(source, target, self.daemon(target, *DEVICE), *LIMIT, *DEVICE)
        self.assertEqual(target.parameter("faults"), 0)


if __name__ == "__main__":
    sys.exit(lib.run())
