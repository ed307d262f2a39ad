#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Attempts that fail: the guest goes on where it was, whole, and the next attempt passes."""
import signal
import sys
import time

from lib import (CANCELLED, FAILED, MIB, POWEROFF, RESET, SWEEP, ZERO, Case, Daemon, Qemu, QmpError, Send,
                 each_qemu, run, wait_until)

SLOWLY = ("--max-bandwidth", "20M")  # pre-copy of the guests here then lasts for ten seconds and more
BOUND = 20  # seconds within which both ends must have noticed that the other is dead


class Failure(Case):
    def slow_pair(self, **keywords):
        source, target, daemon = self.pair(**keywords)
        source.rams[0].fill(128, 100)
        return source, target, daemon

    def in_precopy(self, source, daemon, *options):
        send = Send(self, source, daemon, *SLOWLY, *options)
        send.wait_precopy()
        self.assertEqual(source.status(), "running")
        return send

    def assert_failed(self, send, status, *reasons):
        begin = time.monotonic()
        code, result = send.finish()
        self.assertLess(time.monotonic() - begin, BOUND)
        self.assertEqual(code, status, send.explain())
        self.assertIn(result["reason"], reasons, send.explain())
        self.assertEqual(result["owner"], "source")
        return result

    def assert_still_there(self, source):
        source.assert_runs()
        source.assert_left_alone()
        self.assertEqual(source.parameter("faults"), 0)


