#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records a transcript of the protocol: moves a small guest by tcp through a proxy that notes all that passes.

    tests/protocol/record.py NAME        writes tests/protocol/NAME.jsonl.xz; as root; RDMAMIG_BUILD is the build
    tests/protocol/record.py --show NAME prints one, data by its length

A transcript is recorded once, when a version of the protocol, or a feature, is new, and is never recorded again: it stands
for the builds that are out there.
"""
import subprocess
import sys

import transcript

from lib import DONE, RDMAMIG, Case, Daemon, Qemu, Send


class Record(Case):
    def runTest(self):
        source = Qemu(self, "source", **transcript.GUEST)
        source.wait_letters()
        target = Qemu(self, "target", incoming=True, **transcript.GUEST)
        recorder = transcript.Recorder(self, Daemon(self, "--qmp", target.path))
        send = Send(self, source, recorder.address, "--transport", "tcp", "--verify", "--suspend", "--keep-source",
                    "--chunk-size", "1M")
        self.assertEqual(send.finish()[0], DONE, send.explain())
        self.assert_equal_memory(source, target)
        version = subprocess.run([RDMAMIG, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        about = {"protocol": 1, "build": version, "name": NAME, "guest": transcript.GUEST, "ram": transcript.digest(source.rams[0])}
        transcript.write(transcript.FOLDER / f"{NAME}.jsonl.xz", about, recorder.events)


def show(name):
    about, events = transcript.read(transcript.FOLDER / f"{name}.jsonl.xz")
    print(about)
    for event in events:
        print(f"    channel {event['channel']}: {len(event['data'])} bytes" if "data" in event
              else f"{event['from']} {str(event['message'])[:150]}")


if __name__ == "__main__":
    NAME = sys.argv[-1]
    if "--show" in sys.argv:
        show(NAME)
    else:
        import unittest
        sys.exit(not unittest.TextTestRunner().run(Record()).wasSuccessful())