@each_qemu("7.2", "10.0")
class Killed(Failure):
    def test_rdmamigd(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        daemon.kill()
        self.assert_failed(send, FAILED, "peer-lost", "peer-timeout", "transport")
        self.assert_still_there(source)
        self.move(source, target, Daemon(self, "--qmp", target.path))

    def test_rdmamig(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        send.kill()
        self.assert_still_there(source)
        self.assertTrue(daemon.alive())
        self.retry_until_free(source, target, daemon)

    def test_rdmamig_stopped_and_killed(self):
        """Killed while the daemon can't yet know: SIGSTOP first, so that connections stay open and silent."""
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        send.kill(signal.SIGSTOP)
        source.assert_runs()
        send.kill()
        self.assert_still_there(source)
        self.retry_until_free(source, target, daemon)

    def test_waiting_qemu(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        target.kill()
        self.assert_failed(send, FAILED, "guest-gone", "qmp-unreachable", "peer-lost")
        self.assert_still_there(source)
        self.assertTrue(daemon.alive(), daemon.output())
        again = Qemu(self, "again", incoming=True)
        daemon.kill()
        self.move(source, again, Daemon(self, "--qmp", again.path))

    def retry_until_free(self, source, target, daemon):
        """The next attempt may find the old session not yet ended at the daemon; it must end within the bound."""
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            send = Send(self, source, daemon, "--dry-run")
            if send.finish()[0] == 0:
                break
            time.sleep(0.2)
        self.move(source, target, daemon)


@each_qemu("7.2", "10.0")
class Ended(Failure):
    """The guest itself ends, or starts anew, in pre-copy."""

    def test_reset_by_the_guest(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        source.set_parameter("mode", RESET)
        self.assert_failed(send, FAILED, "guest-reset")
        self.assert_starts_anew_and_moves(source, target, daemon)

    def test_reset_by_the_operator(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        source.qmp("system_reset")
        self.assert_failed(send, FAILED, "guest-reset")
        self.assert_starts_anew_and_moves(source, target, daemon)

    def assert_starts_anew_and_moves(self, source, target, daemon):
        wait_until(lambda: source.serial().count("A") == 2, "the guest starts anew")
        source.wait_letters()
        source.assert_left_alone()
        self.assertTrue(daemon.alive(), daemon.output())
        self.send(source, daemon, "--suspend", "--keep-source")
        self.assert_equal_memory(source, target)

    def test_power_off(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        source.set_parameter("mode", POWEROFF)
        self.assert_failed(send, FAILED, "guest-shutdown", "guest-gone")
        wait_until(lambda: not source.alive(), "QEMU ends with its guest")
        self.assert_destination_is_free(target, daemon)

    def test_power_off_of_a_qemu_that_stays(self):
        source, target, daemon = self.slow_pair(extra=["-no-shutdown"])
        send = self.in_precopy(source, daemon)
        source.set_parameter("mode", POWEROFF)
        self.assert_failed(send, FAILED, "guest-shutdown")
        self.assertEqual(source.status(), "shutdown")
        source.assert_left_alone()
        self.assert_destination_is_free(target, daemon)

    def test_qemu_killed(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon)
        source.kill()
        self.assert_failed(send, FAILED, "guest-gone", "guest-shutdown")
        self.assert_destination_is_free(target, daemon)

    def assert_destination_is_free(self, target, daemon):
        """The daemon lives, and the QEMU that waits there takes another guest."""
        self.assertTrue(daemon.alive(), daemon.output())
        self.assertTrue(target.alive(), target.output())
        other = Qemu(self, "other", extra=["-no-shutdown"] if "-no-shutdown" in target.popen.args else [])
        other.wait_letters()
        self.send(other, daemon, "--suspend", "--keep-source")
        self.assert_equal_memory(other, target)


@each_qemu("7.2", "10.0")
class RolledBack(Failure):
    """Failures after the guest was stopped: it runs again at the source, with its disks and QEMU's settings as found."""

    def with_disk(self, name, incoming=False, extra=()):
        image = self.folder / "disk.img"
        if not image.exists():
            image.write_bytes(bytes(8 * MIB))
        qemu = Qemu(self, name, incoming=incoming, rams=(64,), guest={"last": 9 * MIB}, disk=f"file={image}", extra=extra)
        if not incoming:
            qemu.wait_letters()
        return qemu

    def disk_locks(self):
        """What QEMU locks of the image, and how: it shows who may write it."""
        inode = (self.folder / "disk.img").stat().st_ino
        fields = (line.split() for line in open("/proc/locks"))
        return sorted(tuple(field[3:4] + field[6:]) for field in fields if field[5].endswith(f":{inode}"))

    def test_destination_rejects_the_device_state(self):
        source = self.with_disk("source", extra=["-device", "virtio-rng-pci"])
        source.qmp("migrate-set-capabilities", capabilities=[{"capability": "return-path", "state": True}])
        source.qmp("migrate-set-parameters", max_bandwidth=12345678)
        found = [source.qmp(f"query-migrate-{what}") for what in ("capabilities", "parameters")]
        locks = self.disk_locks()
        self.assertTrue(locks)
        target = self.with_disk("target", incoming=True)
        daemon = Daemon(self, "--qmp", target.path)
        begin = time.monotonic()
        code, result = Send(self, source, daemon).finish()
        self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "state-load", "source"), result["detail"])
        self.assertLess(time.monotonic() - begin, BOUND)
        self.assert_still_there(source)
        self.assertEqual([source.qmp(f"query-migrate-{what}") for what in ("capabilities", "parameters")], found)
        wait_until(lambda: not target.alive(), "the burnt QEMU is ended")
        wait_until(lambda: str(target.path) in daemon.output(), "the daemon says so")
        self.assertEqual(self.disk_locks(), locks, "the source did not take its disk back")
        daemon.kill()
        again = self.with_disk("again", incoming=True, extra=["-device", "virtio-rng-pci"])
        self.move(source, again, Daemon(self, "--qmp", again.path))

    def test_killed_while_stopped(self):
        """rdmamigd dies, or the waiting QEMU does, between stop and commit."""
        for victim, fault in (("daemon", "switchover-saved=4000"), ("target", "switchover-saved=4000"),
                              ("daemon", "switchover-stopped=4000")):
            with self.subTest(victim=victim, fault=fault):
                source, target = self.with_disk("source"), self.with_disk("target", incoming=True)
                daemon = Daemon(self, "--qmp", target.path)
                send = Send(self, source, daemon, env={"RDMAMIG_FAULT": fault})
                wanted = "postmigrate" if "saved" in fault else "paused"
                wait_until(lambda: source.status() == wanted, "the switchover is under way")
                {"daemon": daemon, "target": target}[victim].kill()
                self.assert_failed(send, FAILED, "peer-lost", "guest-gone", "transport", "state-load", "peer-timeout")
                self.assert_still_there(source)
                target.kill()
                daemon.kill()
                again = self.with_disk("again", incoming=True)
                self.move(source, again, Daemon(self, "--qmp", again.path))
                source.kill()
                again.kill()

    def test_cancel_while_stopped(self):
        source, target = self.with_disk("source"), self.with_disk("target", incoming=True)
        daemon = Daemon(self, "--qmp", target.path)
        send = Send(self, source, daemon, env={"RDMAMIG_FAULT": "switchover-saved=1500"})
        wait_until(lambda: source.status() == "postmigrate", "the state is saved")
        send.kill(signal.SIGINT)
        self.assert_failed(send, CANCELLED, "cancelled")
        self.assert_still_there(source)
        self.move(source, target, daemon)


class Retry(Failure):
    def test_cancel_then_zeroed_pages_then_the_same_waiting_qemu(self):
        """What the first attempt wrote must not survive where the guest has zeroes by now."""
        source, target, daemon = self.slow_pair()
        send = Send(self, source, daemon, *SLOWLY)
        send.wait_event(lambda event: event["event"] == "progress" and event["done_bytes"] > 60 * MIB
                        or event["event"] == "round", "60 MiB sent")
        send.kill(signal.SIGINT)
        self.assert_failed(send, CANCELLED, "cancelled")
        self.assert_still_there(source)
        source.set_parameter("mode", SWEEP | ZERO)
        wait_until(lambda: source.parameter("mode") == 0, "the guest zeroes its window")
        source.rams[0].write(128 * MIB, bytes(50 * MIB))
        self.move(source, target, daemon)
        self.assertEqual(target.rams[0].read(MIB, 99 * MIB).count(0), 99 * MIB)

    def test_cancel_many_times(self):
        source, target, daemon = self.slow_pair()
        for _ in range(3):
            send = self.in_precopy(source, daemon)
            send.kill(signal.SIGTERM)
            send.kill(signal.SIGINT)
            self.assert_failed(send, CANCELLED, "cancelled")
            self.assert_still_there(source)
        self.move(source, target, daemon)

    def test_never_converges(self):
        source, target, daemon = self.slow_pair()
        send = self.in_precopy(source, daemon, "--max-rounds", "2", "--on-timeout", "cancel")
        code, result = send.finish()
        self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "not-converged", "source"))
        self.assert_still_there(source)
        send = self.in_precopy(source, daemon, "--timeout", "1s")
        code, result = send.finish()
        self.assertEqual((code, result["reason"], result["owner"]), (FAILED, "not-converged", "source"))
        self.assertEqual(result["metrics"]["rounds"], 0, "in the middle of the first round")
        self.assert_still_there(source)
        begin = time.monotonic()
        send = self.in_precopy(source, daemon, "--timeout", "3s", "--on-timeout", "suspend", "--suspend", "--keep-source")
        code, result = send.finish()
        self.assertEqual(code, 0, send.explain())
        self.assertGreater(time.monotonic() - begin, 3)
        self.assert_equal_memory(source, target)


@each_qemu("7.2", "10.0")
class Leftovers(Case):
    """Capabilities and parameters that an earlier migration left behind: no harm, and found again afterwards."""

    CAPABILITIES = ("pause-before-switchover", "return-path", "multifd", "mapped-ram", "background-snapshot", "events",
                    "postcopy-ram", "x-colo", "validate-uuid", "auto-converge", "release-ram")
    PARAMETERS = ({"max_bandwidth": 4096}, {"tls_creds": "nowhere"}, {"multifd_channels": 1, "downtime_limit": 1},
                  {"cpu_throttle_initial": 99, "cpu_throttle_increment": 1})

    def check(self, set_up):
        source, target, daemon = self.pair(rams=(64,), guest={"last": 9 * MIB})
        try:
            set_up(source.qmp)
        except QmpError as error:
            print(f"# {self.id()}: this QEMU does not take it: {error}")
            return
        target.qmp("migrate-set-parameters", max_bandwidth=4096)

        def settings():
            return [qemu.qmp(f"query-migrate-{what}") for qemu in (source, target) for what in ("capabilities", "parameters")]
        found = settings()
        self.move(source, target, daemon)
        wait_until(lambda: settings() == found, "both QEMUs are as they were found")
        for process in (source, target, daemon):
            process.kill()

    def test_at_the_destination(self):
        """A waiting QEMU that was prepared, and then was not needed, waits on as it was found, for the next attempt."""
        source, target, daemon = self.pair(rams=(64,), guest={"last": 9 * MIB})
        target.qmp("migrate-set-capabilities", capabilities=[{"capability": "auto-converge", "state": True}])
        target.qmp("migrate-set-parameters", max_bandwidth=4096)
        queries = "query-migrate-capabilities", "query-migrate-parameters"
        found = [target.qmp(query) for query in queries]
        send = Send(self, source, daemon, env={"RDMAMIG_FAULT": "save-prepared=60000"})
        wait_until(lambda: [target.qmp(query) for query in queries] != found, "the destination is prepared")
        send.kill()
        wait_until(lambda: [target.qmp(query) for query in queries] == found, "the waiting QEMU is as it was")
        self.assertEqual(target.status(), "inmigrate")
        self.move(source, target, daemon)
        wait_until(lambda: [target.qmp(query) for query in queries] == found, "and is so in the guest's new home")

    def test_capabilities(self):
        for name in self.CAPABILITIES:
            with self.subTest(capability=name):
                self.check(lambda qmp: qmp("migrate-set-capabilities", capabilities=[{"capability": name, "state": True}]))

    def test_parameters(self):
        for parameters in self.PARAMETERS:
            with self.subTest(parameters=parameters):
                self.check(lambda qmp: qmp("migrate-set-parameters", **parameters))


if __name__ == "__main__":
    sys.exit(run())
